#include "io/read_exact.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <string>
#include <thread>

#include "base/checked.h"

namespace lading::io {
namespace {

// One system call never moves more than this on Linux anyway.
constexpr std::size_t kMaxReadBytes = 1U << 30;

// A regular file has no reason to answer EAGAIN for long: these are a second and a half together.
constexpr int kMostRefusals = 40;
constexpr int kMostReadErrors = 3;
constexpr std::chrono::milliseconds kFirstPause{1};
constexpr std::chrono::milliseconds kLongestPause{50};

void pause_before_retry(int retry) {
  std::this_thread::sleep_for(std::min(kLongestPause, kFirstPause * (1 << std::min(retry, 6))));
}

// What went wrong at one place of the file; forgotten when bytes arrive.
struct Retries {
  int refusals = 0;
  int read_errors = 0;
};

}  // namespace

Result<void> read_exact(const File& file, ReadBackend& backend, std::uint64_t offset_bytes, std::span<char> out) {
  const auto end = checked_add(offset_bytes, out.size());
  if (!end) return fail(Error(Code::kReadFailed, "the offset to read from overflows").in_file(file.path()));
  std::size_t done = 0;
  Retries retries;
  const auto failed = [&](std::string what, std::string remedy) {
    return fail(Error(Code::kReadFailed, std::move(what))
                    .in_file(file.path())
                    .at({offset_bytes + done, *end})
                    .try_this(std::move(remedy)));
  };
  while (done < out.size()) {
    const std::size_t want = std::min(out.size() - done, kMaxReadBytes);
    const unsigned generation = file.generation();
    const ReadSome got = backend.read_some(file, offset_bytes + done, out.subspan(done, want));
    switch (got.error) {
      case 0:
        LADING_CHECK(got.bytes <= want);
        if (got.bytes == 0) {
          return fail(Error(Code::kFileTruncated, "the file ended while it was read")
                          .in_file(file.path())
                          .at({offset_bytes + done, *end})
                          .by_rule("R45")
                          .wanted(fmt::format("{} bytes", file.size_bytes()))
                          .got(fmt::format("an end at byte {}", offset_bytes + done))
                          .try_this("Load again when no other program writes to the file, or fetch it again."));
        }
        done += got.bytes;
        retries = {};
        break;
      case EINTR: break;
      case EAGAIN:
        if (++retries.refusals > kMostRefusals) {
          return failed(fmt::format("the read was refused {} times: {}", retries.refusals, errno_text(EAGAIN)),
                        "Check why the storage of this file is busy.");
        }
        pause_before_retry(retries.refusals);
        break;
      case EIO:
        if (++retries.read_errors > kMostReadErrors) {
          return failed(fmt::format("the read failed {} times: {}", retries.read_errors, errno_text(EIO)),
                        "Check the kernel's log for disk errors, and copy the file to another disk.");
        }
        pause_before_retry(retries.read_errors);
        break;
      case ESTALE:
        if (auto reopened = file.reopen_after(generation); !reopened) {
          Error error = std::move(reopened).error();
          error.bytes = ByteRange{offset_bytes + done, *end};
          if (error.remedy.empty()) error.remedy = "Check that the file server still has the file.";
          return fail(std::move(error));
        }
        break;
      default:
        return failed(fmt::format("the read failed: {}", errno_text(got.error)),
                      "Check that other programs can read the file.");
    }
  }
  return {};
}

}  // namespace lading::io
