#include "cli/command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/json_reader.h"
#include "cli/run_for_tests.h"
#include "lading/inspect.h"
#include "lading/version.h"
#include "support/safetensors_bytes.h"
#include "support/temp_dir.h"

namespace lading::cli {
namespace {

using test::one_tensor_file;
using ::testing::HasSubstr;
using ::testing::Not;

Result<JsonDocument, Errors> parse(const std::string& text) { return JsonDocument::parse(JsonBuffer::copy_of(text)); }

TEST(Command, HelpIsForTheAsking) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"--help"}, {"-h"}, {"inspect", "--help"}, {"demo", "--help"}}) {
    const Ran ran = run_with(arguments);
    EXPECT_EQ(ran.code, 0);
    EXPECT_THAT(ran.out, HasSubstr("Usage"));
    EXPECT_EQ(ran.err, "");
  }
  EXPECT_THAT(run_with({"--help"}).out, HasSubstr("inspect"));
  const std::string help = run_with({"inspect", "--help"}).out;
  for (const char* option :
       {"--tensors", "--json", "--verify-hash", "--root", "--revision", "--allow-trailing-bytes"}) {
    EXPECT_THAT(help, HasSubstr(option));
  }
}

TEST(Command, Version) {
  const Ran ran = run_with({"--version"});
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(ran.out, std::string("lading ") + version() + "\n");
  EXPECT_EQ(ran.err, "");
}

TEST(Command, WrongUsageIsTwoAndTellsOnStandardError) {
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{},
                                                    {"unknown"},
                                                    {"inspect"},
                                                    {"inspect", "a", "b"},
                                                    {"inspect", "a", "--what"},
                                                    {"--what"},
                                                    {"inspect", "a", "--root"},
                                                    {"demo", "x"},
                                                    {"inspect", ""}}) {
    const Ran ran = run_with(arguments);
    EXPECT_EQ(ran.code, 2) << ::testing::PrintToString(arguments);
    EXPECT_EQ(ran.out, "") << ::testing::PrintToString(arguments);
    EXPECT_NE(ran.err, "") << ::testing::PrintToString(arguments);
  }
}

TEST(Command, InspectTellsOnStandardOutput) {
  const test::TempDir dir;
  const std::string path = dir.write("m.safetensors", one_tensor_file("t.weight", "data"));
  const Ran ran = run_with({"inspect", path});
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(ran.err, "");
  EXPECT_THAT(ran.out, HasSubstr(path));
  EXPECT_THAT(ran.out, HasSubstr("t.weight"));
  EXPECT_THAT(ran.out, HasSubstr("1 tensor in 1 file, 4 B"));
}

TEST(Command, ARefusalIsThreeAndListsEveryProblem) {
  const test::TempDir dir;
  const Ran missing = run_with({"inspect", dir.path("nothing")});
  EXPECT_EQ(missing.code, 3);
  EXPECT_EQ(missing.out, "");
  EXPECT_THAT(missing.err, HasSubstr("not_found"));
  dir.write("m.safetensors", test::safetensors_bytes(R"({"a":1,"b":2,"c":3})", ""));
  const Ran broken = run_with({"inspect", dir.path()});
  EXPECT_EQ(broken.code, 3);
  EXPECT_EQ(broken.out, "");
  EXPECT_EQ(std::count(broken.err.begin(), broken.err.end(), '\n'), 3 + 1) << "and one about help";
  for (const char* word : {"\"a\"", "\"b\"", "\"c\"", "header_field", "m.safetensors"}) {
    EXPECT_THAT(broken.err, HasSubstr(word));
  }
}

TEST(Command, ProblemsPastTheCapAreCounted) {
  const test::TempDir dir;
  std::string json = "{";
  for (int i = 0; i < 2500; ++i) json += (i > 0 ? ",\"" : "\"") + std::to_string(i) + "\":0";
  dir.write("m.safetensors", test::safetensors_bytes(json + "}", ""));
  const Ran ran = run_with({"inspect", dir.path()});
  EXPECT_EQ(ran.code, 3);
  EXPECT_THAT(ran.err, HasSubstr("1,500 more"));
}

TEST(Command, NotesGoToStandardErrorAndSucceed) {
  const test::TempDir dir;
  dir.write("model.safetensors", one_tensor_file("t", "data"));
  dir.write("old.safetensors", "");
  const Ran ran = run_with({"inspect", dir.path()});
  EXPECT_EQ(ran.code, 0);
  EXPECT_THAT(ran.err, HasSubstr("stray_shard"));
  EXPECT_THAT(ran.out, Not(HasSubstr("stray_shard")));
}

TEST(Command, EachStreamHasItsOwnColour) {
  const test::TempDir dir;
  dir.write("model.safetensors", one_tensor_file("t", "data"));
  dir.write("old.safetensors", "");
  for (const bool on_out : {false, true}) {
    Output output;
    output.out_colour = on_out ? Colour::kOn : Colour::kOff;
    output.err_colour = on_out ? Colour::kOff : Colour::kOn;
    EXPECT_EQ(run({"inspect", dir.path()}, output), Exit::kOk);
    EXPECT_EQ(output.out.find('\x1b') != std::string::npos, on_out);
    EXPECT_EQ(output.err.find('\x1b') != std::string::npos, !on_out);
  }
  Output json;
  json.out_colour = Colour::kOn;
  EXPECT_EQ(run({"inspect", "--json", dir.path()}, json), Exit::kOk);
  EXPECT_EQ(json.out.find('\x1b'), std::string::npos);
}

TEST(Command, JsonIsJsonWhateverHappens) {
  const test::TempDir dir;
  const std::string path = dir.write("m.safetensors", one_tensor_file("t", "data"));
  const Ran good = run_with({"inspect", "--json", path});
  EXPECT_EQ(good.code, 0);
  const auto document = parse(good.out);
  ASSERT_TRUE(document.has_value()) << good.out;
  EXPECT_EQ(document->root().find("ok")->kind(), JsonKind::kTrue);
  EXPECT_FALSE(document->root().find("tensors").has_value()) << "only with --tensors";
  const Ran all = run_with({"inspect", path, "--json", "--tensors"});
  EXPECT_EQ(parse(all.out)->root().find("tensors")->size(), 1U);

  const Ran bad = run_with({"inspect", "--json", dir.path("nothing")});
  EXPECT_EQ(bad.code, 3);
  const auto refusal = parse(bad.out);
  ASSERT_TRUE(refusal.has_value()) << bad.out;
  EXPECT_EQ(refusal->root().find("ok")->kind(), JsonKind::kFalse);
  const JsonValue problem = (*refusal->root().find("problems")->begin()).value;
  EXPECT_EQ(problem.find("code")->text(), "not_found");
  EXPECT_EQ(problem.find("file")->text(), dir.path("nothing"));
}

TEST(Command, OptionsReachTheInspection) {
  const test::TempDir dir;
  dir.write("out/s", one_tensor_file("t", "data") + "PK");
  dir.link("in/s.safetensors", "../out/s");
  EXPECT_THAT(run_with({"inspect", dir.path("in")}).err, HasSubstr("outside_root"));
  EXPECT_THAT(run_with({"inspect", dir.path("in"), "--root", dir.path()}).err, HasSubstr("trailing_bytes"));
  const Ran ran =
      run_with({"inspect", dir.path("in"), "--root", dir.path(), "--allow-trailing-bytes", "--verify-hash"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("unverified"));
}

TEST(Command, EmptyCheckpoint) {
  const test::TempDir dir;
  const std::string path = dir.write("m.safetensors", test::safetensors_bytes("{}", ""));
  const Ran ran = run_with({"inspect", path});
  EXPECT_EQ(ran.code, 0);
  EXPECT_THAT(ran.out, HasSubstr("0 tensors in 1 file, 0 B"));
  const Ran json = run_with({"inspect", path, "--json", "--tensors"});
  const auto document = parse(json.out);
  ASSERT_TRUE(document.has_value());
  EXPECT_EQ(document->root().find("tensor_count")->as_uint64(), 0U);
  EXPECT_EQ(document->root().find("tensors")->size(), 0U);
}

void expect_safe(const Ran& ran) {
  for (const std::string& text : {ran.out, ran.err}) {
    for (const char c : text) ASSERT_TRUE(c == '\n' || static_cast<unsigned char>(c) >= 0x20) << text;
    EXPECT_THAT(text, Not(HasSubstr("\u202e")));
  }
}

TEST(Command, Fault16_HostileNamesAreEscapedOnTheTerminal) {
  const test::TempDir dir;
  const std::string name = R"(a\u001b[2J\n\u202e\u0000<script>)";
  dir.write("m.safetensors", one_tensor_file(name, "data"));
  for (const char* option : {"--tensors", "--verify-hash"}) {
    const Ran ran = run_with({"inspect", dir.path(), option});
    EXPECT_EQ(ran.code, 0);
    expect_safe(ran);
    EXPECT_THAT(ran.out, HasSubstr(R"(a\x1b[2J\n\u202e\x00<script>)"));
  }
  const auto document = parse(run_with({"inspect", dir.path(), "--tensors", "--json"}).out);
  ASSERT_TRUE(document.has_value());
  const JsonValue tensor = (*document->root().find("tensors")->begin()).value;
  EXPECT_EQ(tensor.find("name")->text(), std::string("a\x1b[2J\n\u202e\0<script>", 18)) << "data is not escaped";
}

TEST(Command, Fault16_HostileFileNamesAreEscapedOnTheTerminal) {
  const test::TempDir dir;
  const std::string good = dir.write("g\x1b[31m/m\n\x1b.safetensors", one_tensor_file("t", "data"));
  const std::string bad = dir.write("b\x1b[31m\n\u202e.safetensors", "short");
  expect_safe(run_with({"inspect", good}));
  expect_safe(run_with({"inspect", bad}));
  expect_safe(run_with({"inspect", bad + ".none"}));
  EXPECT_EQ(run_with({"inspect", good}).code, 0);
}

// `lading inspect *` in a folder that came from an archive.
TEST(Command, Fault16_HostileArgumentsAreEscapedInUsageErrors) {
  expect_safe(run_with({"inspect", "a", "b\x1b[2J"}));
  expect_safe(run_with({"inspect", "--x\x1b[2J"}));
}

TEST(Command, DemoWritesAndInspects) {
  const test::TempDir dir;
  const Ran ran = run_with({"demo", "--dir", dir.path("demo")});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("layers.{0..1}"));
  EXPECT_TRUE(std::filesystem::exists(dir.path("demo/model.safetensors.index.json")));
  EXPECT_EQ(run_with({"demo", "--dir", dir.path("demo")}).code, 0) << "again";
  dir.write("demo/model.safetensors.index.json", "mine");
  const Ran refused = run_with({"demo", "--dir", dir.path("demo")});
  EXPECT_EQ(refused.code, 5);
  EXPECT_EQ(refused.out, "");
  EXPECT_THAT(refused.err, HasSubstr("write_failed"));
}

}  // namespace
}  // namespace lading::cli
