#include "exec/verify/tied_keys.h"

#include <algorithm>
#include <cstring>

#include "exec/verify/verify_values.h"

namespace lading::exec {

Result<std::optional<std::uint64_t>> KeyComparer::first_difference(const plan::Statement& tensor,
                                                                   const mapping::Expression& one,
                                                                   const mapping::Expression& other) {
  constexpr std::uint64_t kWindowBytes = std::uint64_t{16} << 20;
  const ReadBytes read = [this](std::uint32_t file, std::uint64_t offset_bytes, std::span<std::byte> out) {
    return this->read(file, offset_bytes, out);
  };
  LADING_ASSIGN_OR_RETURN(
      const auto left,
      values_of_files({one, tensor.shape, tensor.storage, catalog_, kWindowBytes, tensor.checkpoint}, read));
  LADING_ASSIGN_OR_RETURN(
      const auto right,
      values_of_files({other, tensor.shape, tensor.storage, catalog_, kWindowBytes, tensor.checkpoint}, read));
  const std::uint64_t elems = tensor.shape.num_elems().value_or(0);
  for (std::uint64_t elem = 0; elem < elems;) {
    LADING_ASSIGN_OR_RETURN(const Window a, left->at(elem));
    LADING_ASSIGN_OR_RETURN(const Window b, right->at(elem));
    const std::uint64_t end = std::min(a.begin_elem + a.elems, b.begin_elem + b.elems);
    const std::uint64_t size_bytes = bytes_of_elems(end - elem, tensor.storage);
    const std::byte* const in_a = a.bytes.data() + bytes_of_elems(elem - a.begin_elem, tensor.storage);
    const std::byte* const in_b = b.bytes.data() + bytes_of_elems(elem - b.begin_elem, tensor.storage);
    if (std::memcmp(in_a, in_b, size_bytes) != 0) {
      const auto same_bytes = static_cast<std::uint64_t>(std::mismatch(in_a, in_a + size_bytes, in_b).first - in_a);
      return std::optional(elem + same_bytes * 8 / bits(tensor.storage));
    }
    elem = end;
  }
  return std::optional<std::uint64_t>();
}

Result<void> KeyComparer::read(std::uint32_t file, std::uint64_t offset_bytes, std::span<std::byte> out) {
  auto found = files_.find(file);
  if (found == files_.end()) {
    LADING_ASSIGN_OR_RETURN(io::File opened, open_(file));
    found = files_.emplace(file, std::move(opened)).first;
  }
  return found->second.read_exact(offset_bytes, {reinterpret_cast<char*>(out.data()), out.size()});
}

}  // namespace lading::exec
