// Progress of a load on standard error: a bar that redraws itself on a terminal, a line every five seconds elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "cli/command.h"
#include "lading/load.h"

namespace lading::cli {

class ProgressLine {
 public:
  using Clock = std::chrono::steady_clock;

  explicit ProgressLine(const Output& output) : output_(output), begin_(Clock::now()), last_(begin_) {}

  void show(const LoadProgress& progress, Clock::time_point now);
  /// Takes the bar away.
  void clear();

 private:
  const Output& output_;
  Clock::time_point begin_;
  Clock::time_point last_;
  bool drawn_ = false;
};

/// "12.3 GB of 16.1 GB  4.10 GB/s  0:03 left"
[[nodiscard]] std::string progress_text(const LoadProgress& progress, double seconds);

}  // namespace lading::cli
