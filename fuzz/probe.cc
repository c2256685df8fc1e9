// The header reader as a C function, so that Python can try a million files in seconds.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "checkpoint/safetensors_header.h"

using namespace lading;
using namespace lading::checkpoint;

namespace {

int refused(std::string_view code_word, char* code, std::size_t code_size) {
  const std::size_t size = std::min(code_word.size(), code_size - 1);
  std::memcpy(code, code_word.data(), size);
  code[size] = '\0';
  return 0;
}

}  // namespace

/// 1: accepted; 0: refused, and `code` says why (all words, with their rules, separated by spaces).
extern "C" __attribute__((visibility("default"))) int lading_probe_header(const std::uint8_t* data, std::size_t size,
                                                                          char* code, std::size_t code_size) {
  const std::string_view file(reinterpret_cast<const char*>(data), size);
  const HeaderContext context{"probe", size, TrailingBytes::kRefuse};
  const auto length = header_length_bytes(file.substr(0, kLengthBytes), context);
  if (!length) return refused(word(length.error().code), code, code_size);
  const auto header = parse_header(JsonBuffer::copy_of(file.substr(kLengthBytes, *length)), context);
  if (!header) {
    std::string words;
    for (const Error& error : header.error()) words += std::string(word(error.code)) + "/" + error.rule + " ";
    return refused(words, code, code_size);
  }
  return header->warnings.empty() ? 1 : (refused("unknown_dtype", code, code_size), 1);
}
