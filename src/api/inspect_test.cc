#include "lading/inspect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "lading/version.h"
#include "support/safetensors_bytes.h"
#include "support/temp_dir.h"

namespace lading {
namespace {

using test::one_tensor_file;
using ::testing::ElementsAre;

// sha256sum of one_tensor_file("t", "data"); git hash-object of the index below.
constexpr const char* kFileSha256 = "79ec1a47277c1312e343b08d055b706914bd1d3636926be7d70d13c4f1398d55";
constexpr const char* kIndexGit = "65aa56b3aa7cda690b50e243f0037a2e4f8998ce";
constexpr std::string_view kIndex = R"({"weight_map":{"t":"model-1.safetensors"}})";

/// A cached repository with one blob, called `name`, as its model.safetensors.
std::string make_repo(const test::TempDir& dir, const std::string& name, std::string_view content) {
  const std::string commit(40, 'c');
  dir.write("models--o--n/blobs/" + name, content);
  dir.write("models--o--n/refs/main", commit);
  dir.link("models--o--n/snapshots/" + commit + "/model.safetensors", "../../blobs/" + name);
  return dir.path("models--o--n");
}

TEST(Inspect, OneFile) {
  const test::TempDir dir;
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},)"
      R"("a":{"dtype":"X9","shape":[5],"data_offsets":[12,15]}})";
  const std::string path = dir.write("m.safetensors", test::safetensors_bytes(header, std::string(15, 'd')));
  const auto inspection = inspect({path});
  ASSERT_TRUE(inspection.has_value()) << inspection.error().front().text();
  EXPECT_EQ(inspection->path, path);
  EXPECT_FALSE(inspection->index_path.has_value());
  EXPECT_EQ(inspection->tensor_bytes, 15U);
  ASSERT_EQ(inspection->shards.size(), 1U);
  EXPECT_EQ(inspection->shards[0].name, "m.safetensors");
  EXPECT_EQ(inspection->shards[0].path, path);
  EXPECT_EQ(inspection->shards[0].size_bytes, 8 + header.size() + 15);
  EXPECT_EQ(inspection->shards[0].tensors, 2U);
  EXPECT_EQ(inspection->shards[0].hash, HashState::kNotChecked);
  EXPECT_THAT(inspection->shards[0].metadata, ElementsAre(std::pair("format", "pt")));
  ASSERT_EQ(inspection->tensors.size(), 2U);
  EXPECT_EQ(inspection->tensors[0].name, "a");
  EXPECT_EQ(inspection->tensors[0].dtype, std::nullopt);
  EXPECT_EQ(inspection->tensors[0].dtype_name, "X9");
  EXPECT_EQ(inspection->tensors[1].name, "b");
  EXPECT_EQ(inspection->tensors[1].dtype, DType::kBF16);
  EXPECT_EQ(inspection->tensors[1].dtype_name, "BF16");
  EXPECT_EQ(inspection->tensors[1].shape, (Shape{2, 3}));
  EXPECT_EQ(inspection->tensors[1].bytes, (ByteRange{8 + header.size(), 8 + header.size() + 12}));
  ASSERT_EQ(inspection->warnings.size(), 1U);
  EXPECT_EQ(inspection->warnings.front().code, Code::kUnknownDType);
}

TEST(Inspect, ShardedNamesTheIndexAndEachShard) {
  const test::TempDir dir;
  dir.write("2.safetensors", one_tensor_file("a", "AA"));
  dir.write("1.safetensors", one_tensor_file("b", "BBB"));
  dir.write("model.safetensors.index.json", R"({"weight_map":{"a":"2.safetensors","b":"1.safetensors"}})");
  const auto inspection = inspect({dir.path()});
  ASSERT_TRUE(inspection.has_value()) << inspection.error().front().text();
  EXPECT_EQ(inspection->index_path, dir.path("model.safetensors.index.json"));
  ASSERT_EQ(inspection->shards.size(), 2U);
  EXPECT_EQ(inspection->shards[0].name, "1.safetensors");
  EXPECT_EQ(inspection->shards[1].path, dir.path("2.safetensors"));
  EXPECT_EQ(inspection->shards[inspection->tensors[0].shard].name, "2.safetensors");
  EXPECT_EQ(inspection->shards[inspection->tensors[1].shard].name, "1.safetensors");
  EXPECT_EQ(inspection->tensor_bytes, 5U);
}

TEST(Inspect, OptionsReachTheirPlace) {
  const test::TempDir dir;
  dir.write("out/s", one_tensor_file("t", "data") + "PK");
  dir.link("in/s.safetensors", "../out/s");
  CheckpointRef in{dir.path("in")};
  EXPECT_EQ(inspect(in).error().front().code, Code::kOutsideRoot);
  in.root = dir.path();
  EXPECT_EQ(inspect(in).error().front().code, Code::kTrailingBytes);
  in.trailing_bytes = TrailingBytesPolicy::kAllow;
  EXPECT_TRUE(inspect(in).has_value());
  const std::string repo = make_repo(dir, kFileSha256, one_tensor_file("t", "data"));
  EXPECT_TRUE(inspect({repo}).has_value());
  CheckpointRef other{repo};
  other.revision = "other";
  EXPECT_EQ(inspect(other).error().front().code, Code::kNotFound);
}

TEST(Inspect, R45_HashOfABlobIsVerified) {
  const test::TempDir dir;
  const auto inspection = inspect({make_repo(dir, kFileSha256, one_tensor_file("t", "data"))}, HashCheck::kVerify);
  ASSERT_TRUE(inspection.has_value()) << inspection.error().front().text();
  EXPECT_EQ(inspection->shards[0].hash, HashState::kVerified);
}

TEST(Inspect, Fault39_OneFlippedBitIsFoundWhereAHashIsKnown) {
  const test::TempDir dir;
  const std::string repo = make_repo(dir, kFileSha256, one_tensor_file("t", "dbta"));
  EXPECT_TRUE(inspect({repo}).has_value()) << "not asked";
  const auto inspection = inspect({repo}, HashCheck::kVerify);
  ASSERT_FALSE(inspection.has_value());
  ASSERT_EQ(inspection.error().size(), 1U);
  EXPECT_EQ(inspection.error().front().code, Code::kHashMismatch);
  EXPECT_EQ(inspection.error().front().rule, "R45");
  EXPECT_EQ(inspection.error().front().expected, kFileSha256);
}

TEST(Inspect, Fault39_TheIndexIsVerifiedToo) {
  const test::TempDir dir;
  const std::string repo = make_repo(dir, kFileSha256, one_tensor_file("t", "data"));
  const std::string snapshot = "models--o--n/snapshots/" + std::string(40, 'c');
  std::filesystem::rename(dir.path(snapshot + "/model.safetensors"), dir.path(snapshot + "/model-1.safetensors"));
  dir.link(snapshot + "/model.safetensors.index.json", std::string("../../blobs/") + kIndexGit);
  dir.write(std::string("models--o--n/blobs/") + kIndexGit, kIndex);
  EXPECT_TRUE(inspect({repo}, HashCheck::kVerify).has_value());
  dir.write(std::string("models--o--n/blobs/") + kIndexGit, std::string(kIndex) + " ");
  const auto inspection = inspect({repo}, HashCheck::kVerify);
  ASSERT_FALSE(inspection.has_value());
  EXPECT_EQ(inspection.error().front().code, Code::kHashMismatch);
  EXPECT_THAT(inspection.error().front().file, ::testing::EndsWith("model.safetensors.index.json"));
}

TEST(Inspect, Fault39_WhereNoHashIsKnownItSaysSo) {
  const test::TempDir dir;
  const std::string path = dir.write("plain/m.safetensors", one_tensor_file("t", "data"));
  EXPECT_EQ(inspect({path}, HashCheck::kVerify)->shards[0].hash, HashState::kUnknown);
  // A file called like a hash promises nothing outside a cache.
  const std::string named = dir.write("blobs/" + std::string(64, '0'), one_tensor_file("t", "data"));
  EXPECT_EQ(inspect({named}, HashCheck::kVerify)->shards[0].hash, HashState::kUnknown);
}

TEST(Inspect, VersionIsThreeNumbers) { EXPECT_THAT(version(), ::testing::MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+")); }

}  // namespace
}  // namespace lading
