// Loads and stores of kernels: by address, in words of 1 to 16 bytes.
//
// A GPU faults where a word is not aligned to its size. On the host, where tests run the same code, such a word traps.
#pragma once

#include <cstdint>

#include "device/host_and_gpu.h"

namespace lading::device::cuda {

/// 16 bytes, moved by one instruction.
using Words4 = std::uint32_t __attribute__((vector_size(16)));

template <unsigned kBytes>
struct WordOf;
template <>
struct WordOf<1> {
  using Type = std::uint8_t;
};
template <>
struct WordOf<2> {
  using Type = std::uint16_t;
};
template <>
struct WordOf<4> {
  using Type = std::uint32_t;
};
template <>
struct WordOf<8> {
  using Type = std::uint64_t;
};
template <>
struct WordOf<16> {
  using Type = Words4;
};

/// The word of so many bytes.
template <unsigned kBytes>
using Word = typename WordOf<kBytes>::Type;

template <class T>
[[nodiscard]] LADING_BOTH inline T load(std::uint64_t address) {
#ifdef __CUDA_ARCH__
  return *reinterpret_cast<const __attribute__((address_space(1))) T*>(address);
#else
  if (address % sizeof(T) != 0) __builtin_trap();
  T value;
  __builtin_memcpy(&value, reinterpret_cast<const void*>(address), sizeof(T));
  return value;
#endif
}

template <class T>
LADING_BOTH inline void store(std::uint64_t address, T value) {
#ifdef __CUDA_ARCH__
  *reinterpret_cast<__attribute__((address_space(1))) T*>(address) = value;
#else
  if (address % sizeof(T) != 0) __builtin_trap();
  __builtin_memcpy(reinterpret_cast<void*>(address), &value, sizeof(T));
#endif
}

/// An element of 1, 2, 4 or 8 bytes, little-endian, at any address.
[[nodiscard]] LADING_BOTH inline std::uint64_t load_element(std::uint64_t address, unsigned bytes) {
  if (address % bytes == 0) {
    switch (bytes) {
      case 1: return load<std::uint8_t>(address);
      case 2: return load<std::uint16_t>(address);
      case 4: return load<std::uint32_t>(address);
      default: return load<std::uint64_t>(address);
    }
  }
  std::uint64_t value = 0;
  for (unsigned i = 0; i < bytes; ++i) value |= std::uint64_t{load<std::uint8_t>(address + i)} << (8 * i);
  return value;
}

LADING_BOTH inline void store_element(std::uint64_t address, unsigned bytes, std::uint64_t value) {
  if (address % bytes == 0) {
    switch (bytes) {
      case 1: return store(address, static_cast<std::uint8_t>(value));
      case 2: return store(address, static_cast<std::uint16_t>(value));
      case 4: return store(address, static_cast<std::uint32_t>(value));
      default: return store(address, value);
    }
  }
  for (unsigned i = 0; i < bytes; ++i) store(address + i, static_cast<std::uint8_t>(value >> (8 * i)));
}

/// Which of how many threads this is. Grids have less than 2^24 blocks.
struct ThreadPlace {
  std::uint32_t thread;
  std::uint32_t threads;
};

}  // namespace lading::device::cuda
