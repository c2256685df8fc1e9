// A process that is killed while it saves over an older checkpoint: what stands at the place is the old one or the new
// one, whole, and the next save removes what was left. LADING_KILLS says how often (default 40).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "api/tests/save_model_for_tests.h"
#include "support/temp_dir.h"

namespace lading {
namespace {

constexpr SavedModel kLarge{12, 1000};

int kills() {
  const char* wanted = std::getenv("LADING_KILLS");
  return wanted == nullptr ? 40 : std::atoi(wanted);
}

TEST(SaveKill, Fault48_R69_TheOldCheckpointOrTheCompleteNewOne) {
  const test::TempDir dir;
  const std::string place = dir.path("out");
  const auto before = std::chrono::steady_clock::now();
  ASSERT_TRUE(save_model(place, 0, kLarge));
  const auto duration =
      std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - before);
  ASSERT_EQ(number_in(place), 0);
  std::mt19937_64 random(7);
  float stands = 0;
  int replaced = 0;
  for (int i = 1; i <= kills(); ++i) {
    const auto next = static_cast<float>(i);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) std::_Exit(save_model(place, next, kLarge) ? 0 : 1);
    std::this_thread::sleep_for(duration * (random() % 1000) / 800);
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    const auto found = number_in(place);
    ASSERT_TRUE(found.has_value()) << "kill " << i << ": a mixture";
    ASSERT_TRUE(*found == stands || *found == next) << "kill " << i << ": " << *found;
    if (WIFEXITED(status)) {
      ASSERT_EQ(WEXITSTATUS(status), 0);
      ASSERT_EQ(*found, next) << "the save said that it was done";
    }
    replaced += *found == next ? 1 : 0;
    stands = *found;
  }
  RecordProperty("replaced", replaced);
  ASSERT_TRUE(save_model(place, -1, kLarge));
  EXPECT_EQ(number_in(place), -1);
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(dir.path())) names.push_back(entry.path().filename());
  EXPECT_THAT(names, ::testing::ElementsAre("out")) << "leftovers";
}

}  // namespace
}  // namespace lading
