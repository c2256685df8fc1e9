// Reads by io_uring: a request is cut into pieces that are in flight together.
//
// Rings are leased from a pool, one to a reading thread at a time, and live as long as the transport; threads may
// come and go. A call leaves no request behind: every piece that the kernel took is waited for before it returns,
// also when something failed. A ring that misbehaves is not used again.
#include <fmt/format.h>
#include <liburing.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

#include "io/transport.h"

namespace lading::io {
namespace {

constexpr unsigned kEntries = 16;
constexpr std::size_t kPieceBytes = 1U << 20;
constexpr std::chrono::microseconds kBusyPause{100};
constexpr int kMostBusyPauses = 10'000;

struct Piece {
  char* place = nullptr;
  unsigned size = 0;
  std::uint64_t offset_bytes = 0;
  int result = 0;
};

// A ring that is torn down at the end.
class Ring {
 public:
  Ring() = default;
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  ~Ring() {
    if (is_open_) ::io_uring_queue_exit(&ring_);
  }

  // 0, or an errno.
  int open(const UringOptions& options) {
    const auto init = options.queue_init == nullptr ? &::io_uring_queue_init : options.queue_init;
    const int result = init(kEntries, &ring_, 0);
    is_open_ = result == 0;
    return -result;
  }

  // Reads all pieces; each has its result then. 0, or an errno: the ring is of no use any more, and what the pieces
  // hold is undefined, but no longer changed.
  int read(int fd, std::span<Piece> pieces) {
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      io_uring_sqe* const entry = ::io_uring_get_sqe(&ring_);
      LADING_CHECK(entry != nullptr);  // never more pieces than entries, and the ring was empty
      ::io_uring_prep_read(entry, fd, pieces[i].place, pieces[i].size, pieces[i].offset_bytes);
      ::io_uring_sqe_set_data64(entry, i);
    }
    std::size_t taken = 0;
    std::size_t completed = 0;
    int pauses = 0;
    while (completed < pieces.size()) {
      const int result = ::io_uring_submit_and_wait(&ring_, 1);
      if (result > 0) taken += static_cast<std::size_t>(result);
      const std::size_t before = completed;
      completed += collect(pieces);
      if (result >= 0 || result == -EINTR || completed > before) continue;
      // Out of requests or of memory for the moment, or something that will not pass.
      if ((result != -EAGAIN && result != -EBUSY && result != -ENOMEM) || ++pauses > kMostBusyPauses) {
        drain(pieces, taken - completed);
        return -result;
      }
      std::this_thread::sleep_for(kBusyPause);
    }
    return 0;
  }

 private:
  // Takes what has completed, without waiting.
  std::size_t collect(std::span<Piece> pieces) {
    std::size_t count = 0;
    io_uring_cqe* done = nullptr;
    while (::io_uring_peek_cqe(&ring_, &done) == 0 && done != nullptr) {
      pieces[::io_uring_cqe_get_data64(done)].result = done->res;
      ::io_uring_cqe_seen(&ring_, done);
      ++count;
    }
    return count;
  }

  // Waits without the system call that has just failed: completions appear in shared memory.
  void drain(std::span<Piece> pieces, std::size_t in_flight) {
    while (in_flight > 0) {
      in_flight -= collect(pieces);
      if (in_flight > 0) std::this_thread::sleep_for(kBusyPause);
    }
  }

  ::io_uring ring_{};
  bool is_open_ = false;
};

class UringTransport final : public Transport {
 public:
  UringTransport(Notes& notes, UringOptions options)
      : notes_(notes), options_(options), fallback_(make_pread_transport()) {}

  ReadSome read(int fd, std::uint64_t offset_bytes, std::span<const iovec> segments) override {
    std::unique_ptr<Ring> ring = lease();
    if (ring == nullptr) return fallback_->read(fd, offset_bytes, segments);
    std::array<Piece, kEntries> storage;
    const std::span<Piece> pieces = cut(offset_bytes, segments, storage);
    if (const int error = ring->read(fd, pieces); error != 0) {
      discard(std::move(ring), error);
      return fallback_->read(fd, offset_bytes, segments);
    }
    give_back(std::move(ring));
    return sum_up(pieces);
  }

 private:
  // As many pieces as fit into a ring; the rest is a short read.
  static std::span<Piece> cut(std::uint64_t offset_bytes, std::span<const iovec> segments,
                              std::array<Piece, kEntries>& storage) {
    std::size_t count = 0;
    for (const iovec& segment : segments) {
      for (std::size_t done = 0; done < segment.iov_len && count < kEntries; done += kPieceBytes) {
        const std::size_t size = std::min(kPieceBytes, segment.iov_len - done);
        storage[count++] = {static_cast<char*>(segment.iov_base) + done, static_cast<unsigned>(size), offset_bytes, 0};
        offset_bytes += size;
      }
    }
    return {storage.data(), count};
  }

  // Up to the first piece that is not whole. Its error counts only if nothing came before it: whoever asks for the
  // rest will meet it again.
  static ReadSome sum_up(std::span<const Piece> pieces) {
    ReadSome sum;
    for (const Piece& piece : pieces) {
      if (piece.result < 0) {
        if (sum.bytes == 0) sum.error = -piece.result;
        break;
      }
      sum.bytes += static_cast<std::size_t>(piece.result);
      if (static_cast<unsigned>(piece.result) < piece.size) break;
    }
    return sum;
  }

  // Null if there is no ring to be had.
  std::unique_ptr<Ring> lease() {
    {
      const std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        std::unique_ptr<Ring> ring = std::move(idle_.back());
        idle_.pop_back();
        return ring;
      }
      if (is_refused_ || alive_ >= options_.max_rings) return nullptr;
      ++alive_;
    }
    auto ring = std::make_unique<Ring>();
    if (const int error = ring->open(options_); error != 0) {
      discard(nullptr, error);
      return nullptr;
    }
    return ring;
  }

  void give_back(std::unique_ptr<Ring> ring) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(ring));
  }

  // A refusal is for good: a sandbox does not change its mind, and asking costs a system call per read.
  void discard(std::unique_ptr<Ring> ring, int error) {
    ring.reset();
    notes_.once("uring", fmt::format("io_uring does not work here ({}); lading reads with preadv", errno_text(error)));
    const std::lock_guard lock(mutex_);
    --alive_;
    is_refused_ = true;
  }

  Notes& notes_;
  const UringOptions options_;
  const std::unique_ptr<Transport> fallback_;

  std::mutex mutex_;
  std::vector<std::unique_ptr<Ring>> idle_;
  std::size_t alive_ = 0;
  bool is_refused_ = false;
};

}  // namespace

std::unique_ptr<Transport> make_uring_transport(Notes& notes, UringOptions options) {
  return std::make_unique<UringTransport>(notes, options);
}

std::optional<int> try_ring(const UringOptions& options) { return Ring().open(options); }

}  // namespace lading::io
