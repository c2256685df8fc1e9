// Random plans of saves, carried out: every byte of every file is the one that the oracle has. In host memory, and on
// GPUs or the stand-in for them; with staging buffers so small that everything is cut.
#include "exec/save/write_files.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "planner/tests/save_world_for_tests.h"
#include "support/gpu.h"

namespace lading::exec {
namespace {

using planner::SaveWorld;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<std::byte> bytes_of_labels(const std::vector<std::int64_t>& labels) {
  std::vector<std::byte> bytes(2 * labels.size());
  for (std::size_t i = 0; i < labels.size(); ++i) {
    const auto label = static_cast<std::uint16_t>(labels[i]);
    std::memcpy(bytes.data() + 2 * i, &label, 2);
  }
  return bytes;
}

// A plan, the memory of all its ranks, and files in memory.
class SaveRun {
 public:
  SaveRun(const SaveWorld& world, plan::SavePlan plan, const std::vector<std::string>& devices,
          MemoryPlace place = MemoryPlace::kAsPlanned)
      : plan_(std::move(plan)) {
    for (const plan::PlannedFile& file : plan_.load.files) {
      files_.push_back(io::Fd(::memfd_create("shard", MFD_CLOEXEC)));
      EXPECT_EQ(::ftruncate(files_.back().get(), static_cast<off_t>(file.size_bytes)), 0);
    }
    for (std::size_t r = 0; r < plan_.load.ranks.size(); ++r) {
      plan::RankPlan& rank = plan_.load.ranks[r];
      memory_.emplace_back();
      for (plan::Destination& d : rank.destinations) {
        d.device = devices[r % devices.size()];
        memory_.back().push_back(put(place == MemoryPlace::kHost ? "cpu" : d.device,
                                     bytes_of_labels(world.memory_of(plan_.load, d, rank.rank))));
      }
    }
  }

  SaveOutcome run(const SaveOptions& options) {
    SaveInputs inputs{plan_, {}, memory_, {}};
    for (std::uint32_t r = 0; r < plan_.ranks.size(); ++r) inputs.ranks.push_back(r);
    inputs.open = [this](plan::FileId file) -> Result<OutputFile> {
      return OutputFile{io::Fd(::dup(broken_ ? broken_->get() : files_[file.number()].get())),
                        plan_.load.files[file].name};
    };
    return write_files(inputs, options);
  }

  void break_files(const char* path, int flags) { broken_.emplace(::open(path, flags | O_CLOEXEC)); }

  // Of a key, as its file has it.
  [[nodiscard]] std::vector<std::byte> read(const plan::Source& source) const {
    std::vector<std::byte> bytes(source.bytes.size_bytes());
    const auto file = io::File::adopt(io::Fd(::dup(files_[source.file.number()].get())), "shard");
    EXPECT_TRUE(file->read_exact(source.bytes.begin, {reinterpret_cast<char*>(bytes.data()), bytes.size()}));
    return bytes;
  }

  [[nodiscard]] const plan::SavePlan& plan() const { return plan_; }

 private:
  DestinationMemory put(const std::string& device, const std::vector<std::byte>& bytes) {
    auto& opened = devices_[device];
    if (opened == nullptr) opened = *device::open_device(device);
    memories_.push_back(*opened->allocate(bytes.size()));
    if (!bytes.empty()) {
      const auto lane = *opened->open_lane({4096, 1, nullptr});
      EXPECT_TRUE(lane->move({bytes.data(), memories_.back().get(), bytes.size(), DType::kU8, DType::kU8, {}}));
      EXPECT_TRUE(lane->finish());
    }
    return {memories_.back().get(), bytes.size(), false};
  }

  plan::SavePlan plan_;
  std::vector<io::Fd> files_;
  std::optional<io::Fd> broken_;
  std::map<std::string, std::unique_ptr<device::Device>> devices_;
  std::vector<std::shared_ptr<std::byte>> memories_;
  std::vector<std::vector<DestinationMemory>> memory_;
};

// The first worlds that can be saved, from this seed on.
std::pair<SaveWorld, plan::SavePlan> next_world(std::uint64_t& seed) {
  for (;; ++seed) {
    SaveWorld world(seed);
    auto made = world.plan();
    if (!made) continue;
    ++seed;
    return {std::move(world), std::move(made->plan)};
  }
}

void save_worlds(const std::vector<std::string>& devices, int count, MemoryPlace place = MemoryPlace::kAsPlanned) {
  std::uint64_t seed = 0;
  for (int i = 0; i < count && !::testing::Test::HasFailure(); ++i) {
    auto [world, plan] = next_world(seed);
    SaveRun run(world, std::move(plan), devices, place);
    SaveOptions options;
    options.memory = place;
    options.threads = 1 + static_cast<std::uint32_t>(i % 3);
    options.staging_buffer_bytes = std::vector<std::uint64_t>{16, 64, 4096}[static_cast<std::size_t>(i) % 3];
    options.sync = Sync::kNo;
    const SaveOutcome outcome = run.run(options);
    ASSERT_TRUE(outcome.errors.empty()) << "world " << seed << ": " << outcome.errors.front().text();
    const auto wanted = world.wanted();
    std::map<std::uint32_t, const WrittenKey*> written;
    for (const WrittenKey& key : outcome.keys) written[key.source.number()] = &key;
    for (const plan::SourceId id : run.plan().load.sources.ids()) {
      const plan::Source& source = run.plan().load.sources[id];
      std::vector<std::int64_t> labels;
      for (const auto& label : wanted.at(source.key)) labels.push_back(*label);
      const auto bytes = bytes_of_labels(labels);
      ASSERT_EQ(run.read(source), bytes) << "world " << seed << ", key " << source.key;
      if (bytes.empty()) continue;
      ASSERT_EQ(written.at(id.number())->bytes, bytes.size());
      ASSERT_EQ(written.at(id.number())->digest, device::digest_of(bytes, 0)) << "world " << seed;
    }
  }
}

TEST(WriteFiles, R69_EveryByteIsTheOraclesFromHostMemory) { save_worlds({"cpu"}, 1500); }

TEST(WriteFiles, R69_EveryByteIsTheOraclesFromGpus) {
  const std::vector<std::string> gpus = test::gpus();
  if (gpus.empty()) GTEST_SKIP() << "neither a GPU nor the stand-in for the driver";
  save_worlds(gpus, 150);
}

TEST(WriteFiles, R69_EveryByteIsTheOraclesFromACopyInHostMemory) {
  // The plan is one of a GPU's memory, which nobody opens here.
  save_worlds({"cuda:77"}, 150, MemoryPlace::kHost);
}

TEST(WriteFiles, Fault47_AFullDiskIsAnErrorThatNamesTheFile) {
  std::uint64_t seed = 3;
  auto [world, plan] = next_world(seed);
  SaveRun run(world, std::move(plan), {"cpu"});
  run.break_files("/dev/full", O_WRONLY);
  const SaveOutcome outcome = run.run({});
  ASSERT_FALSE(outcome.errors.empty());
  EXPECT_EQ(outcome.errors.front().code, Code::kWriteFailed);
  EXPECT_THAT(outcome.errors.front().text(), AllOf(HasSubstr("No space left"), HasSubstr(".safetensors")));
}

TEST(WriteFiles, AFileThatCannotBeWrittenIsAnError) {
  std::uint64_t seed = 3;
  auto [world, plan] = next_world(seed);
  SaveRun run(world, std::move(plan), {"cpu"});
  run.break_files("/dev/null", O_RDONLY);
  const SaveOutcome outcome = run.run({});
  ASSERT_FALSE(outcome.errors.empty());
  EXPECT_THAT(outcome.errors.front().text(), HasSubstr("Bad file descriptor"));
}

TEST(WriteFiles, ACancelledSaveWritesNoMore) {
  std::uint64_t seed = 3;
  auto [world, plan] = next_world(seed);
  SaveRun run(world, std::move(plan), {"cpu"});
  const std::atomic<bool> cancelled = true;
  SaveOptions options;
  options.cancelled = &cancelled;
  const SaveOutcome outcome = run.run(options);
  ASSERT_FALSE(outcome.errors.empty());
  EXPECT_EQ(outcome.errors.front().code, Code::kCancelled);
}

}  // namespace
}  // namespace lading::exec
