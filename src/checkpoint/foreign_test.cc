#include "checkpoint/foreign.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "checkpoint/safetensors_header.h"
#include "support/safetensors_bytes.h"

namespace lading::checkpoint {
namespace {

using namespace std::string_literals;
using ::testing::HasSubstr;

std::string tar_archive() {
  std::string bytes(512, '\0');
  bytes.replace(0, 10, "model/x.pt");
  bytes.replace(257, 5, "ustar");
  return bytes;
}

struct Case {
  std::string name;
  std::string bytes;
  std::string what;
  std::string command;
};

class ForeignFile : public ::testing::TestWithParam<Case> {};

TEST_P(ForeignFile, IsNamedWithItsRemedy) {
  const Case& c = GetParam();
  const auto error = recognise_file(c.bytes, "dir/x.safetensors");
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->code, Code::kNotACheckpoint);
  EXPECT_EQ(error->file, "dir/x.safetensors");
  EXPECT_THAT(error->message, HasSubstr(c.what));
  EXPECT_THAT(error->remedy, HasSubstr(c.command));
  EXPECT_EQ(error->expected, "a safetensors file or its index");
  EXPECT_THAT(error->found, HasSubstr("begins with"));
  EXPECT_EQ(error->remedy.find("TORCH_COMMAND"), std::string::npos);
  EXPECT_EQ(error->remedy.back(), '.');
}

INSTANTIATE_TEST_SUITE_P(
    All, ForeignFile,
    ::testing::Values(
        Case{"pickle", "\x80\x02}q\x00X\x06\x00\x00\x00weight"s, "pickle", "weights_only=True"},
        Case{"pickle_of_protocol_4", "\x80\x04\x95\x05\x00\x00\x00\x00\x00\x00\x00}"s, "pickle", "weights_only=True"},
        Case{"pickle_of_six_bytes", "\x80\x02}q\x00."s, "pickle", "weights_only=True"},
        Case{"old_torch", "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."s, "before PyTorch 1.6",
             "weights_only=True"},
        Case{"zip", "PK\x03\x04\x00\x00\x08\x08\x00\x00\x00\x00"s, "zip archive", "weights_only=True"},
        Case{"gguf", "GGUF\x03\x00\x00\x00"s, "GGUF", "gguf_file="},
        Case{"git_lfs_pointer", "version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git-lfs pointer",
             "git lfs pull"},
        Case{"html", "\n <!DOCTYPE HTML><html>", "web page", "hf download"},
        Case{"html_without_doctype", "\xef\xbb\xbf<HTML><body>", "web page", "hf auth login"},
        Case{"xml", "<?xml version=\"1.0\"?><Error><Code>AccessDenied</Code></Error>", "web page", "hf download"},
        Case{"hdf5", "\x89HDF\r\n\x1a\n\0\0\0\0"s, "HDF5", "h5py"}, Case{"tar", tar_archive(), "tar", "tar -xf"}),
    [](const auto& one) { return one.param.name; });

// The length of a header may have the bytes of a magic number: 0x7d0280 begins as a pickle does.
TEST(ForeignFiles, ASafetensorsFileIsNeverForeign) {
  for (const std::uint64_t length : {0x280ULL, 0x7d0280ULL, 0x8a0280ULL, 0x5950480ULL, 0x2020ULL}) {
    for (const char* json : {"{", " {", "\n{"}) {
      EXPECT_FALSE(recognise_file(test::little_endian(length) + json, "x").has_value()) << length;
    }
  }
  EXPECT_FALSE(recognise_file(test::one_tensor_file("a", "AA"), "x").has_value());
}

TEST(ForeignFiles, UnknownAndShortFilesAreNotGuessedAt) {
  for (const std::string& bytes : {""s, "\x80"s, "\x80\x02"s, "\x80\x07}"s, "PK"s, "GGU"s, "<"s, "<htm"s, "version 1"s,
                                   "{\"a\":1}"s, std::string(512, '\xff'), std::string(512, '\0')}) {
    EXPECT_FALSE(recognise_file(bytes, "x").has_value()) << bytes;
  }
}

TEST(ForeignFiles, APartOfDcpIsNoPlainZip) {
  const auto error = recognise_file("PK\x03\x04\x00\x00\x08\x08"s, "__0_0.distcp");
  ASSERT_TRUE(error.has_value());
  EXPECT_THAT(error->message, HasSubstr("DCP"));
  EXPECT_THAT(error->remedy, HasSubstr("dcp_to_torch"));
}

struct Directory {
  std::string name;
  std::vector<std::string> names;
  std::string what;
  std::string command;
};

class ForeignDirectory : public ::testing::TestWithParam<Directory> {};

TEST_P(ForeignDirectory, IsNamedWithItsRemedy) {
  const Directory& c = GetParam();
  const auto error = recognise_directory(c.names, "dir");
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->code, Code::kNotACheckpoint);
  EXPECT_EQ(error->file, "dir");
  EXPECT_THAT(error->message, HasSubstr(c.what));
  EXPECT_THAT(error->remedy, HasSubstr(c.command));
  EXPECT_EQ(error->remedy.find("TORCH_COMMAND"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(
    All, ForeignDirectory,
    ::testing::Values(
        Directory{"dcp", {".metadata", "__0_0.distcp", "__1_0.distcp"}, "DCP", "dcp_to_torch"},
        Directory{"deepspeed", {"global_step8", "latest", "zero_to_fp32.py"}, "DeepSpeed", "zero_to_fp32"},
        Directory{"deepspeed_step", {"mp_rank_00_model_states.pt"}, "DeepSpeed", "zero_to_fp32"},
        Directory{"orbax", {"_CHECKPOINT_METADATA", "default"}, "Orbax", "orbax.checkpoint"},
        Directory{"orbax_item", {"_METADATA", "d", "manifest.ocdbt", "ocdbt.process_0"}, "Orbax", "orbax.checkpoint"},
        Directory{"zarr", {".zarray", "0.0"}, "Orbax", "orbax.checkpoint"},
        Directory{"tensorflow",
                  {"checkpoint", "model.ckpt.data-00000-of-00001", "model.ckpt.index"},
                  "TensorFlow",
                  "load_checkpoint"},
        Directory{"tensorflow_2",
                  {"checkpoint", "ckpt-1.data-00000-of-00001", "ckpt-1.index"},
                  "TensorFlow",
                  "load_checkpoint"},
        Directory{"saved_model", {"saved_model.pb", "variables"}, "TensorFlow", "variables/variables"},
        Directory{"bin", {"config.json", "pytorch_model.bin"}, "PyTorch pickles", "weights_only=True"},
        Directory{"bin_index", {"pytorch_model.bin.index.json"}, "PyTorch pickles", "weights_only=True"},
        Directory{"gguf", {"config.json", "m.Q4_K_M.gguf", "training_args.bin"}, "GGUF", "gguf_file="},
        Directory{"keras", {"tf_model.h5"}, "Keras", "h5py"},
        Directory{"flax", {"flax_model.msgpack"}, "Flax", "msgpack_restore"}),
    [](const auto& one) { return one.param.name; });

TEST(ForeignDirectories, ShardsThatDcpDidNotConsolidateAreNamed) {
  const std::string one = "shard-00001-model-00001-of-00001.safetensors";
  const std::string two = "shard-00002-model-00001-of-00001.safetensors";
  const auto error = recognise_shards_of_dcp({"config.json", one, two}, "dir");
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->code, Code::kNotACheckpoint);
  EXPECT_THAT(error->message, HasSubstr("DCP"));
  EXPECT_THAT(error->remedy, HasSubstr("consolidate_safetensors_files"));
  EXPECT_FALSE(recognise_shards_of_dcp({"config.json", one}, "dir").has_value());
  EXPECT_FALSE(recognise_shards_of_dcp({"a.safetensors", "b.safetensors"}, "dir").has_value());
  EXPECT_FALSE(recognise_shards_of_dcp({"shard-1.safetensors", "shard-2.safetensors"}, "dir").has_value());
}

TEST(ForeignDirectories, OtherDirectoriesAreNotGuessedAt) {
  EXPECT_FALSE(recognise_directory({}, "dir").has_value());
  EXPECT_FALSE(recognise_directory({"config.json", "x.index"}, "dir").has_value());
  EXPECT_FALSE(recognise_directory({"README.md", "checkpoint", "optimizer.pt"}, "dir").has_value());
}

// Names are data: a terminal must not obey them.
TEST(ForeignDirectories, NamesAreEscapedAndFew) {
  std::vector<std::string> names;
  for (int i = 0; i < 100; ++i) names.push_back("\x1b[31m" + std::to_string(i) + ".bin");
  const auto error = recognise_directory(names, "dir");
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->text().find('\x1b'), std::string::npos);
  EXPECT_THAT(error->found, HasSubstr("and 97 more"));
}

}  // namespace
}  // namespace lading::checkpoint
