/* The C ABI of lading: for fronts in other languages, the Python one first (docs/reference/c-api.md).
 *
 * Requests and answers are JSON texts, UTF-8, ended by a NUL (docs/schema/request.md). Whatever can fail answers a
 * handle, and the handle knows whether it went well: lading_exit_code() is 0, and lading_text() is the answer; or it is
 * not, and the text lists all problems. NULL instead of a handle means that there was no memory even for that. Nothing
 * throws.
 *
 *   lading_handle* plan = lading_plan(request);            what goes where; nothing is read yet
 *   … allocate one memory per destination of the plan …
 *   lading_handle* report = lading_load(plan, memories, count, NULL);
 *
 * Every function may be called from several threads at once. A handle is not changed once it is there: several threads
 * may read it, and a plan may be loaded several times, also at once into different memory. Free it when nobody uses it
 * any more.
 */
#ifndef LADING_LADING_C_H
#define LADING_LADING_C_H

#include <stdint.h>

#include "lading/export.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Goes up with every change of this header that a program compiled before would not survive. */
#define LADING_ABI_VERSION 1

/* LADING_ABI_VERSION of the library: whoever opens it at run time compares this first. */
LADING_API int lading_abi_version(void);

/* "0.1.0" */
LADING_API const char* lading_version(void);

/* An answer. */
typedef struct lading_handle lading_handle;

/* 0: done. Otherwise as the command line ends (docs/exit-codes.md); 1 for NULL. */
LADING_API int lading_exit_code(const lading_handle* handle);

/* The answer as JSON, which lives as long as the handle. size_bytes may be NULL; it does not count the NUL. Returns
 * NULL for NULL. */
LADING_API const char* lading_text(const lading_handle* handle, uint64_t* size_bytes);

/* Accepts NULL. */
LADING_API void lading_free(lading_handle* handle);

/* Problems as people read them: many of one kind are one line with a pattern and a count. The request is the text of an
 * answer that is not ok, or any object with its "problems" and "problems_not_listed". The answer has "lines"; one that
 * begins with two spaces belongs to the line before it. */
LADING_API lading_handle* lading_fold(const char* request);

/* What a checkpoint holds. */
LADING_API lading_handle* lading_inspect(const char* request);

/* Reads headers and documents, plans, and proves the plan. */
LADING_API lading_handle* lading_plan(const char* request);

/* What the dtype contract decides for a model, with a checkpoint or without one: the dtypes of every tensor, which
 * subtrees are frozen, and where FSDP2 units have to be. Nothing is planned; only headers are read. */
LADING_API lading_handle* lading_dtypes(const char* request);

/* One memory that a load of the plan fills: a tensor's part on a rank. Texts and arrays live as long as the plan's
 * handle. A name that has a NUL in it ends there; the JSON has all of it. */
typedef struct lading_destination {
  uint64_t rank;
  const char* name;
  const char* slot;       /* "", or the name of a second memory of the tensor */
  const char* unit;       /* "", or the buffer that it shares with other tensors of this rank */
  const char* device;     /* "cpu", "cuda:1" */
  const char* provenance; /* "file", "host", "call", "fill", "random", "kept" */
  const char* dtype;      /* of the memory, named as in safetensors: "BF16" */
  const uint64_t* shape;  /* of the whole tensor */
  uint64_t shape_dims;
  const uint64_t* local_shape; /* of this part; of a flat partition: one dim, padding included */
  uint64_t local_dims;
  uint64_t size_bytes;        /* of the memory, padding included; of a unit: of the whole unit */
  const char* const* aliases; /* other names of the same storage */
  uint64_t alias_count;
} lading_destination;

/* The destinations of a plan, in the order in which lading_load() takes memory. NULL and 0 if the handle is not a plan.
 */
LADING_API const lading_destination* lading_destinations(const lading_handle* plan, uint64_t* count);

/* The ranks that hold the same bytes as a destination of the plan, ascending, its own among them. The list lives as
 * long as the plan's handle, and destinations that are cut alike have the same one. NULL and 0 if there is no such
 * destination. */
LADING_API const uint64_t* lading_replicas(const lading_handle* plan, uint64_t destination, uint64_t* count);

/* Whether ranks that hold the same bytes exchange them, and who then reads what (docs/guides/exchange.md). The request
 * has "nodes", and may have "exchange" and measured speeds. */
LADING_API lading_handle* lading_owners(const lading_handle* plan, const char* request);

/* How fast the plan's first rank reads the plan's files, from a few small parts: "bytes_per_second" in the answer. For
 * lading_owners(): all ranks measure at the same time. */
LADING_API lading_handle* lading_read_speed(const lading_handle* plan);

/* The whole plan, every transfer in it (docs/schema/plan.md). */
LADING_API lading_handle* lading_plan_document(const lading_handle* plan);

/* A 128-bit fingerprint of sampled blocks of the plan's files, by which ranks notice before they load that one of them
 * has another checkpoint of the same shapes: "contents" in the answer. */
LADING_API lading_handle* lading_sampled_contents(const lading_handle* plan);

/* Memory of the caller's: contiguous, on the destination's device (of a GPU: a device address), borrowed until
 * lading_load() returns. Destinations of one unit, on one rank, name the same memory. */
typedef struct lading_memory {
  void* data; /* may be NULL where nothing goes */
  uint64_t size_bytes;
} lading_memory;

/* A tensor's whole value in host memory, row-major. The bytes must stay until lading_load() returns; of a "call"
 * tensor, and of a deferred value, only until the next value is asked for. data NULL, with size and dtype, defers the
 * value of a "host" tensor, so that not all of them need be in memory at once: it is asked for again when it is
 * written, and *value then holds this size and dtype. At the first time it holds zeros. */
typedef struct lading_value {
  const void* data;
  uint64_t size_bytes;
  const char* dtype; /* named as in safetensors */
} lading_value;

/* All on the thread that called lading_load(), one at a time. Any of them may be NULL. */
typedef struct lading_callbacks {
  void* user; /* handed to the functions as it is */
  /* The value of a "host" or "call" tensor; of a "call" once its inputs are complete. Not 0: there is none, and
   * lading_set_error() said why. */
  int (*value)(void* user, const char* name, uint64_t rank, lading_value* value);
  /* Several times a second while tensors are filled. Not 0: stop the load, as `cancelled` does. */
  int (*progress)(void* user, uint64_t done_bytes, uint64_t total_bytes, uint64_t read_bytes);
  /* The load stops soon after this is not 0. May be set from any thread and from a signal handler. */
  const volatile int* cancelled;
} lading_callbacks;

/* In a callback, before it answers that it failed: why. The text is copied. */
LADING_API void lading_set_error(const char* text);

/* Fills the destinations of a plan: memories[i] is that of destination i, and there are as many as destinations.
 * callbacks may be NULL. When this returns nothing is in flight any more. If it failed, and its text says "begun", take
 * every destination as incomplete, whatever it holds; otherwise nothing was written. */
LADING_API lading_handle* lading_load(const lading_handle* plan, const lading_memory* memories, uint64_t memory_count,
                                      const lading_callbacks* callbacks);

/* Bytes that are read once for several ranks (docs/guides/exchange.md). */
typedef struct lading_exchange {
  /* By destination, as many as there are: the rank that reads it for all that hold the same bytes; negative: every rank
   * reads it for itself. What another rank reads is not read here. */
  const int64_t* owners;
  void* user; /* handed to the function as it is */
  /* Hands over all bytes of the destinations that this rank reads for others, and takes all bytes of those that others
   * read for it. Called once, on the thread that called lading_load_exchanged(), when what is read here is in place
   * (on a GPU: for all streams) and before anything is computed from it, also if there is nothing to take; not at all
   * if the load has failed by then. Not 0: it failed, lading_set_error() said why, and so has the load. */
  int (*receive)(void* user);
} lading_exchange;

/* lading_load() of a rank that reads for others, and receives from them. exchange may be NULL. */
LADING_API lading_handle* lading_load_exchanged(const lading_handle* plan, const lading_memory* memories,
                                                uint64_t memory_count, const lading_callbacks* callbacks,
                                                const lading_exchange* exchange);

/* ---- Saving: docs/guides/saving.md. All ranks plan and write; one of them, the leader, prepares, finishes and
 * commits:
 *
 *   lading_handle* plan = lading_save_plan(request);        all ranks; "plan_digest" is equal on all
 *   lading_save_prepare(plan, place);                       leader: "temporary" in the answer, for all ranks
 *   lading_save_write(plan, memories, count, place, NULL);  all ranks
 *   lading_save_finish(plan, place);                        leader, when all have written
 *   lading_save_commit(place);                              leader; or lading_save_discard(place) after any failure
 *
 * Nothing appears at the place before lading_save_commit() puts all of it there in one step. Requests and answers:
 * docs/schema/request.md. */

/* Reads headers and documents, plans the save over all ranks, and proves the plan. lading_destinations() and
 * lading_replicas() are those of the request's ranks. */
LADING_API lading_handle* lading_save_plan(const char* request);

/* Removes what earlier saves of this place left behind, and makes a temporary directory beside it, with all files at
 * their full size. Other saves leave it alone until the plan is freed. */
LADING_API lading_handle* lading_save_prepare(const lading_handle* plan, const char* request);

/* Writes what the plan gives to these ranks, and syncs it. memories[i] is that of destination i, and is only read. Of
 * the callbacks, `value` is not called; `progress` has what was written in done_bytes. */
LADING_API lading_handle* lading_save_write(const lading_handle* plan, const lading_memory* memories,
                                            uint64_t memory_count, const char* request,
                                            const lading_callbacks* callbacks);

/* Refuses unless every rank has written all that the plan gives it. Then writes the index and the ledger, and syncs
 * every file in the temporary directory, the caller's too. */
LADING_API lading_handle* lading_save_finish(const lading_handle* plan, const char* request);

LADING_API lading_handle* lading_save_commit(const char* request);

/* Removes the temporary directory. May be called twice. */
LADING_API lading_handle* lading_save_discard(const char* request);

/* The bill of lading of a load (docs/schema/ledger.md), also of one that failed after it had begun. */
LADING_API lading_handle* lading_ledger(const lading_handle* load);

/* Compares the digests in a ledger with the files. The exit code is 6 where they differ. */
LADING_API lading_handle* lading_verify(const char* request);

/* The digest (docs/how-it-works/digests.md) of bytes that stand at [begin_bytes, …) of a tensor: "digest" in the
 * answer. Nothing is copied. Digests of the parts of a tensor add up to its own. */
LADING_API lading_handle* lading_digest(const void* data, uint64_t size_bytes, uint64_t begin_bytes);

/* Whether a device ("cpu", "cuda:1") has so many bytes free: for callers that allocate the memory of a load, before
 * they do. The exit code is 5 if it has fewer. */
LADING_API lading_handle* lading_check_memory(const char* device, uint64_t needed_bytes);

/* What an error code, a rule, an exit code or a word of a policy means, and what to do (docs/schema/help.md). NULL: all
 * topics. The exit code is 2 if there is no such topic. */
LADING_API lading_handle* lading_help(const char* topic);

/* The GPUs of this machine. */
LADING_API lading_handle* lading_gpus(void);

/* Whether a pattern of a policy or a layout matches a name: "*" stands for any characters, dots included. Sizes are in
 * bytes. */
LADING_API int lading_pattern_matches(const char* pattern, uint64_t pattern_size, const char* name, uint64_t name_size);

/* ---- The ranks of one load: they agree before bytes move, notice a rank that fails or falls silent, and end together
 * (docs/how-it-works/reliability.md).
 *
 *   lading_ranks* ranks = NULL;
 *   lading_handle* made = lading_ranks_new(request, &store, &ranks);
 *   lading_ranks_begin(ranks, "{}"); lading_ranks_agree(ranks, request); … lading_ranks_poll(ranks, done); …
 *   lading_ranks_commit(ranks);
 *   lading_ranks_free(ranks);
 *
 * Requests and answers: docs/schema/ranks.md. Once a call has failed, all later ones answer the same failure. Steps are
 * made by one thread; lading_ranks_poll() may be called from any. */

typedef struct lading_ranks lading_ranks;

/* Where a function of a store leaves the notes that it found. */
typedef struct lading_notes lading_notes;

/* In lading_store.decide and .wait: one note, in the order of the keys. The bytes are copied. */
LADING_API void lading_add_note(lading_notes* notes, const void* value, uint64_t size_bytes);

/* A store of small notes that all ranks reach, such as torch.distributed's. Functions answer 0: done; 1: not there
 * (wait only); 2: the store cannot be reached, and lading_set_error() said why. They are called on a thread of the
 * library's, one at a time. One that does not return in time is left behind: `user` and what it uses have to outlive
 * it. */
typedef struct lading_store {
  void* user;
  int (*put)(void* user, const char* key, const void* value, uint64_t size_bytes);
  /* Writes the note unless there is one; adds the one that stands there then. */
  int (*decide)(void* user, const char* key, const void* value, uint64_t size_bytes, lading_notes* notes);
  /* Until all notes are there: adds them. A timeout of 0 looks once. */
  int (*wait)(void* user, const char* const* keys, uint64_t key_count, double timeout_s, lading_notes* notes);
} lading_store;

/* *ranks is NULL if this failed. Nobody is asked yet. */
LADING_API lading_handle* lading_ranks_new(const char* request, const lading_store* store, lading_ranks** ranks);
/* Joins the others. */
LADING_API lading_handle* lading_ranks_begin(lading_ranks* ranks, const char* request);
/* Fails on all ranks if one has a failure in its request, or a field or a record that differs. */
LADING_API lading_handle* lading_ranks_agree(lading_ranks* ranks, const char* request);
/* After a load: ranks that hold the same bytes compare digests of them (R17). Fails on all ranks if some differ, and
 * names the tensors. `begun` is what such a failure says of the model: not 0, if it may be incomplete. */
LADING_API lading_handle* lading_ranks_agree_replicas(lading_ranks* ranks, const lading_handle* load, int begun);
/* A sign of life, and a look for the others', several times per deadline; cheap if called more often. `done` is any
 * number that grows with the load, or negative for a sign of life only. Not 0: the load has failed, and any call says
 * how. */
LADING_API int lading_ranks_poll(lading_ranks* ranks, int64_t done);
/* Tells all ranks at once. The answer is the failure that all are told, which is another rank's if that came first. */
LADING_API lading_handle* lading_ranks_fail(lading_ranks* ranks, const char* request);
/* This rank is complete. Done: all ranks are. */
LADING_API lading_handle* lading_ranks_commit(lading_ranks* ranks);
/* The rank that holds the notes waits until the others have read how it ended, for a deadline at most. */
LADING_API void lading_ranks_free(lading_ranks* ranks);

#ifdef __cplusplus
}
#endif

#endif
