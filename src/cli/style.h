// Colour for terminals; the same text without it.
#pragma once

#include <string>
#include <string_view>

#include "cli/command.h"

namespace lading::cli {

class Style {
 public:
  explicit Style(Colour colour) : on_(colour == Colour::kOn) {}

  [[nodiscard]] std::string bold(std::string_view text) const { return paint("1", text); }
  [[nodiscard]] std::string dim(std::string_view text) const { return paint("2", text); }
  [[nodiscard]] std::string red(std::string_view text) const { return paint("31", text); }
  [[nodiscard]] std::string yellow(std::string_view text) const { return paint("33", text); }
  [[nodiscard]] std::string green(std::string_view text) const { return paint("32", text); }

 private:
  [[nodiscard]] std::string paint(std::string_view code, std::string_view text) const {
    if (!on_) return std::string(text);
    return "\x1b[" + std::string(code) + "m" + std::string(text) + "\x1b[0m";
  }

  bool on_;
};

}  // namespace lading::cli
