#include "io/writers.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <thread>

#include "io/residency.h"

namespace lading::io {
namespace {

using std::chrono::nanoseconds;

// Where nobody can say whether the file is being written. One call of write() moves at most 2 GiB, which takes a minute
// at 36 MB/s.
constexpr std::chrono::seconds kOldEnough{60};
// The kernel stamps inodes with a clock that ticks at least a hundred times a second.
constexpr std::chrono::milliseconds kMostTicks{50};

nanoseconds now(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return std::chrono::seconds(time.tv_sec) + nanoseconds(time.tv_nsec);
}

nanoseconds mtime_of(const FileIdentity& identity) {
  return std::chrono::seconds(identity.mtime_s) + nanoseconds(identity.mtime_ns);
}

// Leases of these are given by the kernel that also sees every writer. Of a FUSE or network file system, another
// machine or process may write behind the kernel's back.
bool knows_all_writers(FileSystem kind) {
  switch (kind) {
    case FileSystem::kMemory:
    case FileSystem::kExt:
    case FileSystem::kXfs:
    case FileSystem::kBtrfs:
    case FileSystem::kF2fs:
    case FileSystem::kOverlay: return true;
    case FileSystem::kZfs:
    case FileSystem::kNetwork:
    case FileSystem::kFuse:
    case FileSystem::kOther: return false;
  }
  return false;
}

// A write in the present tick of the clock would leave the mtime as it is. False if that may still happen.
bool wait_for_next_tick(const FileIdentity& identity) {
  const nanoseconds mtime = mtime_of(identity);
  // An mtime far ahead was set by hand, or by another clock: no write of today will set it again.
  if (mtime > now(CLOCK_REALTIME) + kMostTicks) return true;
  // A file system without fractions of seconds has ticks of one or two seconds.
  if (identity.mtime_ns == 0 && now(CLOCK_REALTIME) - mtime < kWriteTime) return false;
  const auto end = std::chrono::steady_clock::now() + kMostTicks;
  while (now(CLOCK_REALTIME_COARSE) <= mtime) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace

Writers writers_of(const File& file) {
  const int fd = file.descriptor();
  if (!knows_all_writers(file_system_of(fd))) return Writers::kUnknown;
  // Somebody who opens the file for writing while the lease is held makes the kernel send a signal. The default one
  // ends the process; this one is ignored unless the program handles it.
  if (::fcntl(fd, F_SETSIG, SIGURG) != 0) return Writers::kUnknown;
  if (::fcntl(fd, F_SETLEASE, F_RDLCK) == 0) {
    ::fcntl(fd, F_SETLEASE, F_UNLCK);
    return Writers::kNone;
  }
  return errno == EAGAIN ? Writers::kSome : Writers::kUnknown;
}

bool is_settled(const File& file) {
  // In this order: a write that ends between the two has left all its bytes, and a later one has a later mtime.
  if (!wait_for_next_tick(file.identity())) return false;
  switch (writers_of(file)) {
    case Writers::kNone: return true;
    case Writers::kSome: return false;
    case Writers::kUnknown: break;
  }
  return now(CLOCK_REALTIME) - mtime_of(file.identity()) > kOldEnough;
}

std::chrono::milliseconds time_to_settle(const FileIdentity& identity) {
  const nanoseconds left = mtime_of(identity) + kWriteTime - now(CLOCK_REALTIME);
  return std::chrono::ceil<std::chrono::milliseconds>(std::clamp<nanoseconds>(left, nanoseconds(0), kWriteTime));
}

}  // namespace lading::io
