#include "exec/scales.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <span>
#include <utility>

#include "base/element_bytes.h"
#include "base/text.h"
#include "device/quantized/scale_values.h"
#include "exec/file_table.h"
#include "exec/load.h"
#include "io/read_exact.h"

namespace lading::exec {
namespace {

constexpr std::uint64_t kAtOnceBytes = std::uint64_t{1} << 20;

std::vector<double> widened(std::span<const std::byte> stored, DType dtype) {
  std::vector<double> out(stored.size() * 8 / bits(dtype));
  device::widen_scales(stored.data(), dtype, out);
  return out;
}

// What is read for a quantized tensor beside its payload.
enum class Part : std::uint8_t { kScales, kZeros, kTensorScale, kGroups };
constexpr std::array kParts = {Part::kScales, Part::kZeros, Part::kTensorScale, Part::kGroups};

struct PartPlace {
  const plan::Source* source = nullptr;  // null: the tensor has none
  ByteRange bytes;                       // in its file
};

PartPlace place_of(const plan::Plan& plan, const plan::ScaleRead& read, Part part) {
  const plan::Scaling& scaling = *plan.sources[read.source].scaling;
  switch (part) {
    case Part::kScales: return {&plan.sources[scaling.scales], read.bytes};
    case Part::kZeros:
      if (scaling.zeros.is_none()) return {};
      return {&plan.sources[scaling.zeros], read.zeros};
    case Part::kTensorScale:
      if (scaling.tensor_scale.is_none()) return {};
      return {&plan.sources[scaling.tensor_scale], plan.sources[scaling.tensor_scale].bytes};
    case Part::kGroups:
      if (scaling.groups.is_none()) return {};
      return {&plan.sources[scaling.groups], plan.sources[scaling.groups].bytes};
  }
  return {};
}

DType scale_dtype(const plan::Plan& plan, const plan::Scaling& scaling) {
  return scaling.decoding.scale_dtype.value_or(plan.sources[scaling.scales].dtype);
}

Error wrong_scale(std::string_view message, double value, std::uint64_t element) {
  return Error(Code::kScale, std::string(message))
      .wanted("finite scales")
      .got(fmt::format("{} at element {}", value, element))
      .try_this("Download the checkpoint again. If the same tensor fails, quantize the model again.");
}

// The file may say anything, and scales are looked up by these.
Result<std::vector<std::uint32_t>> checked_groups(const plan::Plan& plan, const plan::Source& source,
                                                  std::span<const std::byte> stored) {
  const plan::Scaling& scaling = *source.scaling;
  const std::size_t dim = scaling.decoding.groups_dim;
  const std::uint64_t count = (source.shape[dim] - 1) / scaling.block[dim] + 1;
  std::vector<std::uint32_t> groups(stored.size() / sizeof(std::uint32_t));
  LADING_CHECK(groups.size() == source.shape[dim] * source.shape[source.shape.rank() - 1]);
  std::memcpy(groups.data(), stored.data(), groups.size() * sizeof(std::uint32_t));
  // As unsigned numbers, negative ones are too large.
  const auto bad = std::find_if(groups.begin(), groups.end(), [&](std::uint32_t group) { return group >= count; });
  if (bad == groups.end()) return groups;
  const plan::Source& from = plan.sources[scaling.groups];
  return fail(Error(Code::kScale, "a quantized tensor has a group that has no scale")
                  .in_file(plan.files[from.file].name)
                  .of_tensor(from.key)
                  .wanted(fmt::format("groups from 0 to {}", count - 1))
                  .got(fmt::format("{} at element {}", static_cast<std::int32_t>(*bad), bad - groups.begin()))
                  .try_this("Quantize the model again, or download the checkpoint again."));
}

// From the order of the file to that of codes, in place.
void put_in_order_of_codes(const Decoding& decoding, DType dtype, std::vector<std::byte>& scales) {
  const std::vector<std::size_t>& order = decoding.scale_order;
  const std::size_t width = bits(dtype) / 8;
  std::vector<std::byte> run(order.size() * width);
  for (std::size_t at = 0; !order.empty() && at + run.size() <= scales.size(); at += run.size()) {
    std::memcpy(run.data(), scales.data() + at, run.size());
    for (std::size_t i = 0; i < order.size(); ++i) {
      std::memcpy(scales.data() + at + i * width, run.data() + order[i] * width, width);
    }
  }
}

// One zero point for each of `count` scales from the one of number `first` on. They are packed along a dim of the
// scales.
std::vector<std::byte> unpacked_zeros(const plan::Plan& plan, const plan::ScaleRead& read, std::uint64_t first,
                                      std::uint64_t count, std::span<const std::byte> packed) {
  const plan::Scaling& scaling = *plan.sources[read.source].scaling;
  const plan::Source& zeros = plan.sources[scaling.zeros];
  const Shape& shape = plan.sources[scaling.scales].shape;
  const Decoding& decoding = scaling.decoding;
  const unsigned code_bits = bits(*decoding.code);
  const std::uint64_t width = bits(zeros.dtype) / 8;
  const std::uint64_t skipped_bytes = read.zeros.begin - zeros.bytes.begin;
  // From one element of the zeros' key to the next, along the packed dim.
  std::uint64_t inner = 1;
  for (std::size_t d = decoding.zeros_dim + 1; d < shape.rank(); ++d) inner *= shape[d];
  const std::uint64_t extent = shape[decoding.zeros_dim];
  const std::uint64_t elements = (extent + decoding.per_element - 1) / decoding.per_element;
  std::vector<std::byte> out(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t scale = first + i;
    const std::uint64_t along = scale / inner % extent;
    const std::uint64_t element =
        (scale / (inner * extent) * elements + along / decoding.per_element) * inner + scale % inner;
    const std::uint64_t bit = along % decoding.per_element * code_bits;
    const std::uint64_t byte = element * width + bit / 8 - skipped_bytes;
    LADING_CHECK(byte < packed.size());
    const unsigned mask = (1U << code_bits) - 1;
    out[i] = static_cast<std::byte>(std::to_integer<unsigned>(packed[byte]) >> bit % 8 & mask);
  }
  return out;
}

}  // namespace

// Reads what entries need beside their payloads, a piece at a time, and hands each piece over: to be kept when they are
// read, to be compared when they are read again.
class Scales::Reader {
 public:
  /// `first_byte`: where the piece begins in the part that the rank reads.
  using Act = std::function<Result<void>(Part part, std::span<const std::byte> piece, std::uint64_t first_byte)>;
  /// After all pieces of an entry.
  using End = std::function<Result<void>()>;
  struct Acts {
    Act act;
    End end;
  };

  explicit Reader(const Load& load)
      : load_(load),
        files_([this](std::uint32_t file) { return load_.inputs.open(plan::FileId(file)); },
               load.inputs.plan.files.size()) {}

  void run(const std::vector<const Entry*>& entries, const std::function<Acts(std::size_t)>& acts_of) {
    for (const Entry* entry : entries) {
      for (const Part part : kParts) {
        if (const PartPlace place = place_in_plan(*entry, part); place.source != nullptr)
          files_.expect(place.source->file.number());
      }
    }
    load_.crew.run(entries.size(), [&](const Lanes&, std::size_t i) -> Result<void> {
      const Entry& entry = *entries[i];
      const Acts acts = acts_of(i);
      Result<void> result;
      const plan::Source* at = nullptr;  // that an error is about
      for (const Part part : kParts) {
        const PartPlace place = place_in_plan(entry, part);
        if (place.source == nullptr) continue;
        Result<void> used = result ? read(place, part, acts.act) : Result<void>{};
        Result<void> released = files_.release(place.source->file.number());
        for (Result<void>* one : {&used, &released}) {
          if (*one || !result) continue;
          result = std::move(*one);
          at = place.source;
        }
      }
      if (result) {
        result = acts.end();
        at = place_in_plan(entry, Part::kScales).source;
      }
      if (result) return {};
      return fail(named(*at, std::move(result).error()).on_rank(static_cast<int>(entry.rank)));
    });
  }

  FileSet take_doubtful() {
    FileSet doubtful;
    for (const std::uint32_t file : files_.take_doubtful()) doubtful.insert(plan::FileId(file));
    return doubtful;
  }

 private:
  [[nodiscard]] PartPlace place_in_plan(const Entry& entry, Part part) const {
    return place_of(load_.inputs.plan, entry.read, part);
  }

  [[nodiscard]] Error named(const plan::Source& source, Error error) const {
    if (error.rule.empty()) error.rule = "R48";
    if (error.tensor) return error;
    return std::move(error).in_file(load_.inputs.plan.files[source.file].name).of_tensor(source.key);
  }

  Result<void> read(const PartPlace& place, Part part, const Act& act) {
    LADING_ASSIGN_OR_RETURN(const io::File* const file, files_.acquire(place.source->file.number()));
    std::vector<std::byte> codes;
    for (std::uint64_t at = place.bytes.begin; at < place.bytes.end; at += codes.size()) {
      codes.resize(std::min(kAtOnceBytes, place.bytes.end - at));
      const ByteRange range{at, at + codes.size()};
      io::ReadBackend& backend =
          load_.options.backend != nullptr ? *load_.options.backend : load_.chooser.pick(*file, range);
      LADING_TRY(io::read_exact(*file, backend, at, {reinterpret_cast<char*>(codes.data()), codes.size()}));
      load_.crew.add_read(codes.size());
      LADING_TRY(act(part, codes, at - place.bytes.begin));
    }
    return {};
  }

  const Load& load_;
  FileTable files_;
};

void Scales::find_entries(const Load& load) {
  const plan::Plan& plan = load.inputs.plan;
  std::uint32_t first_destination = 0;
  for (const plan::RankPlan& rank : plan.ranks) {
    for (const plan::ScaleRead& read : rank.scale_reads) {
      const plan::Source& source = plan.sources[read.source];
      const plan::Source& scales = plan.sources[source.scaling->scales];
      Entry& entry = entries_[{rank.rank, read.source}];
      entry.read = read;
      entry.rank = rank.rank;
      entry.scales.shape = source.shape;
      entry.scales.block = source.scaling->block;
      entry.scales.first = (read.bytes.begin - scales.bytes.begin) * 8 / bits(scales.dtype);
      entry.scales.dtype = scale_dtype(plan, *source.scaling);
      entry.scales.product = source.scaling->product;
      entry.scales.code = source.code();
      entry.scales.zero = source.scaling->decoding.zero;
      entry.scales.tensor_scale_is = source.scaling->decoding.tensor_scale;
      entry.scales.groups_dim = source.scaling->decoding.groups_dim;
    }
    for (const plan::Read& read : rank.reads) {
      for (const plan::TransferRef& ref : read.transfers) {
        const DestinationState& state = *load.states[first_destination + ref.destination.number()];
        if (state.memory.received) continue;
        const auto found = entries_.find({rank.rank, rank.at(ref).source});
        if (found != entries_.end()) found->second.devices.insert(state.device);
      }
    }
    first_destination += static_cast<std::uint32_t>(rank.destinations.size());
  }
  // What another load hands over is dequantized.
  std::erase_if(entries_, [](const auto& entry) { return entry.second.devices.empty(); });
}

// What the pieces of an entry come to.
struct Scales::Gathered {
  device::BlockScales scales;
  std::vector<std::byte> zeros;
  std::vector<std::byte> tensor_scale;
  std::vector<std::byte> groups;

  std::vector<std::byte>& bytes_of(Part part) {
    switch (part) {
      case Part::kScales: break;
      case Part::kZeros: return zeros;
      case Part::kTensorScale: return tensor_scale;
      case Part::kGroups: return groups;
    }
    return scales.values;
  }

  Result<void> take(Part part, std::span<const std::byte> piece, std::uint64_t first_byte) {
    std::vector<std::byte>& out = bytes_of(part);
    out.resize(std::max<std::size_t>(out.size(), first_byte + piece.size()));
    std::copy(piece.begin(), piece.end(), out.begin() + static_cast<std::ptrdiff_t>(first_byte));
    return {};
  }

  // Puts scales and zero points in the order of codes.
  Result<void> finish(const plan::Plan& plan, const plan::ScaleRead& read) {
    const plan::Scaling& scaling = *plan.sources[read.source].scaling;
    put_in_order_of_codes(scaling.decoding, scales.dtype, scales.values);
    const std::uint64_t count = read.bytes.size_bytes() * 8 / bits(scales.dtype);
    if (!scaling.zeros.is_none()) scales.zeros = unpacked_zeros(plan, read, scales.first, count, zeros);
    zeros = {};
    if (!groups.empty()) {
      LADING_ASSIGN_OR_RETURN(scales.groups, checked_groups(plan, plan.sources[read.source], groups));
      groups = {};
    }
    if (scaling.tensor_scale.is_none()) return {};
    scales.tensor_scale = widened(tensor_scale, DType::kF32).front();
    if (std::isfinite(scales.tensor_scale) && scales.tensor_scale != 0) return {};
    const plan::Source& source = plan.sources[scaling.tensor_scale];
    const bool is_zero = scales.tensor_scale == 0;
    return fail(wrong_scale(is_zero ? "the scale of a whole quantized tensor is zero"
                                    : "the scale of a whole quantized tensor is not finite",
                            scales.tensor_scale, 0)
                    .in_file(plan.files[source.file].name)
                    .of_tensor(source.key)
                    .wanted("a finite scale that is not 0"));
  }
};

void Scales::read(const Load& load) {
  find_entries(load);
  if (entries_.empty()) return;
  const plan::Plan& plan = load.inputs.plan;
  std::vector<const Entry*> entries;
  std::vector<Gathered> gathered;
  for (auto& [key, entry] : entries_) {
    entry.scales.values.reserve(entry.read.bytes.size_bytes());
    entries.push_back(&entry);
    gathered.push_back({std::move(entry.scales), {}, {}, {}});
  }
  Reader reader(load);
  reader.run(entries, [&](std::size_t i) -> Reader::Acts {
    const auto act = [&, i](Part part, std::span<const std::byte> piece, std::uint64_t first_byte) -> Result<void> {
      if (part == Part::kScales) {
        const DType dtype = gathered[i].scales.dtype;
        const std::vector<double> values = widened(piece, dtype);
        const auto bad = std::find_if(values.begin(), values.end(), [](double scale) { return !std::isfinite(scale); });
        if (bad != values.end()) {
          const std::uint64_t element = gathered[i].scales.first + first_byte * 8 / bits(dtype) +
                                        static_cast<std::uint64_t>(bad - values.begin());
          return fail(wrong_scale("a scale of a quantized tensor is not finite", *bad, element));
        }
      }
      return gathered[i].take(part, piece, first_byte);
    };
    return {act, [&, i] { return gathered[i].finish(plan, entries[i]->read); }};
  });
  doubtful_ = reader.take_doubtful();
  if (load.crew.stopped()) return;
  auto made = gathered.begin();
  for (auto& [key, entry] : entries_) {
    entry.scales = std::move((made++)->scales);
    for (const std::uint32_t device : entry.devices) {
      if (Result<void> taken = load.devices[device].device->take_scales(entry.scales); !taken) {
        const plan::Source& scales = *place_of(plan, entry.read, Part::kScales).source;
        load.crew.add_error(
            std::move(taken).error().in_file(plan.files[scales.file].name).of_tensor(scales.key).by_rule("R48"));
        return;
      }
    }
  }
  note_values(load);
}

// One note, however many tensors: ranks have parts of the same ones.
void Scales::note_values(const Load& load) {
  std::set<plan::SourceId> odd;
  for (const auto& [key, entry] : entries_) {
    const device::BlockScales& scales = entry.scales;
    if (scales.dtype == DType::kF8E8M0) continue;  // powers of two
    const std::size_t at_once = kAtOnceBytes;
    for (std::size_t at = 0; at < scales.values.size(); at += at_once) {
      const auto piece = std::span(scales.values).subspan(at, std::min(at_once, scales.values.size() - at));
      const std::vector<double> values = widened(piece, scales.dtype);
      const auto is_odd = [](double scale) { return scale <= 0; };
      if (std::any_of(values.begin(), values.end(), is_odd)) odd.insert(entry.read.source);
    }
    if (scales.tensor_scale < 0) odd.insert(entry.read.source);
  }
  if (odd.empty()) return;
  const plan::Plan& plan = load.inputs.plan;
  const plan::Source& first = plan.sources[plan.sources[*odd.begin()].scaling->scales];
  notes_.push_back(fmt::format("scales that are zero or negative: in {}{}", quote(first.key),
                               odd.size() == 1 ? "" : fmt::format(" and {} more tensors", odd.size() - 1)));
}

void Scales::compare_again(const Load& load, const FileSet& files) const {
  std::vector<const Entry*> entries;
  const plan::Plan& plan = load.inputs.plan;
  for (const auto& [key, entry] : entries_) {
    const auto is_in_files = [&, read = entry.read](Part part) {
      const PartPlace place = place_of(plan, read, part);
      return place.source != nullptr && files.contains(place.source->file);
    };
    if (std::any_of(kParts.begin(), kParts.end(), is_in_files)) entries.push_back(&entry);
  }
  const auto changed = [] {
    return fail(Error(Code::kFileChanged, "another program wrote to the scales while lading read the checkpoint")
                    .by_rule("R45")
                    .try_this("Load again when no other program writes to the checkpoint."));
  };
  std::vector<Gathered> again(entries.size());
  Reader(load).run(entries, [&](std::size_t i) -> Reader::Acts {
    const device::BlockScales& kept = entries[i]->scales;
    again[i].scales = {};
    again[i].scales.dtype = kept.dtype;
    again[i].scales.first = kept.first;
    // Large ones are compared piece by piece: they are kept as they stand in the file.
    const bool in_order = plan.sources[entries[i]->read.source].scaling->decoding.scale_order.empty();
    const auto act = [&, i, in_order](Part part, std::span<const std::byte> piece,
                                      std::uint64_t first_byte) -> Result<void> {
      const bool is_kept_as_stored = part == Part::kGroups || (part == Part::kScales && in_order);
      if (!is_kept_as_stored) return again[i].take(part, piece, first_byte);
      const auto whole =
          part == Part::kGroups ? std::as_bytes(std::span(kept.groups)) : std::as_bytes(std::span(kept.values));
      if (std::memcmp(whole.data() + first_byte, piece.data(), piece.size()) != 0) return changed();
      return {};
    };
    const auto end = [&, i, in_order]() -> Result<void> {
      LADING_TRY(again[i].finish(plan, entries[i]->read));
      const Gathered made = std::exchange(again[i], {});
      const device::BlockScales& found = made.scales;
      const bool same = (in_order || found.values == kept.values) && found.zeros == kept.zeros &&
                        std::memcmp(&found.tensor_scale, &kept.tensor_scale, sizeof kept.tensor_scale) == 0;
      return same ? Result<void>{} : changed();
    };
    return {act, end};
  });
}

}  // namespace lading::exec
