#include "doctor/findings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

namespace lading::doctor {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using enum FindingLevel;

constexpr std::uint64_t kGigabyte = 1'000'000'000;

// A machine on which nothing is slow.
Facts good_machine() {
  Facts facts;
  facts.machine.kernel = {6, 6};
  facts.machine.uring = {true, 0, 0};
  facts.machine.memlock_bytes = {std::nullopt, std::nullopt};
  facts.machine.open_files = {1024, 1024};
  facts.machine.huge_pages = io::HugePages::kMadvise;
  facts.machine.memory = {64 * kGigabyte, 60 * kGigabyte, std::nullopt, 0};
  facts.machine.cpus = {16, 16, std::nullopt};
  facts.place = {io::FileSystem::kExt, "ext4", io::TriedOn::kTemporary, 0};
  facts.gpus.driver = "13.0";
  facts.gpus.gpus.push_back({0, "NVIDIA H200", 90, 140 * kGigabyte, 139 * kGigabyte, true});
  return facts;
}

Finding find(const Facts& facts, std::string_view id) {
  const auto findings = diagnose(facts);
  const auto found =
      std::find_if(findings.begin(), findings.end(), [&](const Finding& finding) { return finding.id == id; });
  return found == findings.end() ? Finding{"not there", kUnknown, "", "", ""} : *found;
}

std::vector<std::string> ids(const std::vector<Finding>& findings) {
  std::vector<std::string> all;
  all.reserve(findings.size());
  for (const Finding& finding : findings) all.push_back(finding.id);
  return all;
}

TEST(Doctor, AGoodMachineIsGood) {
  const auto findings = diagnose(good_machine());
  EXPECT_THAT(ids(findings), ElementsAre("driver", "gpu:0", "file_system", "o_direct", "io_uring", "memory",
                                         "huge_pages", "cpus", "memlock", "open_files"));
  for (const Finding& finding : findings) {
    EXPECT_EQ(finding.level, kGood) << finding.id;
    EXPECT_NE(finding.found, "") << finding.id;
    EXPECT_EQ(finding.cost, "") << finding.id;
    EXPECT_EQ(finding.remedy, "") << finding.id;
  }
  EXPECT_THAT(findings[1].found, HasSubstr("NVIDIA H200, compute capability 9.0, 139.00 GB of 140.00 GB free"));
}

TEST(Doctor, NoGpuIsMissingAndSaysWhy) {
  Facts facts = good_machine();
  facts.gpus = {"", "no driver", {}};
  const Finding gpu = find(facts, "gpu");
  EXPECT_EQ(gpu.level, kMissing);
  EXPECT_EQ(gpu.found, "none: no driver");
  EXPECT_NE(gpu.cost, "");
  EXPECT_EQ(find(facts, "driver").id, "not there");
}

TEST(Doctor, AGpuWithoutMachineCodeIsSlower) {
  Facts facts = good_machine();
  facts.gpus.gpus.push_back({3, "Other", 121, kGigabyte, kGigabyte, false});
  EXPECT_EQ(find(facts, "gpu:0").level, kGood);
  const Finding gpu = find(facts, "gpu:3");
  EXPECT_EQ(gpu.level, kSlower);
  EXPECT_THAT(gpu.found, HasSubstr("12.1"));
  EXPECT_THAT(gpu.cost, HasSubstr("compiles"));
}

TEST(Doctor, WhyARingIsRefusedAndWhatToDo) {
  const auto finding = [](io::UringFacts uring) {
    Facts facts = good_machine();
    facts.machine.uring = uring;
    Finding found = find(facts, "io_uring");
    EXPECT_EQ(found.level, kSlower);
    EXPECT_THAT(found.cost, HasSubstr("2.3 instead of 3.5 GB/s"));
    return found;
  };
  EXPECT_THAT(finding({true, EPERM, 2}).remedy, HasSubstr("sysctl kernel.io_uring_disabled=0"));
  EXPECT_THAT(finding({true, EPERM, 2}).found, HasSubstr("Operation not permitted"));
  EXPECT_THAT(finding({true, EPERM, 1}).remedy, HasSubstr("io_uring_group"));
  for (const std::optional<std::uint64_t> disabled : {std::optional<std::uint64_t>(0), std::optional<std::uint64_t>()})
    EXPECT_THAT(finding({true, EPERM, disabled}).remedy, HasSubstr("seccomp"));
  EXPECT_THAT(finding({true, ENOSYS, std::nullopt}).remedy, HasSubstr("Linux 5.6"));
  EXPECT_THAT(finding({true, ENOMEM, 0}).remedy, HasSubstr("ulimit -l"));
  EXPECT_THAT(finding({true, EMFILE, 0}).remedy, HasSubstr("ulimit -n"));
  EXPECT_EQ(finding({true, EIO, 0}).remedy, "");
  EXPECT_THAT(finding({false, 0, 0}).remedy, HasSubstr("LADING_WITH_URING"));
}

TEST(Doctor, DirectReads) {
  Facts facts = good_machine();
  facts.place.direct_error = EINVAL;
  EXPECT_EQ(find(facts, "o_direct").level, kSlower);
  EXPECT_THAT(find(facts, "o_direct").found, HasSubstr("refused on a temporary file: Invalid argument"));
  EXPECT_THAT(find(facts, "o_direct").cost, HasSubstr("1.9 instead of 3.5 GB/s"));
  facts.place.file_system = io::FileSystem::kNetwork;
  EXPECT_EQ(find(facts, "o_direct").level, kGood) << "not used there";
  EXPECT_THAT(find(facts, "o_direct").cost, HasSubstr("nothing"));
  facts.place = {io::FileSystem::kExt, "ext4", io::TriedOn::kNothing, 0};
  EXPECT_EQ(find(facts, "o_direct").level, kUnknown);
  EXPECT_THAT(find(facts, "o_direct").found, HasSubstr("could not be tried"));
}

TEST(Doctor, EveryFileSystemHasAWord) {
  const std::pair<io::FileSystem, FindingLevel> expected[] = {
      {io::FileSystem::kMemory, kGood},    {io::FileSystem::kExt, kGood},       {io::FileSystem::kXfs, kGood},
      {io::FileSystem::kBtrfs, kSlower},   {io::FileSystem::kF2fs, kSlower},    {io::FileSystem::kZfs, kSlower},
      {io::FileSystem::kOverlay, kSlower}, {io::FileSystem::kNetwork, kSlower}, {io::FileSystem::kFuse, kSlower},
      {io::FileSystem::kOther, kUnknown}};
  for (const auto& [kind, level] : expected) {
    Facts facts = good_machine();
    facts.place.file_system = kind;
    facts.place.mount_type = "";
    const Finding finding = find(facts, "file_system");
    EXPECT_EQ(finding.level, level) << finding.found;
    EXPECT_THAT(finding.found, HasSubstr(std::string(io::word(kind))));
    EXPECT_EQ(finding.remedy.empty(), level == kGood) << finding.found;
    facts.place.mount_type = "special";
    EXPECT_THAT(find(facts, "file_system").found, HasSubstr("special")) << "the kernel's own word is better";
  }
}

TEST(Doctor, PageCache) {
  Facts facts = good_machine();
  const auto with = [&](std::uint64_t resident) {
    facts.checkpoint = CheckpointFacts{16 * kGigabyte, io::Residency{resident, 1000}};
    return find(facts, "page_cache");
  };
  EXPECT_EQ(with(1000).level, kGood);
  EXPECT_EQ(with(900).level, kGood);
  EXPECT_EQ(with(899).level, kSlower);
  EXPECT_THAT(with(899).found, HasSubstr("16.00 GB, 89 % of it cached"));
  EXPECT_THAT(with(0).cost, HasSubstr("3.5 instead of 19.8 GB/s"));
  EXPECT_THAT(with(0).remedy, HasSubstr("--io pread"));
  facts.machine.memory.available_bytes = 10 * kGigabyte;
  EXPECT_THAT(with(0).remedy, HasSubstr("more free memory"));
  facts.place.file_system = io::FileSystem::kOverlay;
  EXPECT_EQ(with(0).level, kUnknown) << "it always looks empty";
  facts.place.file_system = io::FileSystem::kMemory;
  EXPECT_EQ(with(0).level, kGood);
  facts.place.file_system = io::FileSystem::kXfs;
  facts.checkpoint->residency.reset();
  EXPECT_EQ(find(facts, "page_cache").level, kUnknown);
  facts.checkpoint.reset();
  EXPECT_EQ(find(facts, "page_cache").id, "not there");
  facts.checkpoint_is_refused = true;
  EXPECT_THAT(find(facts, "page_cache").remedy, HasSubstr("lading inspect"));
}

TEST(Doctor, Memory) {
  Facts facts = good_machine();
  io::MemoryFacts& memory = facts.machine.memory;
  memory.group_limit_bytes = 32 * kGigabyte;
  memory.group_available_bytes = 20 * kGigabyte;
  EXPECT_EQ(find(facts, "memory").level, kGood);
  EXPECT_THAT(find(facts, "memory").found, HasSubstr("the control group leaves 20.00 GB of 32.00 GB"));
  facts.checkpoint = CheckpointFacts{25 * kGigabyte, std::nullopt};
  EXPECT_EQ(find(facts, "memory").level, kSlower) << "it fits the machine, not the group; a GPU may hold it";
  EXPECT_THAT(find(facts, "memory").remedy, HasSubstr("control group"));
  facts.gpus.gpus.clear();
  EXPECT_EQ(find(facts, "memory").level, kMissing);
  EXPECT_THAT(find(facts, "memory").cost, HasSubstr("25.00 GB"));
  facts.checkpoint.reset();
  memory.group_available_bytes = 400'000'000;
  EXPECT_EQ(find(facts, "memory").level, kMissing);
  memory.group_limit_bytes.reset();
  EXPECT_EQ(find(facts, "memory").level, kGood);
  memory.available_bytes = 400'000'000;
  EXPECT_EQ(find(facts, "memory").level, kMissing);
  EXPECT_THAT(find(facts, "memory").remedy, Not(HasSubstr("control group")));
  memory.total_bytes = 0;
  EXPECT_EQ(find(facts, "memory").level, kUnknown);
}

TEST(Doctor, HugePages) {
  Facts facts = good_machine();
  for (const auto& [kind, level] :
       {std::pair{io::HugePages::kAlways, kGood}, std::pair{io::HugePages::kNever, kSlower},
        std::pair{io::HugePages::kAbsent, kSlower}, std::pair{io::HugePages::kUnknown, kUnknown}}) {
    facts.machine.huge_pages = kind;
    EXPECT_EQ(find(facts, "huge_pages").level, level);
  }
  facts.machine.huge_pages = io::HugePages::kNever;
  EXPECT_THAT(find(facts, "huge_pages").cost, HasSubstr("0.7–2.9 instead of 5–9 GB/s"));
  EXPECT_THAT(find(facts, "huge_pages").remedy, HasSubstr("transparent_hugepage/enabled"));
}

TEST(Doctor, LockedMemoryMattersToOldKernelsOnly) {
  Facts facts = good_machine();
  facts.machine.memlock_bytes = {65'536, std::nullopt};
  EXPECT_EQ(find(facts, "memlock").level, kGood);
  EXPECT_THAT(find(facts, "memlock").found, HasSubstr("65.54 kB (may be raised to any number)"));
  EXPECT_THAT(find(facts, "memlock").cost, HasSubstr("nothing"));
  facts.machine.kernel = {5, 11};
  EXPECT_EQ(find(facts, "memlock").level, kSlower);
  facts.machine.memlock_bytes.soft = 1U << 20;
  EXPECT_EQ(find(facts, "memlock").level, kGood);
}

TEST(Doctor, Processors) {
  Facts facts = good_machine();
  facts.machine.cpus = {64, 16, std::nullopt};
  EXPECT_EQ(find(facts, "cpus").level, kGood);
  EXPECT_EQ(find(facts, "cpus").found, "16 of 64");
  facts.machine.cpus.quota = 100.0;
  EXPECT_EQ(find(facts, "cpus").found, "16 of 64") << "more than there are";
  facts.machine.cpus.quota = 2.5;
  EXPECT_EQ(find(facts, "cpus").level, kSlower);
  EXPECT_THAT(find(facts, "cpus").found, HasSubstr("grants the time of 2.5"));
  EXPECT_THAT(find(facts, "cpus").remedy, HasSubstr("more CPUs"));
  EXPECT_THAT(find(facts, "cpus").cost, HasSubstr("51 with 16"));
  facts.machine.cpus = {4, 4, std::nullopt};
  facts.gpus.gpus.clear();
  EXPECT_THAT(find(facts, "cpus").cost, HasSubstr("19.8 with 16"));
  EXPECT_EQ(find(facts, "cpus").remedy, "") << "it has no more";
  facts.machine.cpus.quota = 0.5;
  EXPECT_THAT(find(facts, "cpus").remedy, HasSubstr("more CPUs"));
}

TEST(Doctor, OpenFiles) {
  Facts facts = good_machine();
  facts.machine.open_files = {128, 4096};
  EXPECT_EQ(find(facts, "open_files").level, kSlower);
  EXPECT_THAT(find(facts, "open_files").found, HasSubstr("128 (may be raised to 4,096)"));
  EXPECT_THAT(find(facts, "open_files").remedy, HasSubstr("ulimit -n 256"));
  facts.machine.open_files = {std::nullopt, std::nullopt};
  EXPECT_EQ(find(facts, "open_files").found, "unlimited");
}

}  // namespace
}  // namespace lading::doctor
