// InlineVector: a vector of few plain elements, which lie in the object itself. A checkpoint has tens of thousands of
// shapes, and most have one or two dims: as many allocations would be most of the time that planning takes.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

namespace lading::detail {

/// As std::vector, as far as it goes, for at most 2^32 - 1 elements. Up to N of them need no memory beside the object.
template <class T, std::size_t N>
class InlineVector {
  static_assert(std::is_trivially_copyable_v<T> && N > 0);

 public:
  using value_type = T;
  using size_type = std::size_t;
  using difference_type = std::ptrdiff_t;
  using reference = T&;
  using const_reference = const T&;
  using iterator = T*;
  using const_iterator = const T*;

  InlineVector() = default;
  ~InlineVector() = default;
  InlineVector(std::initializer_list<T> elements) { append(elements.begin(), elements.end()); }
  InlineVector(const std::vector<T>& elements) { append(elements.begin(), elements.end()); }
  InlineVector(std::size_t count, const T& value) { assign(count, value); }
  InlineVector(const InlineVector& other) : few_(other.few_) {
    if (other.many_) {
      append(other.begin(), other.end());
    } else {
      size_ = other.size_;
    }
  }
  InlineVector(InlineVector&& other) noexcept
      : size_(std::exchange(other.size_, 0)),
        capacity_(std::exchange(other.capacity_, kInline)),
        few_(other.few_),
        many_(std::move(other.many_)) {}
  InlineVector& operator=(const InlineVector& other) {
    if (this != &other) *this = InlineVector(other);
    return *this;
  }
  InlineVector& operator=(InlineVector&& other) noexcept {
    size_ = std::exchange(other.size_, 0);
    capacity_ = std::exchange(other.capacity_, kInline);
    few_ = other.few_;
    many_ = std::move(other.many_);
    return *this;
  }

  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] bool empty() const { return size_ == 0; }
  [[nodiscard]] T* data() { return many_ ? many_.get() : few_.data(); }
  [[nodiscard]] const T* data() const { return many_ ? many_.get() : few_.data(); }
  [[nodiscard]] iterator begin() { return data(); }
  [[nodiscard]] iterator end() { return data() + size_; }
  [[nodiscard]] const_iterator begin() const { return data(); }
  [[nodiscard]] const_iterator end() const { return data() + size_; }
  [[nodiscard]] T& operator[](std::size_t i) { return data()[i]; }
  [[nodiscard]] const T& operator[](std::size_t i) const { return data()[i]; }
  [[nodiscard]] T& front() { return data()[0]; }
  [[nodiscard]] const T& front() const { return data()[0]; }
  [[nodiscard]] T& back() { return data()[size_ - 1]; }
  [[nodiscard]] const T& back() const { return data()[size_ - 1]; }

  void clear() { size_ = 0; }
  void reserve(std::size_t count) {
    if (count <= capacity_) return;
    auto more = std::make_unique<T[]>(count);
    std::copy(begin(), end(), more.get());
    many_ = std::move(more);
    capacity_ = static_cast<std::uint32_t>(count);
  }
  void push_back(T value) {
    if (size_ == capacity_) reserve(2 * std::size_t{capacity_});
    data()[size_++] = value;
  }
  void pop_back() { --size_; }
  void assign(std::size_t count, const T& value) {
    const T copy = value;  // which may be one of these
    clear();
    reserve(count);
    std::fill_n(data(), count, copy);
    size_ = static_cast<std::uint32_t>(count);
  }
  void resize(std::size_t count) {
    reserve(count);
    if (count > size_) std::fill(end(), data() + count, T{});
    size_ = static_cast<std::uint32_t>(count);
  }
  iterator insert(const_iterator before, T value) {
    const std::ptrdiff_t at = before - begin();
    push_back(value);
    std::rotate(begin() + at, end() - 1, end());
    return begin() + at;
  }
  iterator erase(const_iterator which) {
    T* const at = begin() + (which - begin());
    std::copy(at + 1, end(), at);
    pop_back();
    return at;
  }
  template <class Iterator>
  void append(Iterator first, Iterator last) {
    reserve(size_ + static_cast<std::size_t>(std::distance(first, last)));
    for (; first != last; ++first) data()[size_++] = *first;
  }

  operator std::vector<T>() const { return std::vector<T>(begin(), end()); }

  friend bool operator==(const InlineVector& a, const InlineVector& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  }

 private:
  static constexpr auto kInline = static_cast<std::uint32_t>(N);

  std::uint32_t size_ = 0;
  std::uint32_t capacity_ = kInline;
  std::array<T, N> few_{};
  std::unique_ptr<T[]> many_;  // set: all elements are here
};

}  // namespace lading::detail
