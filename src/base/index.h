// Index<Tag>: the number of an element in one kind of vector, so that the compiler tells files from sources from
// statements. IndexedVector<Id, T>: a vector that is asked by such a number only.
//
//   using SourceId = Index<struct SourceTag>;
//   IndexedVector<SourceId, Source> sources;
//   sources[transfer.source]          // a SourceId
//   sources[transfer.file]            // does not compile
//   for (const SourceId s : sources.ids()) …
//
// An index takes four bytes, as plans hold millions of them, and may be none(): an optional would take eight.
#pragma once

#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <vector>

namespace lading {

template <typename Tag>
class Index {
 public:
  /// None.
  constexpr Index() = default;
  template <std::unsigned_integral Number>
  explicit constexpr Index(Number number) : number_(static_cast<std::uint32_t>(number)) {}
  /// A number that stands in the code needs no cast: nobody mixes it up with a variable.
  template <std::same_as<int> Literal>
  // NOLINTNEXTLINE(google-explicit-constructor)
  consteval Index(Literal literal) : number_(static_cast<std::uint32_t>(literal)) {}

  [[nodiscard]] static constexpr Index none() { return {}; }
  [[nodiscard]] constexpr bool is_none() const { return number_ == kNone; }
  /// For arithmetic, and for what has no index type. Not of none().
  [[nodiscard]] constexpr std::uint32_t number() const { return number_; }

  constexpr Index& operator++() {
    ++number_;
    return *this;
  }
  friend constexpr bool operator==(Index, Index) = default;
  /// none() comes last.
  friend constexpr std::strong_ordering operator<=>(Index a, Index b) { return a.number_ <=> b.number_; }

 private:
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
  std::uint32_t number_ = kNone;
};

/// The indices 0, 1, …, size - 1.
template <typename Id>
class Ids {
 public:
  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = Id;
    using difference_type = std::ptrdiff_t;
    using pointer = const Id*;
    using reference = Id;

    constexpr explicit Iterator(Id at) : at_(at) {}
    constexpr Id operator*() const { return at_; }
    constexpr Iterator& operator++() {
      ++at_;
      return *this;
    }
    friend constexpr bool operator==(const Iterator&, const Iterator&) = default;

   private:
    Id at_;
  };

  constexpr explicit Ids(std::size_t size) : size_(size) {}
  [[nodiscard]] constexpr Iterator begin() const { return Iterator(Id(std::size_t{0})); }
  [[nodiscard]] constexpr Iterator end() const { return Iterator(Id(size_)); }

 private:
  std::size_t size_;
};

template <typename Id, typename T>
class IndexedVector : public std::vector<T> {
  using Base = std::vector<T>;

 public:
  using Base::Base;

  typename Base::reference operator[](Id id) { return Base::operator[](id.number()); }
  typename Base::const_reference operator[](Id id) const { return Base::operator[](id.number()); }
  [[nodiscard]] bool has(Id id) const { return id.number() < Base::size(); }
  [[nodiscard]] Ids<Id> ids() const { return Ids<Id>(Base::size()); }
  /// Of an element of this vector.
  [[nodiscard]] Id id_of(const T& element) const { return Id(static_cast<std::size_t>(&element - Base::data())); }
};

}  // namespace lading
