// The command `lading`, as a function of its arguments: tests call it without a process.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lading/error.h"

namespace lading::cli {

enum class Colour { kOff, kOn };

/// What a command writes to, and how. Data goes to out, words for people to err.
struct Output {
  std::string out;
  std::string err;
  std::string topics;  ///< of the first problem that was told, for `lading help`: "header_overlap R45"
  Colour out_colour = Colour::kOff;
  Colour err_colour = Colour::kOff;
  /// Writes to standard error at once, for progress; nothing: progress is not shown.
  std::function<void(std::string_view)> live;
  bool live_is_terminal = false;
  /// From now on SIGINT and SIGTERM set what it answers instead of ending the process; nothing: they end it.
  std::function<const std::atomic<bool>*()> catch_signals;
};

/// `arguments` without the program's name. Returns the exit code (docs/exit-codes.md).
Exit run(const std::vector<std::string>& arguments, Output& output);

}  // namespace lading::cli
