// From a plan and what execution found to a ledger.
#include <algorithm>
#include <set>
#include <tuple>

#include "base/version.h"
#include "ledger/ledger.h"
#include "plan/source_codes.h"

namespace lading::ledger {
namespace {

using plan::Destination;
using plan::Plan;
using plan::Statement;
using plan::Transfer;

std::uint64_t size_of(std::uint64_t elems, DType dtype) {
  const auto size_bytes = Shape{elems}.size_bytes(dtype);
  LADING_CHECK(size_bytes.has_value());  // the plan has a buffer of it
  return *size_bytes;
}

// The bytes of a transfer, whatever order they are taken in: loops that fill a stretch become one.
TakenBytes taken_by(const Transfer& transfer, const plan::Source& source) {
  TakenBytes taken{source.file.number(), transfer.source_begin_bytes, plan::run_bytes(transfer, source), {}};
  std::vector<ByteLoop> loops = transfer.loops;
  std::sort(loops.begin(), loops.end(),
            [](const ByteLoop& a, const ByteLoop& b) { return a.source_stride_bytes < b.source_stride_bytes; });
  for (const ByteLoop& loop : loops) {
    if (loop.count == 1) continue;
    if (taken.loops.empty() && loop.source_stride_bytes <= taken.size_bytes) {
      taken.size_bytes += (loop.count - 1) * loop.source_stride_bytes;
    } else if (!taken.loops.empty() &&
               loop.source_stride_bytes == taken.loops.back().count * taken.loops.back().stride_bytes) {
      taken.loops.back().count *= loop.count;
    } else {
      taken.loops.push_back({loop.count, loop.source_stride_bytes});
    }
  }
  std::reverse(taken.loops.begin(), taken.loops.end());
  return taken;
}

// Scales, zero points, the scale of the whole tensor and the groups, as far as the source has them.
std::vector<TakenBytes> taken_by(const plan::ScaleRead& read, const Plan& plan) {
  const plan::Scaling& scaling = *plan.sources[read.source].scaling;
  std::vector<TakenBytes> all;
  const auto add = [&](plan::SourceId id, const ByteRange& bytes) {
    if (bytes.size_bytes() > 0) all.push_back({plan.sources[id].file.number(), bytes.begin, bytes.size_bytes(), {}});
  };
  add(scaling.scales, read.bytes);
  if (!scaling.zeros.is_none()) add(scaling.zeros, read.zeros);
  for (const plan::SourceId whole : {scaling.tensor_scale, scaling.groups}) {
    if (!whole.is_none()) add(whole, plan.sources[whole].bytes);
  }
  return all;
}

std::vector<TakenBytes> taken_by(const Destination& destination, const plan::RankPlan& rank, const Plan& plan) {
  std::vector<TakenBytes> all;
  std::set<plan::SourceId> scaled;
  for (const Transfer& transfer : destination.transfers) {
    if (transfer.is_fill()) continue;
    all.push_back(taken_by(transfer, plan.sources[transfer.source]));
    if (plan.sources[transfer.source].scaling) scaled.insert(transfer.source);
  }
  for (const plan::ScaleRead& read : rank.scale_reads) {
    if (!scaled.contains(read.source)) continue;
    for (TakenBytes& taken : taken_by(read, plan)) all.push_back(std::move(taken));
  }
  std::sort(all.begin(), all.end(), [](const TakenBytes& a, const TakenBytes& b) {
    return std::tie(a.file, a.begin_bytes, a.size_bytes) < std::tie(b.file, b.begin_bytes, b.size_bytes);
  });
  std::vector<TakenBytes> joined;
  std::size_t first_here = 0;  // of those that begin where the next one does
  for (TakenBytes& next : all) {
    if (first_here < joined.size() &&
        std::tie(joined[first_here].file, joined[first_here].begin_bytes) != std::tie(next.file, next.begin_bytes)) {
      first_here = joined.size();
    }
    // Codes of one byte that go to different places are taken by a transfer each, but the byte is the same.
    const auto begin_here = joined.begin() + static_cast<std::ptrdiff_t>(first_here);
    if (std::find(begin_here, joined.end(), next) != joined.end()) continue;
    TakenBytes* const last = joined.empty() ? nullptr : &joined.back();
    if (last != nullptr && last->file == next.file && last->loops.empty() && next.loops.empty() &&
        next.begin_bytes <= last->begin_bytes + last->size_bytes) {
      const std::uint64_t end = std::max(last->begin_bytes + last->size_bytes, next.begin_bytes + next.size_bytes);
      last->size_bytes = end - last->begin_bytes;
    } else {
      joined.push_back(std::move(next));
    }
  }
  return joined;
}

std::vector<DType> casts_of(const Destination& destination, const Plan& plan, DType storage) {
  std::vector<DType> from;
  for (const Transfer& transfer : destination.transfers) {
    if (!transfer.is_fill() && plan.sources[transfer.source].dtype != storage) {
      from.push_back(plan.sources[transfer.source].dtype);
    }
  }
  std::sort(from.begin(), from.end(), [](DType a, DType b) { return name(a) < name(b); });
  from.erase(std::unique(from.begin(), from.end()), from.end());
  return from;
}

class Maker {
 public:
  Maker(const Plan& plan, const LedgerFacts& facts) : plan_(plan), facts_(facts) {
    for (const plan::SourceId i : plan.sources.ids()) sources_.push_back(i);
    std::sort(sources_.begin(), sources_.end(),
              [&](plan::SourceId a, plan::SourceId b) { return key_of(a) < key_of(b); });
  }

  Ledger run() {
    ledger_.version = kVersion;
    ledger_.checkpoint = facts_.checkpoint;
    ledger_.adapters = facts_.adapters;
    ledger_.plan_digest = plan::digest(plan_);
    ledger_.mesh = plan_.mesh;
    ledger_.seed = plan_.seed;
    ledger_.ignored_keys = plan_.ignored_keys;
    ledger_.unexpected_keys = plan_.unexpected_keys;
    ledger_.ignored_adapter_keys = plan_.ignored_adapter_keys;
    for (const plan::PlannedFile& file : plan_.files) {
      const std::size_t i = ledger_.files.size();
      ledger_.files.push_back(
          {file.name, file.size_bytes, i < facts_.files.size() ? facts_.files[i] : std::nullopt, file.checkpoint});
    }
    for (const Statement& s : plan_.statements) ledger_.tensors.push_back(tensor_of(s));
    add_records();
    return std::move(ledger_);
  }

 private:
  using Key = std::pair<std::uint32_t, std::string_view>;  // and before it the checkpoint that has it

  [[nodiscard]] Key key_of(plan::SourceId i) const {
    return {plan_.files[plan_.sources[i].file].checkpoint, plan_.sources[i].key};
  }

  Tensor tensor_of(const Statement& s) const {
    Tensor tensor;
    tensor.name = s.name;
    tensor.kind = s.kind;
    tensor.shape = s.shape;
    tensor.storage = s.storage;
    tensor.checkpoint_dtype = s.checkpoint_dtype;
    tensor.provenance = s.provenance;
    if (s.provenance == Provenance::kFile) {
      tensor.checkpoint = s.checkpoint;
      tensor.expression = s.expression;
      tensor.must_equal = s.must_equal;
      std::vector<std::string> keys = s.expression.keys();
      for (const mapping::Expression& other : s.must_equal) {
        for (std::string& key : other.keys()) keys.push_back(std::move(key));
      }
      std::sort(keys.begin(), keys.end());
      keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
      for (const std::string& key : keys) add_source(key, tensor);
    }
    tensor.recipe = s.recipe;
    tensor.alias_of = s.alias_of;
    tensor.placement = s.placement;
    tensor.rule = s.rule;
    tensor.mapping_rule = s.mapping_rule;
    return tensor;
  }

  void add_source(const std::string& key, Tensor& tensor) const {
    const Key wanted{tensor.checkpoint, key};
    const auto found = std::lower_bound(sources_.begin(), sources_.end(), wanted,
                                        [&](plan::SourceId i, const Key& k) { return key_of(i) < k; });
    if (found == sources_.end() || key_of(*found) != wanted) return;
    const plan::Source& source = plan_.sources[*found];
    tensor.sources.push_back({source.key, source.file.number(), source.bytes, source.dtype, plan::key_shape(source)});
  }

  void add_records() {
    std::vector<std::vector<const DestinationFacts*>> facts(plan_.ranks.size());
    for (std::size_t r = 0; r < plan_.ranks.size(); ++r) facts[r].resize(plan_.ranks[r].destinations.size());
    for (const DestinationFacts& known : facts_.destinations)
      facts.at(known.rank).at(known.destination.number()) = &known;
    for (std::size_t r = 0; r < plan_.ranks.size(); ++r) {
      ledger_.ranks.push_back(plan_.ranks[r].rank);
      for (const plan::DestinationId d : plan_.ranks[r].destinations.ids()) {
        add_record(plan_.ranks[r], plan_.ranks[r].destinations[d], facts[r][d.number()]);
      }
    }
    std::sort(ledger_.ranks.begin(), ledger_.ranks.end());
    std::sort(ledger_.records.begin(), ledger_.records.end(), [](const Record& a, const Record& b) {
      return std::tie(a.rank, a.tensor, a.slot) < std::tie(b.rank, b.tensor, b.slot);
    });
    ledger_.complete = !facts_.has_failed && std::all_of(ledger_.records.begin(), ledger_.records.end(),
                                                         [](const Record& record) { return record.complete; });
  }

  void add_record(const plan::RankPlan& rank, const Destination& destination, const DestinationFacts* facts) {
    const Statement& s = plan_.statements[destination.statement];
    const Statement* const root = &plan_.statements[destination.root];
    Record record;
    record.rank = rank.rank;
    record.tensor = destination.statement.number();
    record.slot = destination.slot;
    record.provenance = root->provenance;
    record.reads = taken_by(destination, rank, plan_);
    record.cast_from = casts_of(destination, plan_, s.storage);
    record.region = RecordedRegion::of(rank.regions[destination.region]);
    record.device = destination.device;
    record.owned_elems = destination.owned_elems;
    record.bytes = size_of(destination.owned_elems, s.storage);
    record.expected_bytes = root->provenance == Provenance::kKept ? 0 : record.bytes;
    if (facts != nullptr) {
      record.written_bytes = facts->written_bytes;
      record.expected_bytes = facts->expected_bytes;
      record.digest = facts->digest;
      record.received_from = facts->received_from;
    }
    record.complete = record.written_bytes == record.expected_bytes;
    for (const plan::StatementId alias : destination.aliases) {
      Record& shared = ledger_.records.emplace_back(record);
      shared.tensor = alias.number();
      shared.provenance = Provenance::kAlias;
      shared.alias_of = s.name;
      shared.reads.clear();
      shared.cast_from.clear();
      shared.received_from.reset();
      shared.bytes = shared.written_bytes = shared.expected_bytes = 0;
    }
    ledger_.records.push_back(std::move(record));
  }

  const Plan& plan_;
  const LedgerFacts& facts_;
  std::vector<plan::SourceId> sources_;  // by checkpoint and key
  Ledger ledger_;
};

}  // namespace

Ledger make_ledger(const Plan& plan, const LedgerFacts& facts) { return Maker(plan, facts).run(); }

std::optional<std::uint32_t> Ledger::find(std::string_view name) const {
  const auto found = std::lower_bound(tensors.begin(), tensors.end(), name,
                                      [](const Tensor& tensor, std::string_view n) { return tensor.name < n; });
  if (found == tensors.end() || found->name != name) return std::nullopt;
  return static_cast<std::uint32_t>(found - tensors.begin());
}

std::uint32_t Ledger::root_of(std::uint32_t tensor) const {
  if (tensors[tensor].provenance != Provenance::kAlias) return tensor;
  const auto root = find(tensors[tensor].alias_of);
  LADING_CHECK(root.has_value());
  return *root;
}

std::string cast_text(const Record& record, DType storage) {
  std::string text;
  for (const DType from : record.cast_from) text += (text.empty() ? "" : ", ") + std::string(name(from));
  return text.empty() ? text : text + " -> " + std::string(name(storage));
}

}  // namespace lading::ledger
