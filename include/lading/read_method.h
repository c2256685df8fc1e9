// ReadMethod: how files are read, and the words that people write for it.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>

namespace lading {

/// kAuto looks at where files lie and whether they are cached (docs/how-it-works/io.md).
enum class ReadMethod : std::uint8_t { kAuto, kPread, kDirect, kUring, kUringDirect };

/// The one list: the command line, requests of the C ABI and benches take their words from it.
inline constexpr std::array<std::pair<std::string_view, ReadMethod>, 5> kReadMethods = {
    {{"auto", ReadMethod::kAuto},
     {"pread", ReadMethod::kPread},
     {"direct", ReadMethod::kDirect},
     {"uring", ReadMethod::kUring},
     {"uring-direct", ReadMethod::kUringDirect}}};

}  // namespace lading
