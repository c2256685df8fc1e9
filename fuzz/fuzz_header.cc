// Any bytes as a file of a checkpoint, of every format: no crash, and what is accepted satisfies the reader's promises.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/text.h"
#include "checkpoint/header.h"

using namespace lading;
using namespace lading::checkpoint;

namespace {

constexpr std::uint64_t kMostEntries = 20;  // the largest input holds more

void check_promises(const Header& header, std::uint64_t file_size) {
  LADING_CHECK(header.tensors.size() + header.metadata.size() <= kMostEntries);
  std::uint64_t reached = header.data_begin_bytes;
  for (const HeaderTensor& tensor : header.tensors) {
    LADING_CHECK(tensor.bytes.begin == reached && tensor.bytes.satisfies_invariants());
    LADING_CHECK(tensor.shape.rank() <= kMaxRank);
    LADING_CHECK(!find_invalid_utf8(tensor.name));
    if (tensor.dtype) LADING_CHECK(tensor.shape.size_bytes(*tensor.dtype) == tensor.bytes.size_bytes());
    reached = tensor.bytes.end;
  }
  LADING_CHECK(reached == file_size);
  std::vector<std::string_view> names;
  for (const HeaderTensor& tensor : header.tensors) names.push_back(tensor.name);
  std::sort(names.begin(), names.end());
  LADING_CHECK(std::adjacent_find(names.begin(), names.end()) == names.end());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view file(reinterpret_cast<const char*>(data), size);
  const HeaderContext context{"fuzzed", size, TrailingBytes::kRefuse, kMostEntries};
  const auto found = find_header(file.substr(0, kFirstBytes), context);
  if (!found) {
    LADING_CHECK(!found.error().text().empty());
    return 0;
  }
  LADING_CHECK(found->text.begin <= kFirstBytes && found->text.end <= size);
  LADING_CHECK(found->text.size_bytes() <= kMaxHeaderBytes);
  const auto header =
      found->parse(JsonBuffer::copy_of(file.substr(found->text.begin, found->text.size_bytes())), context);
  if (header) {
    check_promises(*header, size);
    return 0;
  }
  LADING_CHECK(!header.error().empty());
  for (const Error& error : header.error()) {
    const std::string text = error.text();
    LADING_CHECK(std::none_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; }));
    LADING_CHECK(!error.bytes || error.bytes->begin <= error.bytes->end);
  }
  return 0;
}
