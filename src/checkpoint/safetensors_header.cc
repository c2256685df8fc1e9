#include "checkpoint/safetensors_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/checked.h"
#include "base/text.h"
#include "checkpoint/tensor_table.h"

namespace lading::checkpoint {
namespace {

constexpr std::string_view kMetadataKey = "__metadata__";

class HeaderReader {
 public:
  explicit HeaderReader(const HeaderContext& context, std::uint64_t json_bytes)
      : context_(context), data_begin_(kLengthBytes + json_bytes), table_(context, data_begin_) {}

  Result<Header, Errors> read(const JsonDocument& document, const JsonDuplicates& duplicates) {
    for (const JsonDuplicate& duplicate : duplicates.list) refuse_duplicate(duplicate);
    errors_.count_not_listed(duplicates.not_listed);
    std::sort(ambiguous_.begin(), ambiguous_.end());
    const JsonValue root = document.root();
    if (!root.is_object()) {
      errors_.add(error_at(
          root.offset(),
          Error(Code::kHeaderField, "the header is not an object").wanted("an object of tensors").got(root.found())));
      return fail(std::move(errors_));
    }
    const std::uint64_t entries = entries_of(root);
    if (entries > context_.max_entries) return fail(Errors(too_many(root, entries)));
    table_.reserve(root.size());
    for (const JsonMember member : root) {
      if (member.key == kMetadataKey) {
        read_metadata(member.value);
      } else {
        read_tensor(member);
      }
    }
    table_.sort();
    // Tiling is judged only when every tensor has one place; otherwise each fault would be told twice.
    if (all_placed_ && duplicates.list.empty()) table_.check_tiling(errors_);
    if (!errors_.empty()) return fail(std::move(errors_));
    return finish();
  }

 private:
  static std::uint64_t entries_of(const JsonValue& root) {
    const auto metadata = root.find(kMetadataKey);
    return metadata ? root.size() - 1 + metadata->size() : root.size();
  }

  [[nodiscard]] Error too_many(const JsonValue& root, std::uint64_t entries) const {
    return error_at(root.offset(),
                    Error(Code::kHeaderTooLarge, "the checkpoint has too many tensors or metadata entries"))
        .wanted(fmt::format("at most {} tensors and entries of __metadata__ in all files", with_commas(kMaxEntries)))
        .got(fmt::format("{} here, and {} in other files", with_commas(entries),
                         with_commas(kMaxEntries - context_.max_entries)))
        .try_this("Check that this is the right file. If it is, please report it: no known checkpoint has so many.");
  }

  [[nodiscard]] Error error_at(std::uint64_t json_offset, Error error) const {
    const std::uint64_t place = kLengthBytes + json_offset;
    return std::move(error).in_file(context_.file).at({place, place + 1}).by_rule("R45");
  }

  void refuse_duplicate(const JsonDuplicate& duplicate) {
    const std::string& outermost = duplicate.path->empty() ? duplicate.key : duplicate.path->front();
    const bool of_tensor = outermost != kMetadataKey;
    if (of_tensor && (ambiguous_.empty() || ambiguous_.back() != outermost)) ambiguous_.push_back(outermost);
    if (errors_.is_full()) {
      errors_.count_not_listed(1);
      return;
    }
    Error error = duplicate.error(kLengthBytes);
    if (of_tensor) error.tensor = outermost;
    errors_.add(std::move(error).in_file(context_.file).by_rule("R45"));
  }

  void read_metadata(const JsonValue& value) {
    if (!value.is_object()) {
      errors_.add(error_at(value.offset(), Error(Code::kHeaderMetadata, "__metadata__ is not an object")
                                               .wanted("an object of strings")
                                               .got(value.found())));
      return;
    }
    for (const JsonMember member : value) {
      if (!member.value.is_string()) {
        errors_.add(
            error_at(member.value.offset(),
                     Error(Code::kHeaderMetadata, fmt::format("__metadata__ {} is not a string", quote(member.key)))
                         .wanted("a string")
                         .got(member.value.found())));
        continue;
      }
      metadata_.emplace_back(member.key, member.value.text());
    }
  }

  void read_tensor(const JsonMember& member) {
    // Which of two entries or fields is meant nobody knows, so nothing more is said of them.
    if (std::binary_search(ambiguous_.begin(), ambiguous_.end(), member.key)) return;
    HeaderTensor tensor;
    tensor.name = member.key;
    if (!member.value.is_object()) {
      refuse(tensor, member.value.offset(),
             Error(Code::kHeaderField, "the entry is not an object")
                 .wanted("an object with dtype, shape and data_offsets")
                 .got(member.value.found()));
      all_placed_ = false;
      return;
    }
    std::optional<JsonValue> dtype;
    std::optional<JsonValue> shape;
    std::optional<JsonValue> offsets;
    for (const JsonMember field : member.value) {
      if (field.key == "dtype") {
        dtype = field.value;
      } else if (field.key == "shape") {
        shape = field.value;
      } else if (field.key == "data_offsets") {
        offsets = field.value;
      } else {
        refuse(tensor, field.key_offset,
               Error(Code::kHeaderField, fmt::format("the entry has an unknown field {}", quote(field.key)))
                   .by_rule("S1")
                   .wanted("only dtype, shape and data_offsets"));
      }
    }
    const bool dtype_ok = read_dtype(tensor, member, dtype);
    const bool shape_ok = read_shape(tensor, member, shape);
    const bool offsets_ok = read_offsets(tensor, member, offsets);
    if (!offsets_ok) all_placed_ = false;
    if (dtype_ok && shape_ok && offsets_ok) {
      if (auto wrong = table_.check_size(tensor)) refuse(tensor, shape->offset(), *std::move(wrong));
    }
    table_.add(std::move(tensor), kLengthBytes + member.key_offset);
  }

  void refuse(const HeaderTensor& tensor, std::uint64_t json_offset, Error error) {
    if (errors_.is_full()) {
      errors_.count_not_listed(1);
      return;
    }
    const std::string rule = error.rule.empty() ? "R45" : error.rule;
    errors_.add(error_at(json_offset, std::move(error).of_tensor(tensor.name)).by_rule(rule));
  }

  bool missing(const HeaderTensor& tensor, const JsonMember& member, std::string_view field) {
    refuse(
        tensor, member.value.offset(),
        Error(Code::kHeaderField, fmt::format("the entry has no {}", field)).wanted("dtype, shape and data_offsets"));
    return false;
  }

  bool read_dtype(HeaderTensor& tensor, const JsonMember& member, const std::optional<JsonValue>& value) {
    if (!value) return missing(tensor, member, "dtype");
    if (!value->is_string()) {
      refuse(
          tensor, value->offset(),
          Error(Code::kHeaderField, "dtype is not a string").wanted("a string such as \"BF16\"").got(value->found()));
      return false;
    }
    tensor.dtype = dtype_from_name(value->text());
    if (tensor.dtype) return true;
    tensor.unknown_dtype = value->text();
    warnings_.add(
        error_at(value->offset(), Error(Code::kUnknownDType, fmt::format("unknown dtype {}", quote(value->text())))
                                      .of_tensor(tensor.name)
                                      .try_this("Update lading, or convert the tensor to a known dtype. Until then "
                                                "lading lists it, but cannot load it.")));
    return true;
  }

  bool read_shape(HeaderTensor& tensor, const JsonMember& member, const std::optional<JsonValue>& value) {
    if (!value) return missing(tensor, member, "shape");
    if (!value->is_array()) {
      refuse(tensor, value->offset(),
             Error(Code::kHeaderShape, "shape is not an array").wanted("an array of sizes").got(value->found()));
      return false;
    }
    Shape shape;
    for (const JsonMember member_dim : *value) {
      if (shape.rank() == kMaxRank) {
        refuse(tensor, member_dim.value.offset(),
               Error(Code::kHeaderShape, "the shape has too many dims")
                   .by_rule("S2")
                   .wanted(fmt::format("at most {}", kMaxRank))
                   .got(with_commas(value->size())));
        return false;
      }
      const auto dim = member_dim.value.as_uint64();
      if (!dim) {
        refuse(tensor, member_dim.value.offset(),
               Error(Code::kHeaderShape, fmt::format("dim {} of the shape is not a size", shape.rank()))
                   .wanted("a whole number from 0 to 2^64 - 1")
                   .got(member_dim.value.found()));
        return false;
      }
      shape.push_back(*dim);
    }
    tensor.shape = std::move(shape);
    if (tensor.shape.num_elems()) return true;
    refuse(tensor, value->offset(),
           Error(Code::kHeaderShape, "the number of elements overflows")
               .by_rule("S3")
               .wanted("non-zero dims whose product is below 2^63")
               .got(tensor.shape.text()));
    return false;
  }

  bool read_offsets(HeaderTensor& tensor, const JsonMember& member, const std::optional<JsonValue>& value) {
    if (!value) return missing(tensor, member, "data_offsets");
    if (!value->is_array()) {
      refuse(tensor, value->offset(),
             Error(Code::kHeaderOffsets, "data_offsets is not an array").wanted("[begin, end]").got(value->found()));
      return false;
    }
    std::array<std::uint64_t, 2> pair{};
    std::size_t count = 0;
    for (const JsonMember element : *value) {
      const auto number = element.value.as_uint64();
      if (!number) {
        refuse(tensor, element.value.offset(),
               Error(Code::kHeaderOffsets, "an offset is not a byte count")
                   .wanted("a whole number from 0 to 2^64 - 1")
                   .got(element.value.found()));
        return false;
      }
      if (count < pair.size()) pair[count] = *number;
      if (++count > pair.size()) break;
    }
    if (count != pair.size()) {
      refuse(tensor, value->offset(),
             Error(Code::kHeaderOffsets, "data_offsets is not a pair")
                 .wanted("[begin, end]")
                 .got(fmt::format("{} numbers", value->size())));
      return false;
    }
    if (pair[0] > pair[1] || pair[1] > kMaxSize - data_begin_) {
      refuse(tensor, value->offset(),
             Error(Code::kHeaderOffsets, "data_offsets are not a range of bytes")
                 .wanted("begin <= end < 2^63")
                 .got(fmt::format("[{}, {}]", pair[0], pair[1])));
      return false;
    }
    tensor.bytes = {data_begin_ + pair[0], data_begin_ + pair[1]};
    return true;
  }

  Header finish() {
    Header header;
    header.tensors = std::move(table_).take();
    header.metadata = std::move(metadata_);
    header.data_begin_bytes = data_begin_;
    header.warnings = std::move(warnings_);
    return header;
  }

  const HeaderContext& context_;
  const std::uint64_t data_begin_;
  TensorTable table_;
  std::vector<std::pair<std::string, std::string>> metadata_;
  std::vector<std::string> ambiguous_;  // tensors with duplicate keys, sorted
  bool all_placed_ = true;
  Errors errors_;
  Errors warnings_;
};

}  // namespace

std::uint64_t stated_header_length(std::string_view prefix) {
  LADING_CHECK(prefix.size() >= kLengthBytes);
  std::uint64_t length = 0;
  for (std::size_t i = kLengthBytes; i-- > 0;) length = length << 8 | static_cast<unsigned char>(prefix[i]);
  return length;
}

Result<std::uint64_t> header_length_bytes(std::string_view prefix, const HeaderContext& context) {
  if (prefix.size() < kLengthBytes || context.file_size_bytes < kLengthBytes) {
    return fail(Error(Code::kHeaderTruncated, "the file is too short for a safetensors header")
                    .in_file(context.file)
                    .at({0, context.file_size_bytes})
                    .by_rule("R45")
                    .wanted("at least 8 bytes")
                    .got(fmt::format("{} bytes", context.file_size_bytes))
                    .try_this("Fetch the file again: it is incomplete."));
  }
  const std::uint64_t length = stated_header_length(prefix);
  if (length > kMaxHeaderBytes) {
    return fail(Error(Code::kHeaderTooLarge, "the header is too long, by its own length field")
                    .in_file(context.file)
                    .at({0, kLengthBytes})
                    .by_rule("R45")
                    .wanted(fmt::format("at most {} bytes", kMaxHeaderBytes))
                    .got(fmt::format("{} bytes", length))
                    .try_this("Check that this is a safetensors file."));
  }
  if (length > context.file_size_bytes - kLengthBytes) {
    return fail(Error(Code::kHeaderTruncated, "the header is longer than the file")
                    .in_file(context.file)
                    .at({0, kLengthBytes})
                    .by_rule("R45")
                    .wanted(fmt::format("{} more bytes", length))
                    .got(fmt::format("{} bytes", context.file_size_bytes - kLengthBytes))
                    .try_this("Fetch the file again: it is incomplete, or not a safetensors file."));
  }
  return length;
}

Result<Header, Errors> parse_header(const JsonBuffer& json, const HeaderContext& context) {
  LADING_CHECK(json.text().size() <= context.file_size_bytes - kLengthBytes);
  JsonDuplicates duplicates;
  auto document = JsonDocument::parse_keeping_duplicates(json, duplicates, kHeaderLimits);
  if (!document) {
    JsonFault fault = std::move(document).error();
    if (!fault.path.empty() && fault.path.front() != kMetadataKey) fault.error.tensor = fault.path.front();
    Errors errors(std::move(fault.error));
    errors.relocate(context.file, kLengthBytes);
    return fail(std::move(errors));
  }
  return HeaderReader(context, json.text().size()).read(*document, duplicates);
}

}  // namespace lading::checkpoint
