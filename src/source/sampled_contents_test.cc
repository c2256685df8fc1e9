#include "source/sampled_contents.h"

#include <gtest/gtest.h>

#include <string>

#include "support/safetensors_bytes.h"
#include "support/temp_dir.h"

namespace lading::source {
namespace {

using test::one_tensor_file;

std::string contents_of(const std::string& values) {
  const test::TempDir dir;
  dir.write("x.safetensors", one_tensor_file("t", values));
  OpenOptions options;
  options.locate.environment = [](const std::string&) { return std::nullopt; };
  const auto source = CheckpointSource::open(dir.path(""), options);
  EXPECT_TRUE(source.has_value());
  const auto contents = sampled_contents(*source);
  EXPECT_TRUE(contents.has_value());
  return contents ? *contents : "";
}

TEST(SampledContents, EqualFilesInDifferentPlacesHaveTheSameWord) {
  const std::string values(5'000'000, 'a');
  EXPECT_EQ(contents_of(values), contents_of(values));
  EXPECT_EQ(contents_of(values).size(), 32U);
}

TEST(SampledContents, OtherValuesOfTheSameShapeHaveAnother) {
  for (const std::size_t size : {1U, 100U, 4096U, 5'000'000U}) {
    EXPECT_NE(contents_of(std::string(size, 'a')), contents_of(std::string(size, 'b'))) << size;
  }
}

TEST(SampledContents, TheEndIsLookedAt) {
  std::string values(3'000'000, 'a');
  const std::string before = contents_of(values);
  values.back() = 'b';
  EXPECT_NE(contents_of(values), before);
}

}  // namespace
}  // namespace lading::source
