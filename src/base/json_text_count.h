// How much a JSON text holds, counted before anything is built of it. For json_reader.cc only.
#pragma once

#include <array>
#include <cstddef>
#include <limits>
#include <optional>
#include <string_view>

#include "base/json_reader.h"

namespace lading {

// What a text holds, in one pass that needs no memory. The text may be no JSON: the parser says so later.
class TextCount {
 public:
  TextCount(std::string_view text, const JsonLimits& limits) : text_(text), limits_(limits) {
    const std::size_t more = text.size() / JsonLimits::kBytesPerValue;
    if (limits.max_values < max_values_ - more) max_values_ = limits.max_values + more;
  }

  /// Where there is more than the limits allow; nothing: nowhere.
  [[nodiscard]] std::optional<std::size_t> find_excess() {
    for (std::size_t i = 0; i < text_.size(); ++i) {
      switch (text_[i]) {
        case '"': i = end_of_string(i); break;
        case '{':
        case '[':
          if (++depth_ < members_.size()) members_[depth_] = 1;
          ++values_;
          break;
        case '}':
        case ']': depth_ -= depth_ > 0 ? 1U : 0U; break;
        case ',':
          if (depth_ < members_.size() && ++members_[depth_] > limits_.max_members) return i;
          ++values_;
          break;
        case ':': ++values_; break;
        default: break;
      }
      if (values_ > max_values_) return i;
    }
    return std::nullopt;
  }

  /// Keys and values: no fewer than there are.
  [[nodiscard]] std::size_t values() const { return values_; }

 private:
  [[nodiscard]] std::size_t end_of_string(std::size_t begin) const {
    std::size_t i = begin + 1;
    while (i < text_.size() && text_[i] != '"') i += text_[i] == '\\' ? 2U : 1U;
    return i;
  }

  std::string_view text_;
  const JsonLimits& limits_;
  std::size_t max_values_ = std::numeric_limits<std::size_t>::max();
  std::size_t values_ = 1;
  std::size_t depth_ = 0;
  std::array<std::size_t, JsonDocument::kMaxDepth + 1> members_ = {};  // of the containers that are open
};

}  // namespace lading
