#include "source/read_speed.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "support/safetensors_bytes.h"
#include "support/temp_dir.h"

namespace lading::source {
namespace {

Result<CheckpointSource, Errors> opened(const test::TempDir& dir) {
  OpenOptions options;
  options.locate.environment = [](const std::string&) { return std::nullopt; };
  return CheckpointSource::open(dir.path("x.safetensors"), options);
}

TEST(ReadSpeed, IsThatOfTheFilesNamed) {
  const test::TempDir dir;
  dir.write("x.safetensors", test::one_tensor_file("t", std::string(1'000'000, 'a')));
  dir.write("y.safetensors", "not of this checkpoint");
  const auto source = opened(dir);
  ASSERT_TRUE(source.has_value());
  for (const Sampler sampler : {Sampler{0, 1}, Sampler{3, 4}, Sampler{1023, 1024}}) {
    const auto speed = read_speed(*source, {0}, sampler);
    ASSERT_TRUE(speed.has_value());
    EXPECT_GT(*speed, 0);
  }
}

TEST(ReadSpeed, WithoutFilesNothingIsRead) {
  const auto speed = read_speed(CheckpointSource::none(), {}, {0, 2});
  ASSERT_TRUE(speed.has_value());
  EXPECT_GT(*speed, 0);
}

// The same refusal as any other reader gets (R45).
TEST(ReadSpeed, AFileThatWasReplacedIsRefused) {
  const test::TempDir dir;
  const std::string path = dir.write("x.safetensors", test::one_tensor_file("t", std::string(1000, 'a')));
  const auto source = opened(dir);
  ASSERT_TRUE(source.has_value());
  dir.write("new", test::one_tensor_file("t", std::string(1000, 'b')));
  std::filesystem::rename(dir.path("new"), path);
  EXPECT_FALSE(read_speed(*source, {0}, {0, 1}).has_value());
}

}  // namespace
}  // namespace lading::source
