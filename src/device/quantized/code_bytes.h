// Codes as bytes: what is packed is unpacked, and short codes are looked up many at a time. No state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace lading::device {

/// Codes in memory. Those behind the first `first_code` of the byte at `source`, lowest bits first; or, of those, each
/// so-manieth.
struct CodeRun {
  const std::byte* source = nullptr;
  std::uint64_t count = 0;
  std::uint64_t first_code = 0;
  std::uint64_t stride = 1;
};

/// The run without its first codes.
[[nodiscard]] inline CodeRun behind(const CodeRun& run, std::uint64_t codes) {
  return {run.source, run.count - codes, run.first_code + codes * run.stride, run.stride};
}

/// One code in each byte of `out`, which is as long as the run.
void unpack_codes(const CodeRun& run, unsigned log2_codes_in_byte, std::byte* out);

/// Of each code, which is below 16, the two bytes that the table has for it.
void look_up_16(std::span<const std::byte> codes, const std::byte* table, std::byte* out);

}  // namespace lading::device
