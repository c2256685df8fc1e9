#include "lading/sample.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>

#include "lading/inspect.h"
#include "support/temp_dir.h"

namespace lading {
namespace {

std::map<std::string, std::string> contents_of(const std::string& directory) {
  std::map<std::string, std::string> contents;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    std::ifstream in(entry.path(), std::ios::binary);
    contents[entry.path().filename().string()] = {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }
  return contents;
}

TEST(Sample, IsACheckpointWithoutAnyWarning) {
  const test::TempDir dir;
  ASSERT_TRUE(write_sample_checkpoint(dir.path("made/here")).has_value());
  const auto inspection = inspect({dir.path("made/here")});
  ASSERT_TRUE(inspection.has_value()) << inspection.error().front().text();
  EXPECT_TRUE(inspection->warnings.empty());
  EXPECT_EQ(inspection->shards.size(), 2U);
  EXPECT_TRUE(inspection->index_path.has_value());
  std::set<std::string> dtypes;
  bool has_scalar = false;
  for (const TensorInfo& tensor : inspection->tensors) {
    dtypes.insert(tensor.dtype_name);
    has_scalar = has_scalar || tensor.shape.rank() == 0;
  }
  EXPECT_GE(dtypes.size(), 2U) << "a mixture of dtypes";
  EXPECT_TRUE(dtypes.contains("F32"));
  EXPECT_TRUE(has_scalar);
}

TEST(Sample, IsTheSameEveryTime) {
  const test::TempDir dir;
  ASSERT_TRUE(write_sample_checkpoint(dir.path("a")).has_value());
  ASSERT_TRUE(write_sample_checkpoint(dir.path("b")).has_value());
  EXPECT_EQ(contents_of(dir.path("a")), contents_of(dir.path("b")));
  EXPECT_TRUE(write_sample_checkpoint(dir.path("a")).has_value()) << "over itself";
  EXPECT_EQ(contents_of(dir.path("a")), contents_of(dir.path("b")));
}

TEST(Sample, OverwritesNothingElse) {
  const test::TempDir dir;
  dir.write("model.safetensors.index.json", "mine");
  const auto result = write_sample_checkpoint(dir.path());
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().front().code, Code::kWriteFailed);
  EXPECT_EQ(result.error().front().file, dir.path("model.safetensors.index.json"));
  EXPECT_EQ(contents_of(dir.path()), (std::map<std::string, std::string>{{"model.safetensors.index.json", "mine"}}))
      << "nothing was written at all";
}

TEST(Sample, ADirectoryThatCannotBeMadeIsAnError) {
  const test::TempDir dir;
  dir.write("file", "x");
  const auto result = write_sample_checkpoint(dir.path("file/below"));
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().front().code, Code::kWriteFailed);
}

}  // namespace
}  // namespace lading
