// Comparing casts with the reference, for tests and for tools/cast_campaign.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "device/cast.h"
#include "device/cast_reference_for_tests.h"

namespace lading::device::reference {

/// Codes, each in as many bytes as the layout has.
inline std::vector<std::byte> packed(const Layout& layout, std::span<const std::uint64_t> codes) {
  const std::size_t width_bytes = layout.bits / 8;
  std::vector<std::byte> bytes(codes.size() * width_bytes);
  for (std::size_t i = 0; i < codes.size(); ++i) std::memcpy(bytes.data() + i * width_bytes, &codes[i], width_bytes);
  return bytes;
}

inline std::uint64_t code_at(const Layout& layout, std::span<const std::byte> bytes, std::size_t i) {
  const std::size_t width_bytes = layout.bits / 8;
  std::uint64_t code = 0;
  std::memcpy(&code, bytes.data() + i * width_bytes, width_bytes);
  return code;
}

/// What the reference makes of `codes`, packed. Made once and compared with every path.
inline std::vector<std::byte> expected(const Layout& from, Nearest& to, std::span<const std::uint64_t> codes) {
  std::vector<std::uint64_t> answers;
  answers.reserve(codes.size());
  for (const std::uint64_t code : codes) answers.push_back(write(to, read(from, code)));
  return packed(to.layout(), answers);
}

struct Differences {
  std::size_t count = 0;
  std::uint64_t source = 0;  ///< of the first
  std::uint64_t wanted = 0;
  std::uint64_t found = 0;
};

struct Question {
  const Layout& from;
  const Layout& to;
  std::span<const std::byte> source;
  std::span<const std::byte> wanted;
};

inline Differences differences(Cast cast, const Question& question) {
  const std::size_t elems = question.source.size() / (question.from.bits / 8);
  std::vector<std::byte> found(question.wanted.size());
  cast(question.source.data(), found.data(), elems);
  Differences all;
  if (std::memcmp(found.data(), question.wanted.data(), found.size()) == 0) return all;
  for (std::size_t i = 0; i < elems; ++i) {
    const std::uint64_t is = code_at(question.to, found, i);
    const std::uint64_t should = code_at(question.to, question.wanted, i);
    if (is == should) continue;
    if (all.count++ == 0) all = {1, code_at(question.from, question.source, i), should, is};
  }
  return all;
}

}  // namespace lading::device::reference
