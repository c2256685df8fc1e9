// GPU memory for the bench, through a CUDA driver that is found at run time. Shares no code with src/device/cuda, so
// that what it reads back is another pair of eyes.
//
// One context, the primary one of GPU 0, as frameworks have it. Every thread that calls these functions must have
// called bind_thread() first. Thread-safe after open().
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "lading/result.h"

namespace lading::bench {

class Cuda {
 public:
  using Stream = void*;

  /// Finds the driver and makes the context; the error says what is missing.
  static Result<Cuda, std::string> open();

  void bind_thread() const;
  [[nodiscard]] std::string device_name() const;
  [[nodiscard]] int driver_version() const;  ///< 13000 is 13.0

  [[nodiscard]] std::byte* allocate(std::size_t size_bytes) const;  ///< null: no room
  void fill(std::span<std::byte> device, unsigned char value) const;
  void to_host(std::span<std::byte> host, const std::byte* device) const;
  void to_device(std::byte* device, std::span<const std::byte> host) const;
  void to_device_async(std::byte* device, std::span<const std::byte> host, Stream stream) const;
  [[nodiscard]] Stream make_stream() const;
  void synchronise(Stream stream) const;
  void synchronise() const;                     ///< the whole device
  void pin(std::span<std::byte> memory) const;  ///< registers memory that is there
  void unpin(std::span<std::byte> memory) const;

 private:
  struct Calls;
  explicit Cuda(const Calls* calls, void* context) : calls_(calls), context_(context) {}

  const Calls* calls_;
  void* context_;
};

}  // namespace lading::bench
