// Every system call of a save, and of a conversion, fails once, one after the other: it says so, or it is done; what
// stands at the place is the old checkpoint or the complete new one; and nothing is left beside it.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "api/tests/save_model_for_tests.h"
#include "lading/convert.h"
#include "support/safetensors_bytes.h"
#include "support/temp_dir.h"

namespace {

// Counts down at each call of the functions below, and the call at which it comes to 0 fails. 0: none does.
std::atomic<int> calls_to_failure = 0;
std::atomic<int> error_of_failure = 0;
// The file or folder whose syncs fail. 0: none.
std::atomic<ino_t> unsyncable = 0;

bool is_unsyncable(int fd) {
  struct stat status = {};
  if (unsyncable.load() == 0 || ::fstat(fd, &status) != 0 || status.st_ino != unsyncable.load()) return false;
  errno = EIO;
  return true;
}

bool fails_now() {
  if (calls_to_failure.load() <= 0 || calls_to_failure.fetch_sub(1) != 1) return false;
  errno = error_of_failure;
  return true;
}

}  // namespace

// The program's own functions of these names go before the C library's.
extern "C" {
ssize_t pwrite(int fd, const void* bytes, size_t size, off_t offset) {
  return fails_now() ? -1 : ::syscall(SYS_pwrite64, fd, bytes, size, offset);
}
int fsync(int fd) { return is_unsyncable(fd) || fails_now() ? -1 : static_cast<int>(::syscall(SYS_fsync, fd)); }
int fallocate(int fd, int mode, off_t begin, off_t size) {
  return fails_now() ? -1 : static_cast<int>(::syscall(SYS_fallocate, fd, mode, begin, size));
}
int mkdirat(int at, const char* name, mode_t mode) {
  return fails_now() ? -1 : static_cast<int>(::syscall(SYS_mkdirat, at, name, mode));
}
int unlinkat(int at, const char* name, int flags) {
  return fails_now() ? -1 : static_cast<int>(::syscall(SYS_unlinkat, at, name, flags));
}
int renameat2(int at, const char* from, int to_at, const char* to, unsigned flags) {
  return fails_now() ? -1 : static_cast<int>(::syscall(SYS_renameat2, at, from, to_at, to, flags));
}
int openat(int at, const char* name, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = va_arg(more, mode_t);
  va_end(more);
  return fails_now() ? -1 : static_cast<int>(::syscall(SYS_openat, at, name, flags, mode));
}
}

namespace lading {
namespace {

constexpr SavedModel kSmall{4, 10};
constexpr int kMostCalls = 2000;

std::vector<std::string> names_in(const test::TempDir& dir) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(dir.path())) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

class SaveFaults : public ::testing::TestWithParam<int> {};

TEST_P(SaveFaults, Fault47_R69_EveryCallThatFails) {
  const test::TempDir dir;
  const std::string place = dir.path("out");
  ASSERT_TRUE(save_model(place, 0, kSmall));
  float stands = 0;
  int told = 0;
  int call = 1;
  for (; call < kMostCalls; ++call) {
    const auto next = static_cast<float>(call);
    error_of_failure = GetParam();
    calls_to_failure = call;
    const auto saved = save_model(place, next, kSmall);
    const bool has_failed = calls_to_failure.exchange(0) <= 0;
    const auto found = number_in(place);
    ASSERT_TRUE(found.has_value()) << "call " << call << ": a mixture";
    ASSERT_TRUE(*found == next || (*found == stands && !saved)) << "call " << call;
    if (!saved) {
      ++told;
      const Error& problem = saved.error().problems.front();
      EXPECT_FALSE(problem.file.empty()) << "call " << call << ": " << problem.text();
      EXPECT_TRUE(problem.code != Code::kWriteFailed || !problem.remedy.empty()) << problem.text();
    }
    stands = *found;
    if (!has_failed) break;
  }
  EXPECT_LT(call, kMostCalls);
  EXPECT_GT(told, 20) << "the calls were not the save's";
  // What a removal that failed left behind is gone after the last save, in which nothing failed.
  EXPECT_THAT(names_in(dir), ::testing::ElementsAre("out"));
}

// Until the exchange of the two is synced, a power loss can bring the old checkpoint back to its place. So nobody may
// remove its files: neither the save that could not sync, nor the next one.
TEST(SaveSyncFaults, Fault47_R69_TheOldCheckpointStaysUntilItsExchangeIsSynced) {
  const test::TempDir dir;
  const std::string place = dir.path("out");
  ASSERT_TRUE(save_model(place, 1, kSmall));
  struct stat parent = {};
  ASSERT_EQ(::stat(dir.path().c_str(), &parent), 0);
  unsyncable = parent.st_ino;
  const auto failed = save_model(place, 2, kSmall);
  const auto next = save_model(place, 3, kSmall);
  const auto names = names_in(dir);
  unsyncable = 0;
  for (const auto* const saved : {&failed, &next}) {
    ASSERT_FALSE(*saved);
    EXPECT_THAT(saved->error().problems.front().text(), ::testing::HasSubstr("could not sync the directory"));
  }
  EXPECT_EQ(number_in(place), 2);
  ASSERT_EQ(names.size(), 2U);
  EXPECT_THAT(names.front(), ::testing::StartsWith(".lading-save.out."));
  EXPECT_EQ(number_in(dir.path(names.front())), 1);
  ASSERT_TRUE(save_model(place, 4, kSmall));
  EXPECT_EQ(number_in(place), 4);
  EXPECT_THAT(names_in(dir), ::testing::ElementsAre("out"));
}

// By name, all but the ledger, which has times in it.
std::map<std::string, std::string> files_in(const test::TempDir& dir, const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(dir.path(folder))) {
    const std::string name = entry.path().filename();
    const bool is_read = entry.is_regular_file() && name != "lading.ledger.json";
    files[name] = is_read ? dir.read(folder + "/" + name) : "";
  }
  return files;
}

TEST_P(SaveFaults, Fault47_R69_EveryCallOfAConversionThatFails) {
  const test::TempDir dir;
  dir.write("in/model.safetensors",
            test::safetensors_bytes(R"({"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})",
                                    "123456781234567812345678"));
  dir.write("in/config.json", R"({"dtype": "float32", "auto_map": {}})");
  dir.write("in/tokenizer.json", "words");
  dir.write("in/code.py", "pass");
  ConvertRequest request;
  request.checkpoint.path = dir.path("in");
  request.dtype = DType::kBF16;
  request.part_bytes = 8;
  ASSERT_TRUE(convert(request, {dir.path("new")}));
  const auto wanted = files_in(dir, "new");
  ASSERT_EQ(wanted.size(), 5U);
  int told = 0;
  int call = 1;
  for (; call < kMostCalls; ++call) {
    std::filesystem::remove_all(dir.path("out"));
    dir.write("out/old", "old");
    const auto old = files_in(dir, "out");
    error_of_failure = GetParam();
    calls_to_failure = call;
    const auto converted = convert(request, {dir.path("out"), ExistingDirectory::kReplace});
    const bool has_failed = calls_to_failure.exchange(0) <= 0;
    const auto found = files_in(dir, "out");
    ASSERT_TRUE(found == wanted || (found == old && !converted))
        << "call " << call << ": " << ::testing::PrintToString(found);
    if (!converted) ++told;
    if (!has_failed) break;
  }
  EXPECT_LT(call, kMostCalls);
  EXPECT_GT(told, 20) << "the calls were not the conversion's";
  EXPECT_THAT(names_in(dir), ::testing::ElementsAre("in", "new", "out"));
}

INSTANTIATE_TEST_SUITE_P(Errors, SaveFaults, ::testing::Values(ENOSPC, EIO, EACCES),
                         [](const auto& error) { return "Errno" + std::to_string(error.param); });

}  // namespace
}  // namespace lading
