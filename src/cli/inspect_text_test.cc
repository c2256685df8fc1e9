#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <string>

#include "base/text.h"
#include "cli/inspect_output.h"
#include "support/tensor_info.h"

namespace lading::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Inspection inspection_of(std::vector<TensorInfo> tensors) {
  Inspection inspection;
  inspection.path = "/dir/m.safetensors";
  inspection.shards.push_back({"m.safetensors", "/dir/m.safetensors", 1000, tensors.size(), {}, {}});
  for (const TensorInfo& info : tensors) inspection.tensor_bytes += info.bytes.size_bytes();
  inspection.tensors = std::move(tensors);
  return inspection;
}

std::string text_of(const Inspection& inspection, ListTensors list = ListTensors::kNo) {
  return inspection_text(inspection, list, Colour::kOff);
}

std::size_t lines_with(const std::string& text, const std::string& what) {
  std::size_t count = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

TEST(InspectText, SummaryAndDtypes) {
  const std::string text = text_of(inspection_of({tensor("a", 4000), tensor("b", 8, "I32"), tensor("c", 4)}));
  EXPECT_THAT(text, HasSubstr("/dir/m.safetensors\n"));
  EXPECT_THAT(text, HasSubstr("3 tensors in 1 file, 4.01 kB"));
  EXPECT_TRUE(std::regex_search(text, std::regex("F32 +4.00 kB +2 tensors"))) << text;
  EXPECT_TRUE(std::regex_search(text, std::regex("I32 +8 B +1 tensor\n"))) << text;
}

TEST(InspectText, EmptyCheckpoint) {
  const std::string text = text_of(inspection_of({}));
  EXPECT_THAT(text, HasSubstr("0 tensors in 1 file, 0 B"));
  EXPECT_THAT(text, HasSubstr("m.safetensors"));
  EXPECT_FALSE(text_of(inspection_of({}), ListTensors::kYes).empty());
}

TEST(InspectText, LargestAreTheLargest) {
  std::vector<TensorInfo> tensors;
  for (std::uint64_t i = 1; i <= 9; ++i) tensors.push_back(tensor("t" + std::to_string(i), 4 * i));
  const std::string text = text_of(inspection_of(std::move(tensors)));
  const std::string largest = text.substr(text.find("Largest"), text.find("Modules") - text.find("Largest"));
  EXPECT_THAT(largest, HasSubstr("t9"));
  EXPECT_THAT(largest, HasSubstr("t5"));
  EXPECT_THAT(largest, Not(HasSubstr("t4")));
  EXPECT_LT(largest.find("t9"), largest.find("t8"));
}

TEST(InspectText, AllListsEveryTensorAndNoTree) {
  std::vector<TensorInfo> tensors;
  for (int i = 0; i < 200; ++i) tensors.push_back(tensor("layer." + std::to_string(1000 + i) + ".w"));
  const Inspection inspection = inspection_of(std::move(tensors));
  const std::string all = text_of(inspection, ListTensors::kYes);
  for (int i = 0; i < 200; ++i) EXPECT_THAT(all, HasSubstr("layer." + std::to_string(1000 + i) + ".w"));
  EXPECT_THAT(all, Not(HasSubstr("{1000..1199}")));
  EXPECT_THAT(text_of(inspection), HasSubstr("layer.{1000..1199}.w"));
}

TEST(InspectText, ALongTreeIsCutAndSaysSo) {
  std::vector<TensorInfo> tensors;
  for (int i = 0; i < 500; ++i) tensors.push_back(tensor("name" + std::to_string(1000 + i)));
  const std::string text = text_of(inspection_of(std::move(tensors)));
  EXPECT_LT(lines_with(text, "\n"), 100U);
  EXPECT_THAT(text, HasSubstr("more lines"));
}

TEST(InspectText, HashStates) {
  Inspection inspection = inspection_of({tensor("a")});
  EXPECT_THAT(text_of(inspection), Not(HasSubstr("verified")));
  inspection.shards[0].hash = HashState::kVerified;
  EXPECT_THAT(text_of(inspection), HasSubstr("hash verified"));
  inspection.shards[0].hash = HashState::kUnknown;
  EXPECT_THAT(text_of(inspection), HasSubstr("unverified"));
}

TEST(InspectText, MetadataIsToldOnceForAllShards) {
  Inspection inspection = inspection_of({tensor("a")});
  inspection.shards.push_back(inspection.shards[0]);
  for (ShardInfo& shard : inspection.shards) shard.metadata = {{"format", "pt"}};
  EXPECT_EQ(lines_with(text_of(inspection), "\"format\" = \"pt\""), 1U);
  inspection.shards[1].metadata = {{"format", "tf"}};
  EXPECT_THAT(text_of(inspection), HasSubstr("\"format\" = \"pt\""));
  EXPECT_THAT(text_of(inspection), HasSubstr("\"format\" = \"tf\""));
}

TEST(InspectText, TooMuchMetadataIsCutAndSaysSo) {
  Inspection inspection = inspection_of({tensor("a")});
  for (int i = 0; i < 50; ++i) inspection.shards[0].metadata.emplace_back("key" + std::to_string(i), "v");
  const std::string text = text_of(inspection);
  EXPECT_LT(lines_with(text, "\"key"), 20U);
  EXPECT_THAT(text, HasSubstr("more"));
  inspection.shards[0].metadata.resize(10);
  EXPECT_EQ(lines_with(text_of(inspection), "\"key"), 10U);
  EXPECT_THAT(text_of(inspection), Not(HasSubstr("and more")));
}

TEST(InspectText, ColourAddsNothingButColour) {
  Inspection inspection = inspection_of({tensor("model.a"), tensor("model.b", 8, "I32")});
  inspection.shards[0].hash = HashState::kVerified;
  const std::string plain = inspection_text(inspection, ListTensors::kNo, Colour::kOff);
  const std::string coloured = inspection_text(inspection, ListTensors::kNo, Colour::kOn);
  EXPECT_THAT(plain, Not(HasSubstr("\x1b")));
  EXPECT_THAT(coloured, HasSubstr("\x1b["));
  EXPECT_EQ(std::regex_replace(coloured, std::regex("\x1b\\[[0-9]+m"), ""), plain);
}

TEST(InspectText, Fault16_EverythingFromAFileIsEscaped) {
  const std::string evil = "x\x1b[2J\n\u202e\xFFy";
  Inspection inspection = inspection_of({tensor(evil, 4, evil)});
  inspection.path += evil;
  inspection.shards[0].name = evil;
  inspection.shards[0].metadata = {{evil, evil}};
  for (const ListTensors list : {ListTensors::kNo, ListTensors::kYes}) {
    const std::string text = text_of(inspection, list);
    EXPECT_THAT(text, Not(HasSubstr("\x1b")));
    EXPECT_THAT(text, Not(HasSubstr("\u202e")));
    EXPECT_EQ(find_invalid_utf8(text), std::nullopt);
    EXPECT_THAT(text, HasSubstr("x\\x1b[2J\\n\\u202e\\xffy"));
  }
}

TEST(InspectText, Fault16_LongNamesAreCutToUtf8) {
  for (const std::string character : {"\u00e9", "\u65e5", "\U0001F600"}) {
    for (std::size_t shift = 0; shift < 4; ++shift) {
      std::string name(shift, 'a');
      while (name.size() < 400) name += character;
      for (const ListTensors list : {ListTensors::kNo, ListTensors::kYes}) {
        const std::string text = text_of(inspection_of({tensor(name)}), list);
        EXPECT_EQ(find_invalid_utf8(text), std::nullopt) << "shift " << shift << ", " << character;
      }
    }
  }
}

TEST(InspectText, Fault16_AMegabyteOfNameDoesNotFloodTheTerminal) {
  const Inspection inspection =
      inspection_of({tensor(std::string(1'000'000, 'n')), tensor("o." + std::string(1'000'000, 'n'))});
  EXPECT_LT(text_of(inspection).size(), 10'000U);
  EXPECT_LT(text_of(inspection, ListTensors::kYes).size(), 10'000U);
}

TEST(InspectText, AnEmptyNameIsStillSeen) {
  EXPECT_THAT(text_of(inspection_of({tensor("")}), ListTensors::kYes), HasSubstr("\"\""));
}

}  // namespace
}  // namespace lading::cli
