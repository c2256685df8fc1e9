#include "exec/scales.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <utility>

#include "base/element_bytes.h"
#include "base/text.h"
#include "device/digest.h"
#include "device/quantized/scale_values.h"
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

// Names where it went wrong, if nobody has.
Error named(const Load& load, const plan::Source& source, std::uint64_t rank, Error error) {
  if (error.rule.empty()) error.rule = "R48";
  error.rank = static_cast<int>(rank);
  if (error.tensor) return error;
  return std::move(error).in_file(load.inputs.plan.files[source.file].name).of_tensor(source.key);
}

Error scales_changed() {
  return Error(Code::kFileChanged, "another program wrote to the scales while lading read the checkpoint")
      .by_rule("R45")
      .try_this("Load again when no other program writes to the checkpoint.");
}

device::Digest digest_of(const device::BlockScales& scales) {
  device::Digest digest = device::digest_of(std::as_bytes(std::span(&scales.tensor_scale, 1)), 0);
  std::uint64_t at = sizeof(scales.tensor_scale);
  for (const auto& bytes : {std::span<const std::byte>(scales.values), std::span<const std::byte>(scales.zeros),
                            std::as_bytes(std::span(scales.groups))}) {
    digest += device::digest_of(bytes, at);
    at += bytes.size();
  }
  return digest;
}

// The first that is no number, or infinite. Powers of two have one byte for that.
std::optional<std::size_t> find_not_finite(std::span<const std::byte> stored, DType dtype, double& value) {
  if (dtype == DType::kF8E8M0) {
    value = std::numeric_limits<double>::quiet_NaN();
    const void* const bad = stored.empty() ? nullptr : std::memchr(stored.data(), 0xFF, stored.size());
    if (bad == nullptr) return std::nullopt;
    return static_cast<const std::byte*>(bad) - stored.data();
  }
  const std::vector<double> values = widened(stored, dtype);
  const auto bad = std::find_if(values.begin(), values.end(), [](double scale) { return !std::isfinite(scale); });
  if (bad == values.end()) return std::nullopt;
  value = *bad;
  return bad - values.begin();
}

// Everything but what is read.
device::BlockScales described(const plan::Plan& plan, const plan::ScaleRead& read) {
  const plan::Source& source = plan.sources[read.source];
  const plan::Source& from = plan.sources[source.scaling->scales];
  device::BlockScales scales;
  scales.shape = source.shape;
  scales.block = source.scaling->block;
  scales.first = (read.bytes.begin - from.bytes.begin) * 8 / bits(from.dtype);
  scales.dtype = scale_dtype(plan, *source.scaling);
  scales.product = source.scaling->product;
  scales.code = source.code();
  scales.zero = source.scaling->decoding.zero;
  scales.tensor_scale_is = source.scaling->decoding.tensor_scale;
  scales.groups_dim = source.scaling->decoding.groups_dim;
  return scales;
}

bool has_odd_values(const device::BlockScales& scales) {
  if (scales.tensor_scale < 0) return true;
  if (scales.dtype == DType::kF8E8M0) return false;  // powers of two
  for (std::size_t at = 0; at < scales.values.size(); at += kAtOnceBytes) {
    const auto piece = std::span(scales.values).subspan(at, std::min(kAtOnceBytes, scales.values.size() - at));
    const std::vector<double> values = widened(piece, scales.dtype);
    if (std::any_of(values.begin(), values.end(), [](double scale) { return scale <= 0; })) return true;
  }
  return false;
}

}  // namespace

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

  // A piece of a part that was read.
  [[nodiscard]] Result<void> check(Part part, std::span<const std::byte> piece, std::uint64_t first_byte) const {
    double value = 0;
    if (part != Part::kScales) return {};
    const auto bad = find_not_finite(piece, scales.dtype, value);
    if (!bad) return {};
    const std::uint64_t element = scales.first + first_byte * 8 / bits(scales.dtype) + *bad;
    return fail(wrong_scale("a scale of a quantized tensor is not finite", value, element));
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

void Scales::expect(const Load& load, const std::vector<std::vector<ReadTask>>& batches) {
  const plan::Plan& plan = load.inputs.plan;
  forget(load, std::numeric_limits<std::size_t>::max());
  doubtful_ = take_doubtful();
  std::map<Key, const plan::ScaleRead*> reads;
  for (const plan::RankPlan& rank : plan.ranks) {
    for (const plan::ScaleRead& read : rank.scale_reads) reads.emplace(Key{rank.rank, read.source}, &read);
  }
  if (reads.empty()) return;
  files_ = std::make_unique<FileTable>([&load](std::uint32_t file) { return load.inputs.open(plan::FileId(file)); },
                                       plan.files.size());
  for (std::size_t b = 0; b < batches.size(); ++b) {
    for (const ReadTask& task : batches[b]) {
      for (const Step& step : task.steps) {
        if (!plan.sources[step.source].scaling) continue;
        const Key key{load.states[step.destination]->rank, step.source};
        const auto [found, is_new] = entries_.try_emplace(key);
        Entry& entry = found->second;
        entry.last_batch = b;
        entry.devices.insert(task.device);
        if (!is_new) continue;
        entry.read = *reads.at(key);
        entry.rank = key.first;
        entry.first_batch = b;
        for (const Part part : kParts) {
          const PartPlace place = place_of(plan, entry.read, part);
          if (place.source != nullptr) files_->expect(place.source->file.number());
        }
      }
    }
  }
}

std::vector<Scales::Entry*> Scales::first_needed_by(std::size_t batch) {
  std::vector<Entry*> entries;
  for (auto& [key, entry] : entries_) {
    if (entry.first_batch == batch) entries.push_back(&entry);
  }
  return entries;
}

Result<void> Scales::read(const Load& load, Entry& entry) {
  const plan::Plan& plan = load.inputs.plan;
  const plan::Source& stored = *place_of(plan, entry.read, Part::kScales).source;
  Gathered gathered{described(plan, entry.read), {}, {}, {}};
  Result<void> gathering = read_parts(load, entry, gathered);
  if (gathering) gathering = gathered.finish(plan, entry.read);
  if (!gathering) {
    // What was good before, and is not now, was written to.
    const std::lock_guard lock(mutex_);
    const bool was_good = gathering.error().code == Code::kScale && seen_.contains({entry.rank, entry.read.source});
    return fail(named(load, stored, entry.rank, was_good ? scales_changed() : std::move(gathering).error()));
  }
  entry.scales = std::move(gathered.scales);
  const device::Digest digest = digest_of(entry.scales);
  const bool is_odd = has_odd_values(entry.scales);
  {
    const std::lock_guard lock(mutex_);
    const auto [seen, is_new] = seen_.try_emplace(Key{entry.rank, entry.read.source}, digest);
    if (!is_new && seen->second != digest) return fail(named(load, stored, entry.rank, scales_changed()));
    if (is_odd) odd_.insert(entry.read.source);
  }
  entry.is_taken = true;
  for (const std::uint32_t device : entry.devices) {
    if (auto taken = load.devices[device].device->take_scales(entry.scales); !taken)
      return fail(named(load, stored, entry.rank, std::move(taken).error()));
  }
  return {};
}

// A piece at a time. Every file is released, whatever happens.
Result<void> Scales::read_parts(const Load& load, Entry& entry, Gathered& gathered) {
  Result<void> result;
  for (const Part part : kParts) {
    const PartPlace place = place_of(load.inputs.plan, entry.read, part);
    if (place.source == nullptr) continue;
    const auto read = [&]() -> Result<void> {
      LADING_ASSIGN_OR_RETURN(const io::File* const file, files_->acquire(place.source->file.number()));
      std::vector<std::byte>& out = gathered.bytes_of(part);
      out.reserve(place.bytes.size_bytes());
      while (out.size() < place.bytes.size_bytes()) {
        const std::uint64_t done = out.size();
        out.resize(done + std::min(kAtOnceBytes, place.bytes.size_bytes() - done));
        const std::span<std::byte> piece = std::span(out).subspan(done);
        const std::uint64_t at = place.bytes.begin + done;
        io::ReadBackend& backend =
            load.options.backend != nullptr ? *load.options.backend : load.chooser.pick(*file, {at, at + piece.size()});
        LADING_TRY(io::read_exact(*file, backend, at, {reinterpret_cast<char*>(piece.data()), piece.size()}));
        load.crew.add_read(piece.size());
        LADING_TRY(gathered.check(part, piece, done));
      }
      return {};
    };
    Result<void> used = result ? read() : Result<void>{};
    Result<void> released = files_->release(place.source->file.number());
    for (Result<void>* one : {&used, &released}) {
      if (!*one && result) result = fail(named(load, *place.source, entry.rank, std::move(*one).error()));
    }
  }
  return result;
}

const device::BlockScales& Scales::of(std::uint64_t rank, plan::SourceId source) const {
  return entries_.at({rank, source}).scales;
}

void Scales::forget(const Load& load, std::size_t batch) {
  std::erase_if(entries_, [&](const auto& one) {
    const Entry& entry = one.second;
    if (entry.last_batch > batch) return false;
    for (const std::uint32_t device : entry.devices) {
      if (entry.is_taken) load.devices[device].device->forget_scales(entry.scales);
    }
    return true;
  });
}

bool Scales::lie_in(const FileSet& files, const plan::Plan& plan, const plan::RankPlan& rank, const plan::Read& read) {
  const auto is_in_files = [&](plan::SourceId source) {
    return !source.is_none() && files.contains(plan.sources[source].file);
  };
  return std::any_of(read.transfers.begin(), read.transfers.end(), [&](const plan::TransferRef& ref) {
    const std::optional<plan::Scaling>& scaling = plan.sources[rank.at(ref).source].scaling;
    return scaling && (is_in_files(scaling->scales) || is_in_files(scaling->zeros) ||
                       is_in_files(scaling->tensor_scale) || is_in_files(scaling->groups));
  });
}

// One note, however many tensors: ranks have parts of the same ones.
std::vector<std::string> Scales::notes(const plan::Plan& plan) const {
  if (odd_.empty()) return {};
  const plan::Source& first = plan.sources[plan.sources[*odd_.begin()].scaling->scales];
  const std::size_t more = odd_.size() - 1;
  return {fmt::format("scales that are zero or negative: in {}{}", quote(first.key),
                      more == 0 ? "" : fmt::format(" and {} more tensors", more))};
}

FileSet Scales::take_doubtful() {
  FileSet doubtful = std::move(doubtful_);
  doubtful_ = {};
  if (files_ == nullptr) return doubtful;
  for (const std::uint32_t file : files_->take_doubtful()) doubtful.insert(plan::FileId(file));
  return doubtful;
}

}  // namespace lading::exec
