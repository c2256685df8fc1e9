// Header: what a file of a checkpoint says that it holds, whatever its format is, and how much it may say. Pure.
//
// A file is read in three steps: find_header() looks at its first bytes and chooses the format; the caller reads the
// text of the header; the format's reader parses it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json_reader.h"
#include "lading/byte_range.h"
#include "lading/dtype.h"
#include "lading/error.h"
#include "lading/result.h"
#include "lading/shape.h"

namespace lading::checkpoint {

/// How the names of a checkpoint's files end, in directories and in an index. A file that is named by the user may have
/// any name.
inline constexpr std::string_view kFileEnding = ".safetensors";
/// Of a header's text: the limit of safetensors' own reader.
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
inline constexpr std::size_t kMaxRank = 64;
/// Tensors and entries of __metadata__, of all files of a checkpoint together. The largest checkpoints that we know
/// have 300,000 tensors. What is made of each takes many times the 60 bytes that a hostile header needs to name it.
inline constexpr std::uint64_t kMaxEntries = 1'000'000;
inline constexpr JsonLimits kHeaderLimits{kMaxEntries + 1, 2 * kMaxEntries, Code::kHeaderTooLarge};

struct HeaderTensor {
  std::string name;
  std::optional<DType> dtype;  ///< nothing: a type that this version does not know
  std::string unknown_dtype;   ///< its name then
  Shape shape;
  std::uint32_t file = 0;  ///< into Catalog::files, in a catalog
  ByteRange bytes;         ///< in the file, not in its data section
};

/// Promises, of every format: the tensors tile the data; a tensor has the bytes of its shape and dtype, and at most
/// kMaxRank dims; names are unique and valid UTF-8; there are at most HeaderContext::max_entries of tensors and
/// metadata together. fuzz/fuzz_header.cc checks all of them; TensorTable (tensor_table.h) helps a reader to keep the
/// first two.
struct Header {
  std::vector<HeaderTensor> tensors;  ///< by position in the file
  std::vector<std::pair<std::string, std::string>> metadata;
  std::uint64_t data_begin_bytes = 0;
  Errors warnings;
};

enum class TrailingBytes : std::uint8_t { kRefuse, kAllow };

struct HeaderContext {
  std::string_view file;
  std::uint64_t file_size_bytes = 0;
  TrailingBytes trailing_bytes = TrailingBytes::kRefuse;
  std::uint64_t max_entries = kMaxEntries;  ///< that the checkpoint's other files have left for this one
};

/// find_header() needs as many of a file's first bytes, or the whole file if it is shorter.
inline constexpr std::size_t kFirstBytes = 8;

struct FoundHeader {
  ByteRange text;  ///< begins within the first kFirstBytes
  Result<Header, Errors> (*parse)(const JsonBuffer& text, const HeaderContext& context) = nullptr;
};

/// Checks the size of the text against the file and kMaxHeaderBytes, so that the caller may allocate it.
Result<FoundHeader> find_header(std::string_view first_bytes, const HeaderContext& context);

}  // namespace lading::checkpoint
