// What a fuzzer is given, taken apart: a byte each choice, and the rest.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace lading::fuzz {

class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}
  std::uint8_t byte() { return at_ < size_ ? data_[at_++] : 0; }
  std::uint64_t below(std::uint64_t bound) { return byte() % bound; }
  bool once_in(std::uint64_t bound) { return below(bound) == 0; }
  template <class T, std::size_t N>
  const T& any(const std::array<T, N>& choices) {
    return choices[byte() % N];
  }
  [[nodiscard]] std::string_view rest() const { return {reinterpret_cast<const char*>(data_ + at_), size_ - at_}; }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
  std::size_t at_ = 0;
};

}  // namespace lading::fuzz
