// A safetensors file from its parts, right or wrong: length, header text, data.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lading::test {

/// Eight bytes, the lowest first.
inline std::string little_endian(std::uint64_t number) {
  std::string bytes;
  for (unsigned i = 0; i < 8; ++i) bytes += static_cast<char>(number >> (8 * i) & 0xFF);
  return bytes;
}

inline std::string safetensors_bytes(std::string_view header, std::string_view data) {
  return little_endian(header.size()) + std::string(header) + std::string(data);
}

/// A file with one U8 vector that holds `data`.
inline std::string one_tensor_file(std::string_view name, std::string_view data) {
  const std::string size = std::to_string(data.size());
  return safetensors_bytes(
      "{\"" + std::string(name) + R"(":{"dtype":"U8","shape":[)" + size + R"(],"data_offsets":[0,)" + size + "]}}",
      data);
}

}  // namespace lading::test
