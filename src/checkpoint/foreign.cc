#include "checkpoint/foreign.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/text.h"
#include "checkpoint/safetensors_header.h"

namespace lading::checkpoint {
namespace {

using Names = std::vector<std::string>;

constexpr std::size_t kShownBytes = 12;
constexpr std::size_t kShownNames = 3;

// Commands take paths as arguments, so that nobody pastes a name from a file into a program. weights_only keeps torch
// from running what a pickle says. In the remedies below kTorchMark stands for this command.
constexpr std::string_view kTorchMark = "TORCH_COMMAND";
constexpr std::string_view kTorchCommand =
    "python -c \"import sys, torch; from safetensors.torch import save_file; t = {}; [t.update(torch.load(f, "
    "map_location='cpu', weights_only=True)) for f in sys.argv[2:]]; save_file({k: v.clone().contiguous() for k, v in "
    "t.items()}, sys.argv[1])\" OUT.safetensors";

constexpr std::string_view kConvertTorchFile =
    "Convert it: TORCH_COMMAND FILE. If the file keeps the tensors under a key such as 'state_dict', take them from "
    "there.";
constexpr std::string_view kConvertTorchDirectory =
    "Convert them: TORCH_COMMAND FILES, where FILES are the files with weights (not training_args.bin or "
    "optimizer.pt). If a file keeps the tensors under a key such as 'state_dict', take them from there.";
constexpr std::string_view kConvertDcp =
    "If you trust who wrote it (its .metadata is a pickle), convert it: python -m "
    "torch.distributed.checkpoint.format_utils dcp_to_torch DIR OUT.pt, and then OUT.pt: TORCH_COMMAND OUT.pt.";
constexpr std::string_view kConsolidateDcp =
    "Consolidate them: python -c \"import os, sys; from torch.distributed.checkpoint import HuggingFaceStorageReader "
    "as "
    "R; from torch.distributed.checkpoint._consolidate_hf_safetensors import consolidate_safetensors_files as c; "
    "os.makedirs(sys.argv[2]); c(sys.argv[1], sys.argv[2], "
    "dict.fromkeys(R(sys.argv[1]).read_metadata().state_dict_metadata, 1))\" DIR OUT_DIR.";
constexpr std::string_view kConvertZero =
    "If you trust who wrote it (it is made of pickles), convert it: python -m deepspeed.utils.zero_to_fp32 "
    "--safe_serialization DIR OUT_DIR.";
constexpr std::string_view kConvertGguf =
    "Fetch the model's safetensors files (hf download ORG/NAME), or convert this one to full precision: python -c "
    "\"import sys; from transformers import AutoModelForCausalLM as M; M.from_pretrained(sys.argv[1], "
    "gguf_file=sys.argv[2]).save_pretrained(sys.argv[3])\" DIR FILE OUT_DIR.";
constexpr std::string_view kConvertHdf5 =
    "Convert it: python -c \"import sys, h5py; from safetensors.numpy import save_file; t = {}; "
    "h5py.File(sys.argv[1]).visititems(lambda k, v: t.update({k: v[()]}) if isinstance(v, h5py.Dataset) else None); "
    "save_file(t, sys.argv[2])\" FILE OUT.safetensors. Names and shapes stay those of Keras.";
constexpr std::string_view kConvertOrbax =
    "Convert it: python -c \"import os, sys, orbax.checkpoint as o; from flax.traverse_util import flatten_dict; from "
    "safetensors.flax import save_file; save_file(flatten_dict(o.PyTreeCheckpointer().restore(os.path.abspath("
    "sys.argv[1])), sep='.'), sys.argv[2])\" DIR OUT.safetensors. Names and shapes stay those of JAX.";
constexpr std::string_view kConvertTensorFlow =
    "Convert it: python -c \"import sys, tensorflow as tf; from safetensors.numpy import save_file; r = "
    "tf.train.load_checkpoint(sys.argv[1]); save_file({k: r.get_tensor(k) for k, d in "
    "r.get_variable_to_dtype_map().items() if d != tf.string}, sys.argv[2])\" DIR OUT.safetensors (of a SavedModel: "
    "DIR/variables/variables). Names and shapes stay those of TensorFlow.";
constexpr std::string_view kConvertMsgpack =
    "Convert it: python -c \"import sys, flax.serialization as f; from flax.traverse_util import flatten_dict; from "
    "safetensors.flax import save_file; save_file(flatten_dict(f.msgpack_restore(open(sys.argv[1], 'rb').read()), "
    "sep='.'), sys.argv[2])\" FILE OUT.safetensors. Names and shapes stay those of Flax.";
constexpr std::string_view kFetchLfs =
    "Fetch the file itself: run git lfs pull in the repository, or hf download ORG/NAME.";
constexpr std::string_view kFetchPage =
    "Log in (hf auth login), accept the terms on the model's page if it has some, and fetch the file again: hf "
    "download "
    "ORG/NAME.";
constexpr std::string_view kUnpackTar =
    "Unpack it (tar -xf FILE -C DIR) and pass the safetensors files in it. If torch.save wrote it before PyTorch 0.2, "
    "save it again: torch.load refuses such a file with weights_only=True.";

std::string with_command(std::string_view remedy) {
  std::string text(remedy);
  const std::size_t mark = text.find(kTorchMark);
  return mark == std::string::npos ? text : text.replace(mark, kTorchMark.size(), kTorchCommand);
}

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

// A length that may be, and JSON behind it. Two of its bytes may be those with which a pickle begins.
bool may_be_safetensors(std::string_view bytes) {
  if (bytes.size() <= kLengthBytes || stated_header_length(bytes) > kMaxHeaderBytes) return false;
  return bytes[kLengthBytes] == '{' || is_space(bytes[kLengthBytes]);
}

// Protocols 2 to 5: the number, then an opcode that can come first.
bool is_pickle(std::string_view bytes) {
  constexpr std::string_view kFirst = "}])(cXKJMNG\x88\x89\x8a\x8b\x8c\x95";
  return bytes.size() >= 3 && bytes[0] == '\x80' && bytes[1] >= 2 && bytes[1] <= 5 &&
         kFirst.find(bytes[2]) != std::string_view::npos;
}

// torch.save until PyTorch 1.6: the pickle of one number, then more pickles.
bool is_old_torch(std::string_view bytes) {
  return is_pickle(bytes) && bytes.substr(2).starts_with("\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19");
}

bool is_zip(std::string_view bytes) { return bytes.starts_with("PK\x03\x04") || bytes.starts_with("PK\x05\x06"); }
bool is_gguf(std::string_view bytes) { return bytes.starts_with("GGUF"); }
bool is_lfs_pointer(std::string_view bytes) { return bytes.starts_with("version https://git-lfs"); }
bool is_hdf5(std::string_view bytes) { return bytes.starts_with("\x89HDF\r\n\x1a\n"); }
bool is_tar(std::string_view bytes) { return bytes.size() > 262 && bytes.substr(257, 5) == "ustar"; }

bool starts_with_letters(std::string_view text, std::string_view lower_case) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  return text.size() >= lower_case.size() && std::equal(lower_case.begin(), lower_case.end(), text.begin(),
                                                        [&](char wanted, char c) { return wanted == lower(c); });
}

bool is_page(std::string_view bytes) {
  if (bytes.starts_with("\xef\xbb\xbf")) bytes.remove_prefix(3);
  while (!bytes.empty() && is_space(bytes.front())) bytes.remove_prefix(1);
  constexpr std::array<std::string_view, 4> kBeginnings = {"<!doctype html", "<html", "<head", "<?xml"};
  return std::any_of(kBeginnings.begin(), kBeginnings.end(),
                     [&](std::string_view one) { return starts_with_letters(bytes, one); });
}

struct FileKind {
  bool (*matches)(std::string_view first_bytes);
  std::string_view what;
  std::string_view remedy;
};

// The first that matches is told.
constexpr std::array kFileKinds = {
    FileKind{is_old_torch, "a pickle of torch.save before PyTorch 1.6", kConvertTorchFile},
    FileKind{is_pickle, "a Python pickle", kConvertTorchFile},
    FileKind{is_zip, "a zip archive, as torch.save writes it (.bin, .pt)", kConvertTorchFile},
    FileKind{is_gguf, "a GGUF file, the format of llama.cpp", kConvertGguf},
    FileKind{is_lfs_pointer, "a git-lfs pointer, not the file that it points to", kFetchLfs},
    FileKind{is_page, "a web page, such as a login or an error, in place of the file", kFetchPage},
    FileKind{is_hdf5, "an HDF5 file, as Keras writes it (.h5)", kConvertHdf5},
    FileKind{is_tar, "a tar archive", kUnpackTar},
};

bool has(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

using Affixes = std::initializer_list<std::string_view>;

// The names of which `matches(name, affix)` holds for one of the affixes.
template <class Matches>
Names names_with(const Names& names, Affixes affixes, const Matches& matches) {
  Names found;
  std::copy_if(names.begin(), names.end(), std::back_inserter(found), [&](const std::string& name) {
    return std::any_of(affixes.begin(), affixes.end(), [&](std::string_view affix) { return matches(name, affix); });
  });
  return found;
}

Names ending_in(const Names& names, Affixes endings) {
  return names_with(names, endings, [](std::string_view name, std::string_view word) { return name.ends_with(word); });
}

Names beginning_with(const Names& names, Affixes beginnings) {
  return names_with(names, beginnings,
                    [](std::string_view name, std::string_view word) { return name.starts_with(word); });
}

Names dcp_names(const Names& names) { return ending_in(names, {".distcp"}); }

Names zero_names(const Names& names) {
  Names found = ending_in(names, {"_model_states.pt", "_optim_states.pt"});
  if (has(names, "zero_to_fp32.py")) found.emplace_back("zero_to_fp32.py");
  return found;
}

Names orbax_names(const Names& names) {
  Names found = beginning_with(names, {"_METADATA", "_CHECKPOINT_METADATA", "ocdbt.process_"});
  for (const std::string_view one : {"manifest.ocdbt", ".zarray"}) {
    if (has(names, one)) found.emplace_back(one);
  }
  return found;
}

// "x.index" beside "x.data-00000-of-00001". A file called "checkpoint" alone may be anything.
Names tensorflow_names(const Names& names) {
  Names found;
  for (const std::string& name : ending_in(names, {".index"})) {
    const std::string data = name.substr(0, name.size() - std::string_view(".index").size()) + ".data-";
    if (name.ends_with(".ckpt.index") || has(names, "checkpoint") || !beginning_with(names, {data}).empty())
      found.push_back(name);
  }
  if (has(names, "saved_model.pb")) found.emplace_back("saved_model.pb");
  return found;
}

// What a trainer saves beside the weights is not meant.
Names torch_names(const Names& names) {
  Names found = ending_in(names, {".bin", ".pt", ".pth", ".ckpt", ".bin.index.json"});
  const Names others = beginning_with(found, {"training_args.", "optimizer.", "scheduler.", "rng_state"});
  std::erase_if(found, [&](const std::string& name) { return has(others, name); });
  return found;
}

Names gguf_names(const Names& names) { return ending_in(names, {".gguf"}); }
Names hdf5_names(const Names& names) { return ending_in(names, {".h5", ".hdf5", ".keras"}); }
Names msgpack_names(const Names& names) { return ending_in(names, {".msgpack"}); }

struct DirectoryKind {
  Names (*telling)(const Names& names);  // the names that say that it is one
  std::string_view what;
  std::string_view remedy;
};

constexpr std::array kDirectoryKinds = {
    DirectoryKind{dcp_names, "a checkpoint of torch.distributed.checkpoint (DCP)", kConvertDcp},
    DirectoryKind{zero_names, "a training checkpoint of DeepSpeed", kConvertZero},
    DirectoryKind{orbax_names, "an Orbax checkpoint of JAX", kConvertOrbax},
    DirectoryKind{tensorflow_names, "a TensorFlow checkpoint", kConvertTensorFlow},
    DirectoryKind{torch_names, "PyTorch pickles (.bin, .pt) and no safetensors file", kConvertTorchDirectory},
    DirectoryKind{gguf_names, "GGUF files, the format of llama.cpp, and no safetensors file", kConvertGguf},
    DirectoryKind{hdf5_names, "Keras files (.h5) and no safetensors file", kConvertHdf5},
    DirectoryKind{msgpack_names, "Flax files (.msgpack) and no safetensors file", kConvertMsgpack},
};

std::string shown(const Names& telling, std::size_t all) {
  std::string text;
  const std::size_t listed = std::min(telling.size(), kShownNames);
  for (std::size_t i = 0; i < listed; ++i) text += (i == 0 ? "" : ", ") + quote(telling[i]);
  if (all > listed) text += fmt::format(" and {} more", all - listed);
  return text;
}

}  // namespace

std::optional<Error> recognise_file(std::string_view first_bytes, std::string_view file) {
  if (may_be_safetensors(first_bytes)) return std::nullopt;
  const auto kind =
      std::find_if(kFileKinds.begin(), kFileKinds.end(), [&](const FileKind& one) { return one.matches(first_bytes); });
  if (kind == kFileKinds.end()) return std::nullopt;
  const bool is_dcp = kind->matches == is_zip && file.ends_with(".distcp");
  const std::string_view what = is_dcp ? "a part of a checkpoint of torch.distributed.checkpoint (DCP)" : kind->what;
  return Error(Code::kNotACheckpoint, fmt::format("the file is {}", what))
      .in_file(file)
      .at({0, std::min(first_bytes.size(), kShownBytes)})
      .wanted("a safetensors file or its index")
      .got(fmt::format("a file that begins with {}", quote(first_bytes.substr(0, kShownBytes))))
      .try_this(with_command(is_dcp ? kConvertDcp : kind->remedy));
}

std::optional<Error> recognise_directory(const Names& names, std::string_view directory) {
  for (const DirectoryKind& kind : kDirectoryKinds) {
    const Names telling = kind.telling(names);
    if (telling.empty()) continue;
    return Error(Code::kNotACheckpoint, fmt::format("the directory holds {}", kind.what))
        .in_file(directory)
        .wanted("model.safetensors.index.json, or one file ending in .safetensors")
        .got(shown(telling, names.size()))
        .try_this(with_command(kind.remedy));
  }
  return std::nullopt;
}

std::optional<Error> recognise_shards_of_dcp(const Names& names, std::string_view directory) {
  Names shards = beginning_with(names, {"shard-"});
  std::erase_if(shards, [](const std::string& name) {
    return name.find("-model-") == std::string::npos || !name.ends_with(kFileEnding);
  });
  if (shards.size() < 2) return std::nullopt;
  return Error(Code::kNotACheckpoint,
               "the directory holds shards of tensors, which torch.distributed.checkpoint (DCP) has not consolidated")
      .in_file(directory)
      .wanted("model.safetensors.index.json, or one file ending in .safetensors")
      .got(shown(shards, names.size()))
      .try_this(std::string(kConsolidateDcp));
}

}  // namespace lading::checkpoint
