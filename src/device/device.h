// Device: where destinations live, and everything that is done to their memory: move, fill, sample, digest.
//
// Destinations are borrowed, never owned. A Lane belongs to one thread at a time: it lends staging buffers to read
// into, and its work may go on after a call returns; finish() waits for it. A buffer that was released is lent again
// only when the device has read it. Between two finish() a lane writes a byte once: of two writes to it, either may be
// the last. What a buffer holds is moved when the buffer is released: a digest or a fetch of it comes after that. Host
// memory is the device that does everything at once. Addresses of another device's memory are numbers here: nobody but
// its lanes looks behind them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/strided_loop.h"
#include "device/digest.h"
#include "device/random.h"
#include "lading/decoding.h"
#include "lading/dtype.h"
#include "lading/result.h"
#include "lading/shape.h"

namespace lading::device {

/// How a quantized tensor is dequantized: scales and zero points in row-major order of the blocks, from those of number
/// `first` on.
struct BlockScales {
  Shape shape;  ///< of the quantized tensor; of codes, where it has any
  Shape block;  ///< in its dims; none is 0
  std::uint64_t first = 0;
  DType dtype = DType::kF64;          ///< of `values`: F64, F32, F16, BF16, F8_E4M3 or F8_E8M0
  std::vector<std::byte> values;      ///< no infinity, no NaN
  std::optional<DType> product = {};  ///< that products are rounded to before they are cast; nothing: they are exact
  std::optional<CodeType> code = {};  ///< nothing: elements are 8-bit floats
  std::uint64_t zero = 0;             ///< is subtracted from every code; below 2^16
  /// Are subtracted too: one for each scale, of the codes' kind, a byte each. Empty: none.
  std::vector<std::byte> zeros = {};
  double tensor_scale = 1;  ///< finite and not 0
  TensorScale tensor_scale_is = TensorScale::kFactor;
  /// Not empty: for each code along dim `groups_dim` of `shape`, those of an element side by side, its block in that
  /// dim. Each is one of the blocks; then all of that dim's are there, and elements are codes.
  std::vector<std::uint32_t> groups = {};
  std::size_t groups_dim = 0;
};

/// Of a move out of a quantized tensor: which scale each element is multiplied by.
struct Scaling {
  const BlockScales* scales = nullptr;  ///< stays until the lane has finished
  std::uint64_t first_elem = 0;         ///< of the tensor, where the move begins
  /// How far each loop goes in the tensor, in elements. The buffer may lack what the tensor has between two rows.
  std::span<const std::uint64_t> strides_elems;
  /// Codes of the byte at Move::source that stand in front of the run. Loops step over whole bytes in the source.
  std::uint8_t first_code = 0;
};

/// Runs of elements from host memory to a destination, each cast once, or multiplied by its scale and rounded once.
/// Packed dtypes move as whole bytes.
struct Move {
  const std::byte* source = nullptr;
  std::byte* target = nullptr;
  std::uint64_t run_elems = 0;
  DType from = DType::kF32;
  DType to = DType::kF32;
  std::span<const ByteLoop> loops;  ///< outermost first
  /// Then `to` is a float of 16 bits or more, and `from` an 8-bit float, or of no account where the scales say codes.
  const Scaling* scaling = nullptr;
};

/// A constant, `bits` as bits_of() gives them.
struct Fill {
  std::byte* target = nullptr;
  std::uint64_t elems = 0;
  DType dtype = DType::kF32;
  std::uint64_t bits = 0;
};

/// Elements [first_elem, first_elem + elems) of a tensor's initial value.
struct Sample {
  std::byte* target = nullptr;
  std::uint64_t first_elem = 0;
  std::uint64_t elems = 0;
  DType dtype = DType::kF32;
  SampleParameters parameters;
  RandomKey key;
};

/// Memory of a destination that stands at [global_begin_bytes, …) of its tensor, to be added to an account.
struct DigestJob {
  const std::byte* memory = nullptr;
  std::uint64_t size_bytes = 0;
  std::uint64_t global_begin_bytes = 0;
  std::uint32_t account = 0;
};

/// Digests that many lanes add to. Thread-safe; complete when the lanes have finished.
class DigestAccounts {
 public:
  explicit DigestAccounts(std::size_t count) : sums_(2 * count) {}

  void add(std::uint32_t account, const Digest& digest) {
    for (std::size_t i = 0; i < 2; ++i) {
      sums_[2 * std::size_t{account} + i].fetch_add(digest.lanes[i], std::memory_order_relaxed);
    }
  }
  [[nodiscard]] Digest of(std::size_t account) const { return {{sums_[2 * account], sums_[2 * account + 1]}}; }
  [[nodiscard]] std::size_t count() const { return sums_.size() / 2; }

 private:
  std::vector<std::atomic<std::uint64_t>> sums_;
};

/// Staging buffers begin at a multiple of this, and are longer by it than was asked for: so bytes can stand in a buffer
/// as they stand in their file, and reads past the page cache need not move them.
inline constexpr std::size_t kStagingAlignmentBytes = 4096;

class Lane {
 public:
  virtual ~Lane() = default;

  /// From now on the calling thread works with the lane, until detach(). Optional: it only makes calls cheaper.
  virtual void attach() {}
  virtual void detach() {}

  /// A staging buffer that nothing reads any more, of staging_buffer_bytes and kStagingAlignmentBytes.
  virtual Result<std::span<std::byte>> acquire_staging_buffer() = 0;
  /// The moves from the buffer have been issued; it may be lent again once they are done.
  virtual Result<void> release_staging_buffer() = 0;

  virtual Result<void> move(const Move& move) = 0;
  virtual Result<void> fill(const Fill& fill) = 0;
  virtual Result<void> sample(const Sample& sample) = 0;
  virtual Result<void> digest(const DigestJob& job) = 0;
  /// Copies a destination's memory to the host, after everything that was issued before. Waits for it.
  virtual Result<void> fetch(const std::byte* memory, std::span<std::byte> out) = 0;

  /// Waits until everything that was issued is done, also after an error. Never leaves work behind.
  virtual Result<void> finish() = 0;
};

/// How a lane waits for a device.
enum class Wait : std::uint8_t {
  kSleep,
  kSpin,  ///< sooner back, for threads that have a processor each
};

struct LaneOptions {
  std::size_t staging_buffer_bytes = std::size_t{1} << 20;
  std::size_t staging_buffers = 1;     ///< at most; a lane makes do with fewer
  DigestAccounts* accounts = nullptr;  ///< where digests go; outlives the lane
  Wait wait = Wait::kSleep;
};

class Device {
 public:
  virtual ~Device() = default;

  [[nodiscard]] virtual std::string name() const = 0;  ///< "cpu", "cuda:0"
  /// Whether files can be read straight into destinations.
  [[nodiscard]] virtual bool is_host() const = 0;
  /// Host memory that a lane takes at most.
  [[nodiscard]] virtual std::uint64_t lane_bytes(const LaneOptions& options) const = 0;
  virtual Result<std::unique_ptr<Lane>> open_lane(const LaneOptions& options) = 0;
  /// Whether this is memory of the device, as far as can be told (R34). For one thread at a time.
  [[nodiscard]] virtual Result<void> check(std::span<const std::byte> memory) const = 0;
  /// Memory of the device for who brings none; given back with the last copy of the pointer. An error says how many
  /// bytes are short.
  virtual Result<std::shared_ptr<std::byte>> allocate(std::uint64_t size_bytes) = 0;
  /// Before the first move that is scaled by them. Thread-safe.
  virtual Result<void> take_scales(const BlockScales& scales) = 0;
  /// They were handed to take_scales(), and no lane is at work with them.
  virtual void forget_scales(const BlockScales& scales) = 0;
  /// Adds to the accounts what the lanes have digested; once, when all have finished.
  virtual Result<void> collect_digests() = 0;
  /// What was done in another way than wanted, each once.
  [[nodiscard]] virtual std::vector<std::string> take_notes() = 0;
};

/// The host's memory. Thread-safe; lanes are independent of each other.
[[nodiscard]] std::unique_ptr<Device> host_device();

/// By its name in a plan: "cpu", "cuda:1".
[[nodiscard]] Result<std::unique_ptr<Device>> open_device(std::string_view name);

}  // namespace lading::device
