#include "checkpoint/header.h"

#include "checkpoint/safetensors_header.h"

namespace lading::checkpoint {

// safetensors has no magic number, so it is what a file of no other format is taken for.
Result<FoundHeader> find_header(std::string_view first_bytes, const HeaderContext& context) {
  LADING_ASSIGN_OR_RETURN(const std::uint64_t length, header_length_bytes(first_bytes, context));
  return FoundHeader{{kLengthBytes, kLengthBytes + length}, &parse_header};
}

}  // namespace lading::checkpoint
