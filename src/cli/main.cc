#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <string_view>

#include "cli/command.h"

namespace {

using lading::cli::Colour;

// https://no-color.org: set and not empty means no.
Colour colour_of(int descriptor) {
  const char* no_color = std::getenv("NO_COLOR");
  const char* terminal = std::getenv("TERM");
  const bool refused =
      (no_color != nullptr && *no_color != '\0') || (terminal != nullptr && std::string_view(terminal) == "dumb");
  return ::isatty(descriptor) == 1 && !refused ? Colour::kOn : Colour::kOff;
}

bool print(std::string_view text, std::FILE* stream) {
  return std::fwrite(text.data(), 1, text.size(), stream) == text.size() && std::fflush(stream) == 0;
}

std::atomic<bool> interrupted = false;
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler sets it");

// The first signal asks the command to end in order; a second one ends it. docs/exit-codes.md lists the
// signals.
const std::atomic<bool>* catch_signals() {
  struct sigaction action = {};
  action.sa_handler = [](int) { interrupted = true; };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  // nohup ignores SIGHUP for the command, and means it.
  struct sigaction before = {};
  ::sigaction(SIGHUP, nullptr, &before);
  if (before.sa_handler != SIG_IGN) ::sigaction(SIGHUP, &action, nullptr);
  return &interrupted;
}

// At the limit for the size of files, writing then fails with EFBIG: an error with a message, where the signal would
// end the process without a word.
void ignore_file_size_signal() {
  struct sigaction action = {};
  action.sa_handler = SIG_IGN;
  ::sigaction(SIGXFSZ, &action, nullptr);
}

}  // namespace

int main(int argc, char** argv) {
  ignore_file_size_signal();
  try {
    lading::cli::Output output;
    output.out_colour = colour_of(STDOUT_FILENO);
    output.err_colour = colour_of(STDERR_FILENO);
    output.live = [](std::string_view text) { print(text, stderr); };
    output.live_is_terminal = ::isatty(STDERR_FILENO) == 1;
    output.catch_signals = catch_signals;
    const lading::Exit code = lading::cli::run({argv + (argc > 0 ? 1 : 0), argv + argc}, output);
    print(output.err, stderr);
    if (!print(output.out, stdout)) {
      std::perror("lading: writing to standard output");
      return static_cast<int>(lading::Exit::kInternal);
    }
    return static_cast<int>(code);
  } catch (const std::bad_alloc&) {
    std::fputs("lading: out of memory\n", stderr);
    return static_cast<int>(lading::Exit::kCheckpoint);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "lading: a bug: %s\n", error.what());
    return static_cast<int>(lading::Exit::kInternal);
  }
}
