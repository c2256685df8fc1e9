#include "io/machine.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>

#include "io/transport.h"
#include "support/temp_dir.h"

namespace lading::io {
namespace {

int refuse(unsigned, ::io_uring*, unsigned) { return -EPERM; }

TEST(Machine, ARefusedRingIsAnErrno) {
  const auto tried = try_ring({.max_rings = 1, .queue_init = &refuse});
  if (!tried) GTEST_SKIP() << "a build without io_uring";
  EXPECT_EQ(tried, EPERM);
}

TEST(Machine, TryingARingLeavesNoDescriptor) {
  const auto count = [] {
    const std::filesystem::directory_iterator list("/proc/self/fd");
    return std::distance(begin(list), end(list));
  };
  (void)try_ring({});
  const auto before = count();
  for (int i = 0; i < 3; ++i) (void)try_ring({});
  EXPECT_EQ(count(), before);
}

TEST(Machine, FactsOfThisMachine) {
  const MachineFacts facts = look_at_machine();
  EXPECT_GE(facts.kernel.major, 4U);
  EXPECT_GT(facts.memory.total_bytes, std::uint64_t{64} << 20);
  EXPECT_GT(facts.memory.available_bytes, 0U);
  EXPECT_LE(facts.memory.available_bytes, facts.memory.total_bytes);
  EXPECT_GE(facts.cpus.allowed, 1U);
  rlimit files{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &files), 0);
  EXPECT_EQ(facts.open_files.soft, files.rlim_cur);
}

TEST(Machine, UnlimitedIsNothing) {
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_MEMLOCK, &old), 0);
  rlimit low = old;
  low.rlim_cur = 4096;
  ASSERT_EQ(::setrlimit(RLIMIT_MEMLOCK, &low), 0);
  EXPECT_EQ(look_at_machine().memlock_bytes.soft, 4096U);
  ASSERT_EQ(::setrlimit(RLIMIT_MEMLOCK, &old), 0);
  if (old.rlim_max != RLIM_INFINITY) return;
  EXPECT_FALSE(look_at_machine().memlock_bytes.hard.has_value());
}

// A machine made of files.
class MachineTree : public ::testing::Test {
 protected:
  MachineTree() {
    dir_.write("proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 800 kB\n");
    dir_.write("proc/self/status", "Cpus_allowed_list:\t0-7\n");
  }
  void version_two(std::string_view group) const {
    dir_.write("proc/self/mountinfo", "41 31 0:38 / /cg rw - cgroup2 cgroup2 rw\n");
    dir_.write("proc/self/cgroup", "0::" + std::string(group) + "\n");
  }

  test::TempDir dir_;
};

TEST_F(MachineTree, NoControlGroups) {
  const MemoryFacts memory = look_at_memory(dir_.path());
  EXPECT_EQ(memory.total_bytes, 1000U * 1024);
  EXPECT_EQ(memory.available_bytes, 800U * 1024);
  EXPECT_FALSE(memory.group_limit_bytes.has_value());
  EXPECT_EQ(look_at_cpus(dir_.path()).allowed, 8U);
  EXPECT_FALSE(look_at_cpus(dir_.path()).quota.has_value());
}

TEST_F(MachineTree, TheGroupThatLeavesLeastCounts) {
  version_two("/a/b");
  dir_.write("cg/a/b/memory.max", "max\n");
  dir_.write("cg/a/b/memory.current", "70000\n");
  dir_.write("cg/a/memory.max", "500000\n");
  dir_.write("cg/a/memory.current", "450000\n");
  dir_.write("cg/a/memory.stat", "anon 100000\ninactive_file 200000\nactive_file 150000\n");
  dir_.write("cg/memory.max", "600000\n");
  dir_.write("cg/memory.current", "590000\n");
  MemoryFacts memory = look_at_memory(dir_.path());
  EXPECT_EQ(memory.group_limit_bytes, 600000U) << "10,000 left, without a word on what could be given up";
  EXPECT_EQ(memory.group_available_bytes, 10000U);
  dir_.write("cg/memory.stat", "inactive_file 590000\n");
  memory = look_at_memory(dir_.path());
  EXPECT_EQ(memory.group_limit_bytes, 500000U);
  EXPECT_EQ(memory.group_available_bytes, 400000U) << "pages of files can be given up";
}

TEST_F(MachineTree, ALimitAboveTheMachineIsNone) {
  version_two("/");
  dir_.write("cg/memory.max", "9223372036854771712\n");
  dir_.write("cg/memory.current", "1\n");
  EXPECT_FALSE(look_at_memory(dir_.path()).group_limit_bytes.has_value());
}

TEST_F(MachineTree, VersionOne) {
  dir_.write("proc/self/mountinfo",
             "35 31 0:32 / /m rw - cgroup cgroup rw,memory\n36 31 0:33 / /c rw - cgroup cgroup rw,cpu\n");
  dir_.write("proc/self/cgroup", "4:memory:/x\n3:cpu:/x\n");
  dir_.write("m/x/memory.limit_in_bytes", "1000\n");
  dir_.write("m/x/memory.usage_in_bytes", "900\n");
  dir_.write("m/x/memory.stat", "inactive_file 1\ntotal_inactive_file 300\n");
  dir_.write("c/x/cpu.cfs_quota_us", "-1\n");
  dir_.write("c/x/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(look_at_memory(dir_.path()).group_available_bytes, 400U);
  EXPECT_FALSE(look_at_cpus(dir_.path()).quota.has_value());
  dir_.write("c/cpu.cfs_quota_us", "250000\n");
  dir_.write("c/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(look_at_cpus(dir_.path()).quota, 2.5);
}

TEST_F(MachineTree, TheSmallestQuotaCounts) {
  version_two("/a");
  dir_.write("cg/a/cpu.max", "400000 100000\n");
  EXPECT_EQ(look_at_cpus(dir_.path()).quota, 4.0);
  dir_.write("cg/cpu.max", "300000 100000\n");
  EXPECT_EQ(look_at_cpus(dir_.path()).quota, 3.0);
}

TEST(KernelText, DirectoriesAndNothingAreNothing) {
  const test::TempDir dir;
  EXPECT_FALSE(kernel_text(dir.path("none")).has_value());
  EXPECT_FALSE(kernel_text(dir.path()).has_value());
  EXPECT_EQ(kernel_text(dir.write("f", "a\nb")), "a\nb");
  EXPECT_EQ(kernel_text(dir.write("empty", "")), "");
}

TEST(Place, ADirectoryIsTriedWithAFileThatLeavesNothing) {
  const test::TempDir dir;
  const auto facts = look_at_place(dir.path());
  ASSERT_TRUE(facts.has_value());
  EXPECT_EQ(facts->direct_tried_on, TriedOn::kTemporary);
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
  const File file = *File::adopt(Fd(::open(dir.write("f", "x").c_str(), O_RDONLY | O_CLOEXEC)), "f");
  EXPECT_EQ(facts->file_system, file_system_of(file));
  EXPECT_EQ(facts->direct_error == 0, file.direct_descriptor() >= 0);
}

TEST(Place, AFileIsTriedItself) {
  const test::TempDir dir;
  const std::string path = dir.write("f", std::string(10'000, 'x'));
  for (const std::string& way : {path, dir.link("link", "f")}) {
    const auto facts = look_at_place(way);
    ASSERT_TRUE(facts.has_value());
    EXPECT_EQ(facts->direct_tried_on, TriedOn::kFile);
    EXPECT_EQ(facts->file_system, look_at_place(dir.path())->file_system);
  }
}

TEST(Place, NothingThereIsAnError) {
  const test::TempDir dir;
  EXPECT_EQ(look_at_place(dir.path("none")).error().code, Code::kNotFound);
  EXPECT_EQ(look_at_place(dir.write("f", "x") + "/below").error().code, Code::kNotFound);
}

TEST(Place, AFifoIsNotOpened) {
  const test::TempDir dir;
  ASSERT_EQ(::mkfifo(dir.path("fifo").c_str(), 0600), 0);
  const auto facts = look_at_place(dir.path("fifo"));
  ASSERT_TRUE(facts.has_value());
  EXPECT_EQ(facts->direct_tried_on, TriedOn::kNothing);
}

// Not even root makes files in sysfs, and its own cannot be read directly.
TEST(Place, WhereNoFileCanBeMadeOneBeneathIsTried) {
  if (!std::filesystem::exists("/sys/kernel/mm")) GTEST_SKIP() << "no sysfs";
  const auto facts = look_at_place("/sys/kernel/mm");
  ASSERT_TRUE(facts.has_value());
  EXPECT_EQ(facts->file_system, FileSystem::kOther);
  EXPECT_EQ(facts->mount_type, "sysfs");
  EXPECT_EQ(facts->direct_tried_on, TriedOn::kBeneath);
  EXPECT_EQ(facts->direct_error, EINVAL);
}

TEST(Place, LinksAndEmptyFilesAreNotTried) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  const test::TempDir dir;
  dir.link("a", "/etc/passwd");
  dir.write("b/empty", "");
  dir.write("b/c/f", "data");
  ASSERT_EQ(::chmod(dir.path().c_str(), 0500), 0);
  const auto facts = look_at_place(dir.path());
  ASSERT_EQ(::chmod(dir.path().c_str(), 0700), 0);
  ASSERT_TRUE(facts.has_value());
  EXPECT_EQ(facts->direct_tried_on, TriedOn::kBeneath);
}

}  // namespace
}  // namespace lading::io
