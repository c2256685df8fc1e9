// The C ABI's patterns of names: those of every document (docs/schema/policy.md).
#include <string>
#include <string_view>

#include "lading/lading_c.h"
#include "lading/name_pattern.h"

int lading_pattern_matches(const char* pattern, uint64_t pattern_size, const char* name, uint64_t name_size) {
  try {
    const lading::NamePattern made{std::string(pattern, pattern_size)};
    return made.matches(std::string_view(name, name_size)) ? 1 : 0;
  } catch (...) {
    return 0;
  }
}
