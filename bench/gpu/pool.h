// Where the bench's destinations lie: memory of the GPU or of the host, allocated before the load, as a framework does.
#pragma once

#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "device/slab.h"
#include "gpu/cuda_memory.h"

namespace lading::bench {

/// Hands memory out piece by piece. `cuda` null: memory of the host.
class Pool {
 public:
  static Result<Pool, std::string> allocate(const Cuda* cuda, std::size_t size_bytes) {
    Pool pool(cuda);
    if (cuda == nullptr) {
      auto slab = device::Slab::allocate(size_bytes);
      if (!slab) return fail(slab.error().text());
      pool.slab_ = std::move(*slab);
      pool.bytes_ = pool.slab_.bytes();
    } else {
      std::byte* memory = cuda->allocate(size_bytes);
      if (memory == nullptr) return fail(std::string("the GPU has no room for the tensors"));
      pool.bytes_ = {memory, size_bytes};
    }
    return pool;
  }

  /// Everything is handed out anew, and holds nothing that could pass for a tensor.
  void reset() {
    used_bytes_ = 0;
    if (cuda_ != nullptr) {
      cuda_->fill(bytes_, kPoison);
    } else {
      std::memset(bytes_.data(), kPoison, bytes_.size());
    }
  }

  std::optional<std::span<std::byte>> take(std::size_t size_bytes) {
    const std::size_t begin = used_bytes_;
    if (size_bytes > bytes_.size() - begin) return std::nullopt;
    const std::size_t end = (begin + size_bytes + kAlignBytes - 1) / kAlignBytes * kAlignBytes;
    used_bytes_ = end < bytes_.size() ? end : bytes_.size();
    return bytes_.subspan(begin, size_bytes);
  }

  /// PyTorch aligns to as much.
  static constexpr std::size_t kAlignBytes = 512;

 private:
  static constexpr unsigned char kPoison = 0xA5;

  explicit Pool(const Cuda* cuda) : cuda_(cuda) {}

  const Cuda* cuda_;
  device::Slab slab_;
  std::span<std::byte> bytes_;
  std::size_t used_bytes_ = 0;
};

}  // namespace lading::bench
