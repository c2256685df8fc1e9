// Result<T, E>: a value or the reason why there is none. No exception crosses a room.
//
// The member names are std::expected's, so that C++23 can replace this file by an alias;
// libstdc++ 12 has no std::expected in C++20 mode.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>

#include "lading/error.h"

namespace lading {

template <class E>
struct Unexpected {
  E error;
};

/// Wraps an error for returning: `return fail(Error(...));`
template <class E>
[[nodiscard]] Unexpected<std::decay_t<E>> fail(E&& error) {
  return {std::forward<E>(error)};
}

template <class T, class E = Error>
class [[nodiscard]] Result {
 public:
  using value_type = T;
  using error_type = E;

  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  template <class G>
  Result(Unexpected<G> failure) : state_(std::in_place_index<1>, std::move(failure.error)) {}

  [[nodiscard]] bool has_value() const noexcept { return state_.index() == 0; }
  explicit operator bool() const noexcept { return has_value(); }

  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  E& error() & { return std::get<1>(state_); }
  const E& error() const& { return std::get<1>(state_); }
  E&& error() && { return std::get<1>(std::move(state_)); }

 private:
  std::variant<T, E> state_;
};

template <class E>
class [[nodiscard]] Result<void, E> {
 public:
  using value_type = void;
  using error_type = E;

  Result() = default;
  template <class G>
  Result(Unexpected<G> failure) : error_(std::move(failure.error)) {}

  [[nodiscard]] bool has_value() const noexcept { return !error_.has_value(); }
  explicit operator bool() const noexcept { return has_value(); }

  E& error() & { return *error_; }
  const E& error() const& { return *error_; }
  E&& error() && { return *std::move(error_); }

 private:
  std::optional<E> error_;
};

namespace internal {
[[noreturn]] inline void check_failed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "lading: internal check failed: %s (%s:%d). This is a bug of lading's; please report it.\n",
               condition, file, line);
  std::abort();
}
}  // namespace internal

}  // namespace lading

#define LADING_CONCAT_INNER(a, b) a##b
#define LADING_CONCAT(a, b) LADING_CONCAT_INNER(a, b)

/// Returns the error of `expression` from the enclosing function, if it has one.
#define LADING_TRY(expression)                                           \
  do {                                                                   \
    if (auto lading_result = (expression); !lading_result.has_value()) { \
      return ::lading::fail(std::move(lading_result).error());           \
    }                                                                    \
  } while (false)

/// `LADING_ASSIGN_OR_RETURN(auto x, f());`: x is the value, or the error is returned.
#define LADING_ASSIGN_OR_RETURN(declaration, expression) \
  LADING_ASSIGN_OR_RETURN_INNER(LADING_CONCAT(lading_result_, __LINE__), declaration, expression)
#define LADING_ASSIGN_OR_RETURN_INNER(result, declaration, expression)       \
  auto result = (expression);                                                \
  if (!result.has_value()) return ::lading::fail(std::move(result).error()); \
  declaration = *std::move(result)

/// For our own bugs only; input never reaches one of these.
#define LADING_CHECK(condition) \
  ((condition) ? static_cast<void>(0) : ::lading::internal::check_failed(#condition, __FILE__, __LINE__))
