#include "lading/doctor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "support/safetensors_bytes.h"
#include "support/temp_dir.h"

namespace lading {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::vector<std::string> ids(const std::vector<Finding>& findings) {
  std::vector<std::string> all;
  all.reserve(findings.size());
  for (const Finding& finding : findings) all.push_back(finding.id);
  return all;
}

TEST(ExamineMachine, ADirectory) {
  const test::TempDir dir;
  const auto findings = examine_machine({dir.path()});
  ASSERT_TRUE(findings.has_value());
  EXPECT_THAT(ids(*findings), ::testing::IsSupersetOf({"file_system", "o_direct", "io_uring", "memory", "huge_pages",
                                                       "cpus", "memlock", "open_files"}));
  EXPECT_THAT(ids(*findings), Not(::testing::Contains("page_cache"))) << "no checkpoint there";
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(ExamineMachine, ACheckpointIsLookedAtItself) {
  const test::TempDir dir;
  dir.write("m.safetensors", test::one_tensor_file("t", "data"));
  const auto findings = examine_machine({dir.path()});
  ASSERT_TRUE(findings.has_value());
  EXPECT_THAT(ids(*findings), ::testing::Contains("page_cache"));
  for (const Finding& finding : *findings) {
    if (finding.id == "o_direct") {
      EXPECT_THAT(finding.found, HasSubstr("on the file"));
    }
  }
}

TEST(ExamineMachine, ARefusedCheckpointIsStillAPlace) {
  for (const char* content : {"short", "version https://git-lfs.github.com/spec/v1"}) {
    const test::TempDir dir;
    dir.write("m.safetensors", content);
    const auto findings = examine_machine({dir.path()});
    ASSERT_TRUE(findings.has_value());
    const auto cache =
        std::find_if(findings->begin(), findings->end(), [](const Finding& f) { return f.id == "page_cache"; });
    ASSERT_NE(cache, findings->end());
    EXPECT_EQ(cache->level, FindingLevel::kUnknown);
  }
}

TEST(ExamineMachine, NothingThere) {
  const test::TempDir dir;
  EXPECT_EQ(examine_machine({dir.path("none")}).error().code, Code::kNotFound);
  EXPECT_EQ(examine_machine({""}).error().code, Code::kUsage);
  EXPECT_EQ(examine_machine({std::string("a\0b", 3)}).error().code, Code::kUsage);
}

}  // namespace
}  // namespace lading
