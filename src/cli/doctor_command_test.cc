#include "cli/doctor_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/json_reader.h"
#include "cli/doctor_output.h"
#include "cli/run_for_tests.h"
#include "support/safetensors_bytes.h"
#include "support/temp_dir.h"

namespace lading::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const std::vector<Finding>& some_findings() {
  static const std::vector<Finding> findings = {
      {"gpu:0", FindingLevel::kGood, "NVIDIA\x1b[2J", "", ""},
      {"io_uring", FindingLevel::kSlower, "refused", "half the speed", "Allow it"},
      {"memory", FindingLevel::kMissing, "1 kB", "everything", ""},
      {"page_cache", FindingLevel::kUnknown, "overlay", "", ""},
  };
  return findings;
}

TEST(DoctorCommand, TellsOnStandardOutputAndSucceeds) {
  const test::TempDir dir;
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"doctor"}, {"doctor", dir.path()}}) {
    const Ran ran = run_with(arguments);
    EXPECT_EQ(ran.code, 0);
    EXPECT_EQ(ran.err, "");
    for (const char* id : {"file_system", "io_uring", "o_direct", "huge_pages", "memlock", "cpus", "open_files"})
      EXPECT_THAT(ran.out, HasSubstr(id));
    EXPECT_THAT(ran.out, HasSubstr(arguments.back() == "doctor" ? "." : dir.path()));
  }
}

TEST(DoctorCommand, NothingThereIsThreeAndNoPathIsTwo) {
  const test::TempDir dir;
  const Ran missing = run_with({"doctor", dir.path("none")});
  EXPECT_EQ(missing.code, 3);
  EXPECT_EQ(missing.out, "");
  EXPECT_THAT(missing.err, HasSubstr("not_found"));
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"doctor", ""}, {"doctor", "a", "b"}, {"doctor", "--what"}}) {
    EXPECT_EQ(run_with(arguments).code, 2) << ::testing::PrintToString(arguments);
  }
}

TEST(DoctorCommand, JsonIsJsonWhateverHappens) {
  const test::TempDir dir;
  dir.write("m.safetensors", test::one_tensor_file("t", "data"));
  const Ran good = run_with({"doctor", "--json", dir.path()});
  EXPECT_EQ(good.code, 0);
  const auto document = JsonDocument::parse(JsonBuffer::copy_of(good.out));
  ASSERT_TRUE(document.has_value()) << good.out;
  EXPECT_EQ(document->root().find("schema")->text(), "lading.doctor/1");
  EXPECT_EQ(document->root().find("ok")->kind(), JsonKind::kTrue);
  EXPECT_EQ(document->root().find("path")->text(), dir.path());
  EXPECT_GE(document->root().find("findings")->size(), 9U);

  const Ran bad = run_with({"doctor", "--json", dir.path("none")});
  EXPECT_EQ(bad.code, 3);
  const auto refusal = JsonDocument::parse(JsonBuffer::copy_of(bad.out));
  ASSERT_TRUE(refusal.has_value()) << bad.out;
  EXPECT_EQ(refusal->root().find("ok")->kind(), JsonKind::kFalse);
  EXPECT_EQ((*refusal->root().find("problems")->begin()).value.find("code")->text(), "not_found");
  EXPECT_FALSE(refusal->root().find("findings").has_value());
}

TEST(DoctorOutput, Json) {
  const auto document = JsonDocument::parse(JsonBuffer::copy_of(doctor_json("here", some_findings())));
  ASSERT_TRUE(document.has_value());
  std::vector<std::string> levels;
  const JsonValue findings = document->root().find("findings").value();
  for (const auto& member : findings) {
    levels.emplace_back(member.value.find("level")->text());
    EXPECT_EQ(member.value.find("remedy").has_value(), member.value.find("id")->text() == "io_uring");
  }
  EXPECT_THAT(levels, ::testing::ElementsAre("good", "slower", "missing", "unknown"));
}

TEST(DoctorOutput, TextIsInColumnsAndSafe) {
  const std::string text = doctor_text("here", some_findings(), Colour::kOff);
  EXPECT_EQ(text,
            "here\n"
            "good     gpu:0       NVIDIA\\x1b[2J\n"
            "slower   io_uring    refused\n"
            "                     costs: half the speed\n"
            "                     do:    Allow it\n"
            "missing  memory      1 kB\n"
            "                     costs: everything\n"
            "unknown  page_cache  overlay\n"
            "\n"
            "1 slower, 1 missing; speeds were measured on other machines (docs/reference/doctor.md) and show what to "
            "expect, no "
            "more\n");
}

TEST(DoctorOutput, NothingToComplainAbout) {
  const std::vector<Finding> findings = {some_findings().front()};
  EXPECT_THAT(doctor_text("here", findings, Colour::kOff), HasSubstr("nothing slows loads down\n"));
}

TEST(DoctorOutput, ColourOnlyWhereAsked) {
  EXPECT_THAT(doctor_text("here", some_findings(), Colour::kOff), Not(HasSubstr("\x1b")));
  const std::string coloured = doctor_text("here", some_findings(), Colour::kOn);
  for (const char* piece : {"\x1b[32mgood", "\x1b[33mslower", "\x1b[31mmissing", "\x1b[2munknown"})
    EXPECT_THAT(coloured, HasSubstr(piece));
}

}  // namespace
}  // namespace lading::cli
