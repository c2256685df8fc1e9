// Header: what a file of a checkpoint says that it holds, whatever its format is, and how much it may say.
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
#include "lading/shape.h"

namespace lading::checkpoint {

/// Of the JSON text: the limit of safetensors' own reader.
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

/// Promises, of every format: the tensors tile the data, names are unique, a shape times its dtype is the number of
/// bytes, and there are at most HeaderContext::max_entries of them. check_promises() in fuzz/fuzz_header.cc looks.
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

}  // namespace lading::checkpoint
