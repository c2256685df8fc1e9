// What stands beside the weights of a checkpoint and goes with them: config, tokenizer, code.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/anchor.h"
#include "io/new_directory.h"
#include "lading/result.h"

namespace lading {

inline constexpr std::string_view kConfigName = "config.json";

/// Names of the files that go with the weights, but for config.json and code.
[[nodiscard]] std::span<const std::string_view> beside_names();

enum class CopyCode : std::uint8_t { kNo, kYes };

class BesideFiles {
 public:
  /// `folder` is relative to the anchor, which is borrowed. Links count as the files that they lead to.
  BesideFiles(const io::Anchor& anchor, std::string folder) : anchor_(anchor), folder_(std::move(folder)) {}

  /// The text of config.json or of a file like it; nothing if there is none.
  [[nodiscard]] Result<std::optional<std::string>> config(std::string_view name = kConfigName) const;
  /// The files of known names that are there, and those of Python code if they are wanted. A link that leads outside
  /// the anchor is an error.
  [[nodiscard]] Result<std::vector<std::string>> find(CopyCode code) const;
  [[nodiscard]] Result<void> copy(const std::vector<std::string>& names, const io::NewDirectory& directory) const;

 private:
  [[nodiscard]] std::string relative(std::string_view name) const;

  const io::Anchor& anchor_;
  std::string folder_;
};

}  // namespace lading
