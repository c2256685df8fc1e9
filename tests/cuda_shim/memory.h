// The memory of the pretended GPUs, and host memory that was registered with them.
//
// A device address is a number for the host: behind it lie pages that nobody may touch. What the GPU keeps there is in
// an alias, memory of the stand-in's own between guard pages. Registered host memory has an address of its own for the
// GPU, other than the host's: a driver may do so. Thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cuda_shim/config.h"

namespace lading::cuda_shim {

inline constexpr std::uint64_t kPageBytes = 4096;
inline constexpr int kAnyGpu = -1;
inline constexpr std::byte kFreshByte{0xCD};

/// Pages between two guards. Move-only.
class Pages {
 public:
  enum class Use : std::uint8_t { kForbidden, kReadWrite };

  Pages() = default;
  Pages(std::uint64_t size_bytes, Use use);
  Pages(Pages&& other) noexcept;
  Pages& operator=(Pages&& other) noexcept;
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  ~Pages();

  [[nodiscard]] std::byte* begin() const;

 private:
  std::byte* mapping_ = nullptr;
  std::uint64_t mapped_bytes_ = 0;
};

/// A device allocation, or registered host memory.
struct Region {
  Address address = 0;  ///< in the GPU's view
  std::uint64_t size_bytes = 0;
  std::byte* bytes = nullptr;  ///< where the stand-in finds it
  int gpu = kAnyGpu;           ///< that can reach it
  int owner = kAnyGpu;         ///< in whose context it was made
  enum class Kind : std::uint8_t { kDevice, kRegistered } kind = Kind::kDevice;
  bool mapped = true;                    ///< kernels may read it
  std::atomic<std::uint64_t> in_use{0};  ///< operations issued and not done
  Pages forbidden;
  Pages alias;

  [[nodiscard]] std::string text() const;
};

/// Whether all of these bytes are the region's.
[[nodiscard]] bool holds(const Region& region, Address address, std::uint64_t size_bytes);

struct Registration {
  void* memory = nullptr;
  std::uint64_t size_bytes = 0;
  int gpu = kAnyGpu;
  int owner = kAnyGpu;
  bool mapped = false;
};

class Memory {
 public:
  std::shared_ptr<Region> allocate(int gpu, std::uint64_t size_bytes);
  std::shared_ptr<Region> register_host(const Registration& wanted);
  /// Those are null where nothing begins there.
  std::shared_ptr<Region> take(Address address);
  std::shared_ptr<Region> take_registered(const void* memory);

  /// The region that holds all of it and that this GPU can reach, or null.
  [[nodiscard]] std::shared_ptr<Region> find(int gpu, Address address, std::uint64_t size_bytes) const;
  /// The registered region that holds this host address.
  [[nodiscard]] std::shared_ptr<Region> find_registered(const void* memory) const;
  /// Whether any page of it is registered.
  [[nodiscard]] bool is_registered(const void* memory, std::uint64_t size_bytes) const;
  [[nodiscard]] std::uint64_t allocated_bytes(int gpu) const;
  [[nodiscard]] std::uint64_t registered_bytes() const;
  [[nodiscard]] std::vector<std::shared_ptr<Region>> all() const;
  void clear();

 private:
  mutable std::mutex mutex_;
  std::map<Address, std::shared_ptr<Region>> regions_;
};

/// Whether something wrote beside the region's bytes, on its last page.
[[nodiscard]] bool is_overrun(const Region& region);

}  // namespace lading::cuda_shim
