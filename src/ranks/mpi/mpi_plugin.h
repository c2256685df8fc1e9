/* What liblading_mpi.so is: entries of the ranks of one `mpirun`, kept by the first of them, and bytes from rank to
 * rank. It is opened at run time, so that nothing else depends on MPI; this header is all that both sides share. */
#ifndef LADING_RANKS_MPI_PLUGIN_H
#define LADING_RANKS_MPI_PLUGIN_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LADING_MPI_PLUGIN_VERSION 2

enum lading_mpi_state { LADING_MPI_READY = 0, LADING_MPI_ABSENT = 1, LADING_MPI_GONE = 2 };

/* Takes one entry that was found. */
typedef void (*lading_mpi_take)(void* sink, const void* value, uint64_t size_bytes);

typedef struct lading_mpi_plugin {
  uint64_t rank;
  uint64_t size;
  const char* node; /* the name of the machine, for as long as the process lives */
  int (*put)(const char* key, const void* value, uint64_t size_bytes);
  int (*decide)(const char* key, const void* value, uint64_t size_bytes, lading_mpi_take take, void* sink);
  int (*wait)(const char* const* keys, uint64_t key_count, double timeout_s, lading_mpi_take take, void* sink);
  /* Begin to move at most INT_MAX bytes, which stay in use until `test` says otherwise. The first that one rank sends
   * to another is the first that the other receives from it. NULL: it could not begin. None of the three blocks. */
  void* (*send)(uint64_t to, const void* data, uint64_t size_bytes);
  void* (*receive)(uint64_t from, void* data, uint64_t size_bytes);
  /* 0: under way. Otherwise it is over and the transfer is gone: 1: all bytes have moved; 2: not all of them have. */
  int (*test)(void* transfer);
  /* Asks MPI to end a transfer that nobody may ever come to meet. It may not be able to: `test` knows. */
  void (*cancel)(void* transfer);
  /* Ends MPI. A rank that cannot come is waited for `patience_s` at most; not 0: in vain. */
  int (*stop)(double patience_s);
} lading_mpi_plugin;

/* Exported: "lading_mpi_start". Starts MPI, once per process. Not 0: it could not; `why` has room for 256 characters.
 */
typedef int (*lading_mpi_start_function)(int version, lading_mpi_plugin* plugin, char* why);

#ifdef __cplusplus
}
#endif

#endif
