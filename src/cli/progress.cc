#include "cli/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/text.h"

namespace lading::cli {
namespace {

constexpr auto kLineInterval = std::chrono::seconds(5);
constexpr std::size_t kBarWidth = 30;

std::string bar(const LoadProgress& progress) {
  const double share = progress.total_bytes == 0
                           ? 1
                           : static_cast<double>(progress.done_bytes) / static_cast<double>(progress.total_bytes);
  const auto full = static_cast<std::size_t>(std::clamp(share, 0.0, 1.0) * kBarWidth);
  return fmt::format("[{}{}] {:3.0f}%", std::string(full, '#'), std::string(kBarWidth - full, ' '), share * 100);
}

}  // namespace

std::string progress_text(const LoadProgress& progress, double seconds) {
  const double per_second = seconds > 0 ? static_cast<double>(progress.done_bytes) / seconds : 0;
  std::string text = fmt::format("{} of {}  {:.2f} GB/s", human_bytes(progress.done_bytes),
                                 human_bytes(progress.total_bytes), per_second / 1e9);
  if (per_second > 0 && progress.done_bytes < progress.total_bytes) {
    const auto left = std::llround(static_cast<double>(progress.total_bytes - progress.done_bytes) / per_second);
    text += fmt::format("  {}:{:02} left", left / 60, left % 60);
  }
  return text;
}

void ProgressLine::show(const LoadProgress& progress, Clock::time_point now) {
  if (!output_.live) return;
  const double seconds = std::chrono::duration<double>(now - begin_).count();
  if (output_.live_is_terminal) {
    output_.live(fmt::format("\r\x1b[K{}  {}", bar(progress), progress_text(progress, seconds)));
    drawn_ = true;
  } else if (now - last_ >= kLineInterval) {
    output_.live(fmt::format("lading: {}\n", progress_text(progress, seconds)));
    last_ = now;
  }
}

void ProgressLine::clear() {
  if (drawn_) output_.live("\r\x1b[K");
  drawn_ = false;
}

}  // namespace lading::cli
