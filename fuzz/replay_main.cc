// Runs a fuzz target without libFuzzer:
//
//   fuzz_TARGET PATH...                                 each file, and the files of each folder
//   fuzz_TARGET --changed N --seed S --into FOLDER PATH...
//                                   and then N inputs, each a few random changes away from one of them
//
// The second form does not learn from coverage, and is some 30 times as fast: libFuzzer finds the inputs, this goes
// through what lies near them. An input that crashes, breaks a promise of the target, or takes more than 10 seconds is
// written into FOLDER. Fails if it ran nothing.
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

constexpr std::size_t kLongest = 512;
constexpr unsigned kSecondsPerInput = 10;

void read_inputs(const std::filesystem::path& path, std::vector<std::string>& inputs) {
  if (std::filesystem::is_directory(path)) {
    for (const auto& entry : std::filesystem::directory_iterator(path)) read_inputs(entry.path(), inputs);
    return;
  }
  std::ifstream in(path, std::ios::binary);
  inputs.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
}

void run(const std::string& input) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(input.data()), input.size());
}

class Changer {
 public:
  Changer(const std::vector<std::string>& inputs, std::uint64_t seed) : inputs_(inputs), random_(seed) {}

  std::string make() {
    std::string input = any_input();
    for (std::uint64_t edits = 1 + below(6); edits > 0; --edits) edit(input);
    if (input.size() > kLongest) input.resize(kLongest);
    return input;
  }

 private:
  std::uint64_t below(std::uint64_t bound) { return random_() % bound; }
  const std::string& any_input() { return inputs_[below(inputs_.size())]; }

  void edit(std::string& input) {
    const std::size_t at = below(input.size() + 1);
    const std::size_t length = std::min<std::size_t>(1 + below(8), input.size() - at);
    const std::string& other = any_input();
    switch (below(6)) {
      case 0: input.insert(at, 1, static_cast<char>(below(256))); break;
      case 1: input.erase(at, length); break;
      case 2: input = input.substr(0, at) + other.substr(std::min(other.size(), below(other.size() + 1))); break;
      case 3: input.insert(at, input.substr(below(input.size() + 1), 1 + below(16))); break;
      default:
        if (at == input.size()) break;
        input[at] =
            static_cast<char>(below(2) == 0 ? static_cast<std::uint64_t>(input[at]) ^ (1U << below(8)) : below(256));
    }
  }

  const std::vector<std::string>& inputs_;
  std::mt19937_64 random_;
};

// For the signal handler.
const std::string* current = nullptr;
std::string crash_path;

extern "C" void write_current(int signal) {
  if (std::FILE* out = std::fopen(crash_path.c_str(), "wb")) {  // not async-signal-safe; the process ends here anyway
    std::fwrite(current->data(), 1, current->size(), out);
    std::fclose(out);
  }
  std::fprintf(stderr, "signal %d; the input is in %s\n", signal, crash_path.c_str());
  std::_Exit(1);
}

void run_changed(const std::vector<std::string>& inputs, std::uint64_t count, std::uint64_t seed) {
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGALRM}) std::signal(signal, write_current);
  Changer changer(inputs, seed);
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::string input = changer.make();
    current = &input;
    ::alarm(kSecondsPerInput);
    run(input);
  }
  ::alarm(0);
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> inputs;
  std::uint64_t changed = 0;
  std::uint64_t seed = 0;
  std::string folder = ".";
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    const bool is_option = i + 1 < argc;
    if (word == "--changed" && is_option) {
      changed = std::strtoull(argv[++i], nullptr, 10);
    } else if (word == "--seed" && is_option) {
      seed = std::strtoull(argv[++i], nullptr, 10);
    } else if (word == "--into" && is_option) {
      folder = argv[++i];
    } else {
      read_inputs(argv[i], inputs);
    }
  }
  for (const std::string& input : inputs) run(input);
  std::printf("%zu inputs replayed\n", inputs.size());
  if (inputs.empty()) return 1;
  crash_path = folder + "/crash-" + std::to_string(seed);
  run_changed(inputs, changed, seed);
  if (changed > 0) std::printf("%llu changed inputs run\n", static_cast<unsigned long long>(changed));
  return 0;
}
