// Files that somebody may be writing to while they are read: they are compared with memory once more (R45).
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>
#include <functional>
#include <string>

#include "exec/random_load_for_tests.h"
#include "io/read_backend.h"
#include "io/writers.h"

namespace lading::exec {
namespace {

constexpr std::time_t kOldSeconds = 100;

std::uint64_t planned_bytes(const RandomLoad& load) {
  std::uint64_t bytes = 0;
  for (const plan::RankPlan& rank : load.plan().ranks) bytes += rank.read_bytes;
  return bytes;
}

// Seeds of loads whose ties are fine and that read something.
std::vector<std::uint64_t> seeds(std::size_t count) {
  std::vector<std::uint64_t> chosen;
  for (std::uint64_t seed = 1; chosen.size() < count; ++seed) {
    RandomLoad load(seed);
    if (planned_bytes(load) > 200 && !load.ties_differ()) chosen.push_back(seed);
  }
  return chosen;
}

void set_age(int descriptor, std::time_t seconds) {
  const timespec time{std::time(nullptr) - seconds, 1};
  const std::array<timespec, 2> times = {time, time};
  ASSERT_EQ(::futimens(descriptor, times.data()), 0);
}

enum class Writer : std::uint8_t { kNone, kMaybe };

// A file of the load as a reader finds it.
Result<io::File> open(const RandomLoad& load, plan::FileId f, Writer writer, std::time_t age_seconds) {
  LADING_ASSIGN_OR_RETURN(const io::File made, load.open(f));
  set_age(made.descriptor(), age_seconds);
  const int again = ::fcntl(made.descriptor(), F_DUPFD_CLOEXEC, 0);
  LADING_ASSIGN_OR_RETURN(io::File file, io::File::adopt(io::Fd(again), made.path()));
  if (writer == Writer::kMaybe) file.doubt();
  return file;
}

// Does something after a read.
class HookedBackend final : public io::ReadBackend {
 public:
  using Hook = std::function<void(const io::File& file, ByteRange read)>;
  explicit HookedBackend(Hook hook) : hook_(std::move(hook)) {}

  [[nodiscard]] std::string_view name() const override { return "hooked"; }
  [[nodiscard]] io::ReadSome read_some(const io::File& file, std::uint64_t offset_bytes, std::span<char> out) override {
    const io::ReadSome got = pread_.read_some(file, offset_bytes, out);
    hook_(file, {offset_bytes, offset_bytes + got.bytes});
    return got;
  }

 private:
  io::PreadBackend pread_;
  Hook hook_;
};

// Of files that were read again. Random scales give notes of their own.
std::size_t notes_of_files(const Outcome& outcome) {
  const auto is_of_scales = [](const std::string& note) { return note.starts_with("scales "); };
  return outcome.notes.size() -
         static_cast<std::size_t>(std::count_if(outcome.notes.begin(), outcome.notes.end(), is_of_scales));
}

Outcome load_with(RandomLoad& load, Writer writer, const HookedBackend::Hook& hook) {
  Inputs inputs = load.inputs();
  inputs.open = [&](plan::FileId f) { return open(load, f, writer, kOldSeconds); };
  HookedBackend backend(hook);
  Options options;
  options.threads = 1;
  options.staging_buffer_bytes = 64;
  options.backend = &backend;
  return execute(inputs, options);
}

void expect_refusal(const Outcome& outcome) {
  ASSERT_FALSE(outcome.errors.empty());
  const Error& error = outcome.errors.front();
  EXPECT_EQ(error.code, Code::kFileChanged) << error.text();
  EXPECT_EQ(error.rule, "R45") << error.text();
  EXPECT_TRUE(error.tensor && error.rank && !error.file.empty()) << error.text();
  EXPECT_TRUE(outcome.begun);
}

TEST(Doubtful, R45_AFileThatStaysAsItIsIsReadTwiceAndLoaded) {
  for (const std::uint64_t seed : seeds(24)) {
    RandomLoad load(seed);
    const std::uint64_t once = load_with(load, Writer::kNone, [](const io::File&, ByteRange) {}).read_bytes;
    const Outcome outcome = load_with(load, Writer::kMaybe, [](const io::File&, ByteRange) {});
    ASSERT_TRUE(outcome.errors.empty()) << outcome.errors.front().text();
    EXPECT_TRUE(load.is_right());
    EXPECT_GT(outcome.read_bytes, once);
    EXPECT_EQ(notes_of_files(outcome), 1U);
  }
}

TEST(Doubtful, AFileWithoutWritersIsReadOnce) {
  for (const std::uint64_t seed : seeds(8)) {
    RandomLoad load(seed);
    const Outcome outcome = load_with(load, Writer::kNone, [](const io::File&, ByteRange) {});
    EXPECT_TRUE(outcome.errors.empty());
    EXPECT_EQ(notes_of_files(outcome), 0U);
  }
}

// The file that is opened next has another byte, and the same size and mtime: a write that went on meanwhile.
TEST(Doubtful, R45_AWriteThatShowsOnlyInTheBytesIsFound) {
  int refused = 0;
  for (const std::uint64_t seed : seeds(48)) {
    RandomLoad load(seed);
    const plan::Source& source = load.plan().sources[plan::SourceId(seed % load.plan().sources.size())];
    if (source.bytes.size_bytes() == 0) continue;
    const std::uint64_t place = source.bytes.begin + seed % source.bytes.size_bytes();
    bool written = false;
    const Outcome outcome = load_with(load, Writer::kMaybe, [&](const io::File& file, ByteRange read) {
      if (written || file.path() != load.plan().files[source.file].name) return;
      if (place < read.begin || place >= read.end) return;
      load.file(source.file)[place] ^= std::byte{1};
      written = true;
    });
    if (outcome.errors.empty()) {
      EXPECT_TRUE(load.is_right()) << "a byte that nobody needed, or nobody read";
      continue;
    }
    expect_refusal(outcome);
    ++refused;
  }
  EXPECT_GT(refused, 15);
}

TEST(Doubtful, R45_ANewCtimeAloneIsNoChange) {
  RandomLoad load(seeds(1).front());
  const Outcome outcome = load_with(
      load, Writer::kNone, [](const io::File& file, ByteRange) { ASSERT_EQ(::fchmod(file.descriptor(), 0600), 0); });
  ASSERT_TRUE(outcome.errors.empty()) << outcome.errors.front().text();
  EXPECT_TRUE(load.is_right());
  EXPECT_EQ(outcome.notes.size(), 1U) << "read them twice";
}

TEST(Doubtful, R45_AWriteWithItsMtimePutBackIsFound) {
  RandomLoad load(seeds(1).front());
  const Outcome outcome = load_with(load, Writer::kNone, [&](const io::File& file, ByteRange read) {
    for (const plan::FileId f : load.plan().files.ids()) {
      if (file.path() == load.plan().files[f].name) load.file(f)[read.begin] ^= std::byte{1};
    }
    ASSERT_EQ(::fchmod(file.descriptor(), 0600), 0);
  });
  expect_refusal(outcome);
}

TEST(Doubtful, R45_AYoungFileIsWaitedForButNotForLong) {
  RandomLoad load(seeds(1).front());
  Inputs inputs = load.inputs();
  inputs.open = [&](plan::FileId f) { return open(load, f, Writer::kMaybe, -3600); };  // another machine's clock
  const auto begin = std::chrono::steady_clock::now();
  const Outcome outcome = execute(inputs, {});
  const auto taken = std::chrono::steady_clock::now() - begin;
  EXPECT_TRUE(outcome.errors.empty()) << "no file is refused for its age";
  EXPECT_TRUE(load.is_right());
  EXPECT_GE(taken, io::kWriteTime);
  EXPECT_LT(taken, 2 * io::kWriteTime);
}

TEST(Doubtful, WaitingEndsWhenTheLoadIsCancelled) {
  RandomLoad load(seeds(1).front());
  Inputs inputs = load.inputs();
  inputs.open = [&](plan::FileId f) { return open(load, f, Writer::kMaybe, -3600); };
  std::atomic<bool> cancelled = false;
  Options options;
  options.cancelled = &cancelled;
  int calls = 0;
  options.progress = [&](const Progress&) { cancelled = ++calls > 2; };
  const auto begin = std::chrono::steady_clock::now();
  const Outcome outcome = execute(inputs, options);
  ASSERT_FALSE(outcome.errors.empty());
  EXPECT_EQ(outcome.errors.front().code, Code::kCancelled);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, io::kWriteTime);
}

}  // namespace
}  // namespace lading::exec
