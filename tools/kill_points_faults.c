// Lets one call of liblading.so to the system fail, by its number: loaded with LD_PRELOAD by tools/kill_points.
//
// Calls of other libraries go through, and are not counted. Nothing fails before lading_fault_arm().
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static atomic_long left;
static int failure;
static volatile unsigned char* has_failed;

// The call of this number fails with this errno; then the flag is 1.
void lading_fault_arm(long number, int error, unsigned char* flag) {
  failure = error;
  has_failed = flag;
  atomic_store(&left, number);
}

static int fails(void* caller) {
  if (atomic_load(&left) <= 0) return 0;
  Dl_info library;
  if (dladdr(caller, &library) == 0 || strstr(library.dli_fname, "/liblading.so") == NULL) return 0;
  if (atomic_fetch_sub(&left, 1) != 1) return 0;
  *has_failed = 1;
  errno = failure;
  return 1;
}

#define CALLER __builtin_extract_return_addr(__builtin_return_address(0))
#define WRAP(result, bad, name, parameters, arguments)                  \
  result name parameters {                                             \
    static result(*next) parameters;                                   \
    if (fails(CALLER)) return bad;                                     \
    if (next == NULL) *(void**)&next = dlsym(RTLD_NEXT, #name);        \
    return next arguments;                                             \
  }

WRAP(DIR*, NULL, fdopendir, (int fd), (fd))
WRAP(int, -1, fallocate, (int fd, int mode, off_t begin, off_t size), (fd, mode, begin, size))
WRAP(int, -1, flock, (int fd, int how), (fd, how))
WRAP(int, -1, fstat, (int fd, struct stat* out), (fd, out))
WRAP(int, -1, fstatat, (int at, const char* path, struct stat* out, int flags), (at, path, out, flags))
WRAP(int, -1, fsync, (int fd), (fd))
WRAP(int, -1, ftruncate, (int fd, off_t size), (fd, size))
WRAP(int, -1, mkdirat, (int at, const char* path, mode_t mode), (at, path, mode))
WRAP(ssize_t, -1, pread, (int fd, void* out, size_t size, off_t at), (fd, out, size, at))
WRAP(ssize_t, -1, pwrite, (int fd, const void* bytes, size_t size, off_t at), (fd, bytes, size, at))
WRAP(ssize_t, -1, write, (int fd, const void* bytes, size_t size), (fd, bytes, size))
WRAP(int, -1, renameat, (int from_at, const char* from, int to_at, const char* to), (from_at, from, to_at, to))
WRAP(int, -1, renameat2, (int from_at, const char* from, int to_at, const char* to, unsigned flags),
     (from_at, from, to_at, to, flags))
WRAP(int, -1, unlinkat, (int at, const char* path, int flags), (at, path, flags))

#define WITH_MODE(mode, flags)               \
  mode_t mode = 0;                           \
  if ((flags) & (O_CREAT | __O_TMPFILE)) {   \
    va_list more;                            \
    va_start(more, flags);                   \
    mode = va_arg(more, mode_t);             \
    va_end(more);                            \
  }

int open(const char* path, int flags, ...) {
  static int (*next)(const char*, int, ...);
  if (fails(CALLER)) return -1;
  if (next == NULL) *(void**)&next = dlsym(RTLD_NEXT, "open");
  WITH_MODE(mode, flags)
  return next(path, flags, mode);
}

int openat(int at, const char* path, int flags, ...) {
  static int (*next)(int, const char*, int, ...);
  if (fails(CALLER)) return -1;
  if (next == NULL) *(void**)&next = dlsym(RTLD_NEXT, "openat");
  WITH_MODE(mode, flags)
  return next(at, path, flags, mode);
}
