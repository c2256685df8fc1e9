#include "exec/verify/source_reader.h"

#include <fmt/format.h>

#include <algorithm>

namespace lading::exec {

std::uint64_t elems_at_once(DType a, DType b) { return kStreamBytes * 8 / std::max(bits(a), bits(b)) / 8 * 8; }

Result<CastStep> cast_between(DType from, DType to) {
  if (from == to) return CastStep{};
  const CastStep step{device::find_cast(from, to)};
  if (step.cast != nullptr) return step;
  return fail(Error(Code::kDType, fmt::format("{} cannot be cast to {}", name(from), name(to)))
                  .by_rule("R24")
                  .try_this("Check that the ledger belongs to this checkpoint."));
}

Result<void> SourceReader::read(std::uint64_t begin, std::uint64_t elems, std::span<std::byte> out) {
  if (quantized_) return quantized_->read(begin, elems, out);
  if (cast_ == nullptr) return read_raw(begin, elems, out);
  const std::uint64_t at_once = elems_at_once(*source_.dtype, storage_);
  for (std::uint64_t done = 0; done < elems; done += at_once) {
    const std::uint64_t count = std::min(at_once, elems - done);
    raw_.resize(bytes_of_elems(count, *source_.dtype));
    LADING_TRY(read_raw(begin + done, count, raw_));
    cast_(raw_.data(), out.data() + bytes_of_elems(done, storage_), count);
  }
  return {};
}

Result<void> SourceReader::read_raw(std::uint64_t begin, std::uint64_t elems, std::span<std::byte> out) const {
  const DType dtype = *source_.dtype;
  return read_(source_.file, source_.bytes.begin + bytes_of_elems(begin, dtype),
               out.first(bytes_of_elems(elems, dtype)));
}

}  // namespace lading::exec
