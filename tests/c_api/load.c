/* Plans and loads a checkpoint through the C ABI, as two ranks, and has what is in memory verified against the files.
 *
 *   c_api_load CHECKPOINT
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lading/lading_c.h"

#define CHECK(condition)                                                      \
  do {                                                                        \
    if (!(condition)) {                                                       \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      exit(1);                                                                \
    }                                                                         \
  } while (0)

/* Ends the program with the problems, if there are any. */
static lading_handle* good(lading_handle* handle) {
  if (lading_exit_code(handle) != 0) fprintf(stderr, "%s\n", handle != NULL ? lading_text(handle, NULL) : "no memory");
  CHECK(lading_exit_code(handle) == 0);
  return handle;
}

static void refused(lading_handle* handle, int exit_code, const char* words) {
  CHECK(lading_exit_code(handle) == exit_code);
  if (strstr(lading_text(handle, NULL), words) == NULL) fprintf(stderr, "%s\n", lading_text(handle, NULL));
  CHECK(strstr(lading_text(handle, NULL), words) != NULL);
  lading_free(handle);
}

/* The four texts, one after the other. */
static char* joined(const char* a, const char* b, const char* c, const char* d) {
  char* text = malloc(strlen(a) + strlen(b) + strlen(c) + strlen(d) + 1);
  CHECK(text != NULL);
  strcpy(text, a);
  strcat(text, b);
  strcat(text, c);
  return strcat(text, d);
}

struct seen {
  uint64_t calls;
  uint64_t done_bytes;
  uint64_t total_bytes;
};

static int on_progress(void* user, uint64_t done_bytes, uint64_t total_bytes, uint64_t read_bytes) {
  struct seen* seen = user;
  (void)read_bytes;
  seen->calls += 1;
  seen->done_bytes = done_bytes;
  seen->total_bytes = total_bytes;
  return 0;
}

static const char kBegin[] = "{\"schema\": \"lading.request/1\", \"checkpoint\": \"";

int main(int argc, char** argv) {
  CHECK(argc == 2);
  CHECK(lading_abi_version() == LADING_ABI_VERSION);
  CHECK(strlen(lading_version()) >= 5);

  char* request = joined(kBegin, argv[1], "\"}", "");
  lading_handle* inspection = good(lading_inspect(request));
  CHECK(strstr(lading_text(inspection, NULL), "\"model.norm.weight\"") != NULL);
  lading_free(inspection);
  free(request);

  request = joined(kBegin, argv[1], "\", \"mesh\": \"dp=2\", \"strategy\": \"fsdp2\", ",
                   "\"ranks\": \"all\", \"poison\": true}");
  lading_handle* plan = good(lading_plan(request));
  free(request);
  uint64_t size_bytes = 0;
  CHECK(strlen(lading_text(plan, &size_bytes)) == size_bytes);

  uint64_t count = 0;
  const lading_destination* destinations = lading_destinations(plan, &count);
  CHECK(count > 0);
  lading_memory* memories = calloc((size_t)count, sizeof *memories);
  CHECK(memories != NULL);
  uint64_t total_bytes = 0;
  for (uint64_t i = 0; i < count; ++i) {
    CHECK(destinations[i].rank < 2 && strlen(destinations[i].name) > 0 && strlen(destinations[i].dtype) >= 2);
    CHECK(strcmp(destinations[i].device, "cpu") == 0 && strcmp(destinations[i].provenance, "file") == 0);
    CHECK(destinations[i].shape_dims == destinations[i].local_dims);
    memories[i].size_bytes = destinations[i].size_bytes;
    memories[i].data = malloc((size_t)destinations[i].size_bytes + 1);
    CHECK(memories[i].data != NULL);
    total_bytes += destinations[i].size_bytes;
  }

  refused(lading_load(plan, memories, count - 1, NULL), 2, "one memory for each destination");
  const int cancelled = 1;
  lading_callbacks callbacks = {0};
  callbacks.cancelled = &cancelled;
  refused(lading_load(plan, memories, count, &callbacks), 5, "\"cancelled\"");

  struct seen seen = {0};
  callbacks.user = &seen;
  callbacks.progress = on_progress;
  callbacks.cancelled = NULL;
  lading_handle* report = good(lading_load(plan, memories, count, &callbacks));
  CHECK(strstr(lading_text(report, NULL), "\"digests\"") != NULL);
  CHECK(seen.calls > 0 && seen.done_bytes == seen.total_bytes && seen.total_bytes == total_bytes);

  /* The ledger's digests are of what was in memory; they are compared with the files by another way. */
  lading_handle* ledger = good(lading_ledger(report));
  char* half = joined(kBegin, argv[1], "\", \"ledger\": ", lading_text(ledger, NULL));
  request = joined(half, "}", "", "");
  lading_handle* verified = good(lading_verify(request));
  CHECK(strstr(lading_text(verified, NULL), "\"tensors_verified\": 22") != NULL);
  free(request);
  free(half);

  refused(lading_plan("{\"schema\": \"lading.request/1\", \"checkpoint\": \"x\", \"chekpoint\": \"y\"}"), 2,
          "$.chekpoint");
  refused(lading_plan(NULL), 2, "NULL");
  refused(lading_load(NULL, NULL, 0, NULL), 2, "not a plan");

  lading_free(verified);
  lading_free(ledger);
  lading_free(report);
  for (uint64_t i = 0; i < count; ++i) free(memories[i].data);
  free(memories);
  lading_free(plan);
  lading_free(NULL);
  puts("loaded and verified");
  return 0;
}
