#include "io/machine_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace lading::io {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(MachineText, KernelVersion) {
  EXPECT_EQ(parse_kernel_version("6.18.44-fc"), (KernelVersion{6, 18}));
  EXPECT_EQ(parse_kernel_version("5.4"), (KernelVersion{5, 4}));
  for (const char* text : {"", "6", "6.", "six.1", "6-1"}) EXPECT_FALSE(parse_kernel_version(text)) << text;
  EXPECT_LT((KernelVersion{5, 9}), (KernelVersion{5, 12}));
  EXPECT_LT((KernelVersion{5, 12}), (KernelVersion{6, 1}));
}

TEST(MachineText, Number) {
  EXPECT_EQ(parse_number(" 42\n"), 42U);
  EXPECT_EQ(parse_number("0"), 0U);
  for (const char* text : {"", "\n", "max", "-1", "1 2", "0x10", "18446744073709551616"})
    EXPECT_FALSE(parse_number(text)) << text;
}

TEST(MachineText, HugePages) {
  EXPECT_EQ(parse_huge_pages("[always] madvise never\n"), HugePages::kAlways);
  EXPECT_EQ(parse_huge_pages("always [madvise] never\n"), HugePages::kMadvise);
  EXPECT_EQ(parse_huge_pages("always madvise [never]\n"), HugePages::kNever);
  for (const char* text : {"", "always madvise never", "[sometimes]"})
    EXPECT_EQ(parse_huge_pages(text), HugePages::kUnknown) << text;
}

TEST(MachineText, Meminfo) {
  const std::string text =
      "MemTotal:       24684100 kB\nMemFree:  1 kB\nHugePages_Total:       0\nBig: 18446744073709551615 kB\n";
  EXPECT_EQ(parse_meminfo_bytes(text, "MemTotal"), 24684100ULL * 1024);
  EXPECT_EQ(parse_meminfo_bytes(text, "MemFree"), 1024U);
  EXPECT_FALSE(parse_meminfo_bytes(text, "Mem"));
  EXPECT_FALSE(parse_meminfo_bytes(text, "MemAvailable"));
  EXPECT_FALSE(parse_meminfo_bytes(text, "HugePages_Total")) << "no unit";
  EXPECT_FALSE(parse_meminfo_bytes(text, "Big")) << "more than there are bytes";
}

TEST(MachineText, AllowedCpus) {
  const auto parse = [](const std::string& list) {
    return parse_allowed_cpus("Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t" + list + "\nThreads:\t1\n");
  };
  EXPECT_EQ(parse("0"), 1U);
  EXPECT_EQ(parse("0-1"), 2U);
  EXPECT_EQ(parse("0-3,8,10-11"), 7U);
  for (const char* list : {"", "x", "3-1", "-3", "0-18446744073709551615"}) EXPECT_FALSE(parse(list)) << list;
  EXPECT_FALSE(parse_allowed_cpus("Threads:\t1\n"));
}

TEST(MachineText, Stat) {
  const std::string text = "cache 5\ninactive_file 7\ntotal_inactive_file 9\n";
  EXPECT_EQ(parse_stat(text, "inactive_file"), 7U);
  EXPECT_EQ(parse_stat(text, "total_inactive_file"), 9U);
  EXPECT_FALSE(parse_stat(text, "inactive"));
}

TEST(MachineText, CpuMax) {
  EXPECT_EQ(parse_cpu_max("150000 100000\n"), 1.5);
  EXPECT_EQ(parse_cpu_max("200000\n 100000\n"), 2.0) << "version 1 has a file for each";
  for (const char* text : {"", "max 100000", "-1 100000", "100000", "100000 0"})
    EXPECT_FALSE(parse_cpu_max(text)) << text;
}

constexpr const char* kMountinfo =
    "23 1 254:0 / / rw,relatime - ext4 /dev/root rw\n"
    "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 master:2 - cgroup cgroup rw,cpu,cpuacct\n"
    "35 31 0:32 /docker/ab /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
    "50 23 0:50 / /mnt/my\\040models ro - fuse.sshfs host:/x rw\n"
    "this is no line\n";

TEST(MachineText, Mounts) {
  const auto mounts = parse_mounts(kMountinfo);
  ASSERT_EQ(mounts.size(), 6U);
  EXPECT_EQ(mounts[0].device, "254:0");
  EXPECT_EQ(mounts[0].type, "ext4");
  EXPECT_EQ(mounts[2].super_options, "rw,cpu,cpuacct") << "optional fields before the dash";
  EXPECT_EQ(mounts[3].root, "/docker/ab");
  EXPECT_EQ(mounts[5].place, "/mnt/my models");
  EXPECT_EQ(mounts[5].type, "fuse.sshfs");
  EXPECT_THAT(parse_mounts(""), IsEmpty());
}

TEST(MachineText, CgroupsOfVersionOne) {
  const std::string cgroup = "4:memory:/docker/ab/x/y\n1:cpu,cpuacct:/\n0::/elsewhere\n";
  const auto memory = cgroup_places(cgroup, parse_mounts(kMountinfo), "memory");
  EXPECT_EQ(memory.version, CgroupPlaces::Version::kOne);
  EXPECT_THAT(memory.directories,
              ElementsAre("/sys/fs/cgroup/memory/x/y", "/sys/fs/cgroup/memory/x", "/sys/fs/cgroup/memory"))
      << "below what is mounted, the innermost first";
  EXPECT_THAT(cgroup_places(cgroup, parse_mounts(kMountinfo), "cpu").directories,
              ElementsAre("/sys/fs/cgroup/cpu,cpuacct"));
}

TEST(MachineText, CgroupsOfVersionTwo) {
  const auto mounts = parse_mounts("41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  const auto places = cgroup_places("0::/user.slice/job\n", mounts, "memory");
  EXPECT_EQ(places.version, CgroupPlaces::Version::kTwo);
  EXPECT_THAT(places.directories,
              ElementsAre("/sys/fs/cgroup/user.slice/job", "/sys/fs/cgroup/user.slice", "/sys/fs/cgroup"));
  EXPECT_THAT(cgroup_places("0::/\n", mounts, "memory").directories, ElementsAre("/sys/fs/cgroup"));
}

TEST(MachineText, CgroupsThatCannotBeSeen) {
  const auto mounts = parse_mounts("41 31 0:38 /pod /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  for (const char* path : {"0::/elsewhere\n", "0::/../outside\n", "0::/podium/x\n", "0::/pod/../x\n"})
    EXPECT_THAT(cgroup_places(path, mounts, "memory").directories, ElementsAre("/sys/fs/cgroup")) << path;
  EXPECT_THAT(cgroup_places("", mounts, "memory").directories, IsEmpty());
  EXPECT_THAT(cgroup_places("0::/\n", {}, "memory").directories, IsEmpty());
  EXPECT_THAT(cgroup_places("4:memory:/\n", mounts, "memory").directories, IsEmpty()) << "of the other version";
}

}  // namespace
}  // namespace lading::io
