// `lading.plan/1`, docs/schema/plan.md. The same plan gives the same bytes.
#include "plan/plan_json.h"

#include "base/error_json.h"
#include "base/json_writer.h"
#include "base/version.h"
#include "layout/layout_json_write.h"
#include "mapping/decoding_json.h"
#include "model/skeleton_json.h"
#include "plan/plan.h"
#include "plan/rank_groups.h"
#include "plan/source_codes.h"
#include "plan/totals.h"
#include "plan/words.h"

namespace lading::plan {
namespace {

using mapping::Expression;
using mapping::Op;

constexpr auto kOneLine = JsonWriter::Lines::kOne;

template <class Numbers>
void write_numbers(JsonWriter& json, const Numbers& numbers) {
  json.begin_array(kOneLine);
  for (const std::uint64_t number : numbers) json.number(number);
  json.end_array();
}

// The base checkpoint's number is left out.
void write_checkpoint(JsonWriter& json, std::uint32_t checkpoint) {
  if (checkpoint > 0) json.key("checkpoint").number(checkpoint);
}

void write_text(JsonWriter& json, std::string_view key, std::string_view text) {
  if (!text.empty()) json.key(key).string(text);
}

std::string_view word_of(Op op) {
  switch (op) {
    case Op::kSource: return "source";
    case Op::kConcat: return "concat";
    case Op::kStack: return "stack";
    case Op::kSlice: return "slice";
    case Op::kPermute: return "permute";
    case Op::kRearrange: return "rearrange";
    case Op::kReshape: return "reshape";
    case Op::kPad: return "pad";
    case Op::kDequantize: return "dequantize";
  }
  return "unknown";
}

}  // namespace

void write_expression(JsonWriter& json, const Expression& e) {
  if (e.op == Op::kSource) {
    json.string(e.key);
    return;
  }
  json.begin_object(kOneLine).key(word_of(e.op)).begin_object();
  if (e.op == Op::kDequantize) {
    json.key("of").string(e.key).key("scales").string(e.scales);
    write_numbers(json.key("block"), e.shape);
    if (e.product) json.key("product").string(name(*e.product));
    mapping::write_decoding(json, {e.decoding, e.zeros, e.tensor_scale, e.groups});
    json.end_object().end_object();
    return;
  }
  const bool has_dim = e.op != Op::kPermute && e.op != Op::kReshape;
  if (has_dim) json.key("dim").number(e.dim);
  if (e.op == Op::kSlice) json.key("begin").number(e.begin);
  if (e.op == Op::kSlice || e.op == Op::kPad) json.key("end").number(e.end);
  if (e.op == Op::kRearrange) write_numbers(json.key("factors"), e.factors);
  if (e.op == Op::kRearrange || e.op == Op::kPermute) write_numbers(json.key("order"), e.order);
  if (e.op == Op::kReshape) write_numbers(json.key("shape"), e.shape);
  if (e.op == Op::kPad) json.key("fill").number(e.fill);
  if (e.op == Op::kConcat || e.op == Op::kStack) {
    json.key("parts").begin_array();
    for (const Expression& part : e.parts) write_expression(json, part);
    json.end_array();
  } else {
    write_expression(json.key("of"), e.parts.front());
  }
  json.end_object().end_object();
}

bool has_recipe(Provenance provenance) {
  return provenance == Provenance::kHost || provenance == Provenance::kCall || provenance == Provenance::kFill ||
         provenance == Provenance::kRandom;
}

void write_placement(JsonWriter& json, const layout::Placement& placement, const layout::Mesh& mesh) {
  json.begin_object();
  json.key("device").string(placement.device == layout::DeviceRule::kCpu ? "cpu" : "rank");
  write_text(json, "fsdp_group", placement.fsdp_group);
  json.key("slots").begin_array();
  for (const layout::Slot& slot : placement.slots) {
    json.begin_object(kOneLine).key("name").string(slot.name);
    layout::write_cuts(json.key("cuts"), slot.cuts, mesh);
    json.end_object();
  }
  json.end_array().end_object();
}

namespace {

void write_statement(JsonWriter& json, const Statement& s, const layout::Mesh& mesh) {
  json.begin_object();
  json.key("name").string(s.name);
  json.key("kind").string(model::word(s.kind));
  write_numbers(json.key("shape"), s.shape);
  json.key("provenance").string(word(s.provenance));
  write_checkpoint(json, s.checkpoint);
  if (s.provenance == Provenance::kFile) write_expression(json.key("expression"), s.expression);
  if (!s.must_equal.empty()) {
    json.key("must_equal").begin_array();
    for (const Expression& other : s.must_equal) write_expression(json, other);
    json.end_array();
  }
  if (s.provenance == Provenance::kAlias) json.key("alias_of").string(s.alias_of);
  if (has_recipe(s.provenance)) model::write_recipe(json.key("recipe"), s.recipe);
  if (s.provenance == Provenance::kKept) json.key("kept_device").string(s.kept_device);
  if (s.checkpoint_dtype) json.key("checkpoint_dtype").string(name(*s.checkpoint_dtype));
  json.key("storage_dtype").string(name(s.storage));
  json.key("compute_dtype").string(name(s.compute));
  write_placement(json.key("placement"), s.placement, mesh);
  write_text(json, "mapping_rule", s.mapping_rule);
  json.key("rule").string(s.rule);
  json.key("reason").string(s.reason);
  json.key("dtype_reason").string(s.dtype_reason);
  json.end_object();
}

class Writer {
 public:
  explicit Writer(const Plan& plan) : plan_(plan) {}

  std::string run() {
    json_.begin_object();
    json_.key("schema").string("lading.plan/1");
    json_.key("lading").string(kVersion);
    json_.key("ok").boolean(true);
    json_.key("digest").string(digest(plan_));
    layout::write_mesh(json_.key("mesh"), plan_.mesh);
    json_.key("rank_count").number(plan_.mesh.ranks());
    layout::write_devices(json_.key("devices"), plan_.devices);
    json_.key("seed").number(plan_.seed);
    json_.key("budget_bytes").number(plan_.budget_bytes);
    write_sources();
    json_.key("tensors").begin_array();
    for (const Statement& s : plan_.statements) write_statement(json_, s, plan_.mesh);
    json_.end_array();
    json_.key("call_order").begin_array();
    for (const StatementId i : plan_.call_order) json_.string(plan_.statements[i].name);
    json_.end_array();
    write_keys();
    write_ranks();
    if (plan_.unread_bytes) json_.key("unread_bytes").number(*plan_.unread_bytes);
    write_errors(json_, "warnings", plan_.warnings, Remedies::kOwn);
    write_errors(json_, "problems", {});
    json_.end_object();
    return json_.take();
  }

 private:
  void write_sources() {
    json_.key("files").begin_array();
    for (const PlannedFile& file : plan_.files) {
      json_.begin_object(kOneLine).key("name").string(file.name);
      json_.key("size_bytes").number(file.size_bytes);
      write_checkpoint(json_, file.checkpoint);
      json_.end_object();
    }
    json_.end_array();
    json_.key("sources").begin_array();
    for (const Source& source : plan_.sources) {
      json_.begin_object(kOneLine).key("key").string(source.key);
      write_checkpoint(json_, plan_.files[source.file].checkpoint);
      json_.key("file").string(plan_.files[source.file].name);
      json_.key("bytes").begin_array().number(source.bytes.begin).number(source.bytes.end).end_array();
      json_.key("dtype").string(name(source.dtype));
      write_numbers(json_.key("shape"), key_shape(source));
      if (source.scaling) write_scaling(*source.scaling);
      json_.end_object();
    }
    json_.end_array();
  }

  [[nodiscard]] std::string_view key_of(SourceId id) const {
    return id.is_none() ? std::string_view() : plan_.sources[id].key;
  }

  void write_scaling(const Scaling& scaling) {
    json_.key("scales").string(key_of(scaling.scales));
    write_numbers(json_.key("block"), scaling.block);
    mapping::write_decoding(
        json_, {scaling.decoding, key_of(scaling.zeros), key_of(scaling.tensor_scale), key_of(scaling.groups)});
  }

  void write_keys() {
    json_.key("ignored_keys").begin_array();
    for (const auto& [key, rule] : plan_.ignored_keys) {
      json_.begin_object(kOneLine).key("key").string(key).key("rule").string(rule).end_object();
    }
    for (const IgnoredAdapterKey& ignored : plan_.ignored_adapter_keys) {
      json_.begin_object(kOneLine).key("key").string(ignored.key).key("rule").string(ignored.rule);
      write_checkpoint(json_, ignored.checkpoint);
      json_.end_object();
    }
    json_.end_array();
    json_.key("unexpected_keys").begin_array();
    for (const std::string& key : plan_.unexpected_keys) json_.string(key);
    json_.end_array();
  }

  using Offsets = std::vector<Offset>::const_iterator;

  // A number, or what it is on each rank of the group.
  void write_offset(const Offset& offset) {
    if (!offset.list.empty()) {
      json_.begin_object(kOneLine).key("list");
      write_numbers(json_, offset.list);
      json_.end_object();
    } else if (!offset.steps.empty()) {
      json_.begin_object(kOneLine).key("base").number(offset.base).key("steps").begin_array(kOneLine);
      for (const std::uint64_t step : offset.steps) json_.number(step);
      json_.end_array().end_object();
    } else {
      json_.number(offset.base);
    }
  }

  void write_transfer(const Transfer& transfer, const Offset& from, const Offset& to) {
    json_.begin_object(kOneLine);
    if (transfer.is_fill()) {
      json_.key("fill").number(transfer.fill);
    } else {
      json_.key("source").string(plan_.sources[transfer.source].key);
      write_checkpoint(json_, plan_.files[plan_.sources[transfer.source].file].checkpoint);
      json_.key("from");
      write_offset(from);
      if (transfer.first_code != 0) json_.key("first_code").number(transfer.first_code);
    }
    json_.key("to");
    write_offset(to);
    json_.key("elems").number(transfer.run_elems);
    if (!transfer.loops.empty()) {
      json_.key("loops").begin_array();
      for (const ByteLoop& loop : transfer.loops) {
        json_.begin_array().number(loop.count).number(loop.source_stride_bytes);
        json_.number(loop.target_stride_bytes).end_array();
      }
      json_.end_array();
    }
    json_.end_object();
  }

  void write_transfers(const std::vector<Transfer>& transfers, Offsets& offset) {
    json_.key("transfers").begin_array();
    for (const Transfer& transfer : transfers) {
      write_transfer(transfer, offset[0], offset[1]);
      offset += 2;
    }
    json_.end_array();
  }

  void write_destination(const Destination& destination, std::string_view own_device, Offsets& offset) {
    json_.begin_object();
    json_.key("tensor").string(plan_.statements[destination.statement].name);
    json_.key("slot").string(destination.slot);
    json_.key("device").string(destination.device == own_device ? "rank" : destination.device);
    write_text(json_, "unit", destination.flat_parameter);
    json_.key("buffer_bytes").number(destination.buffer_bytes);
    json_.key("owned_elems").number(destination.owned_elems);
    if (!destination.aliases.empty()) {
      json_.key("aliases").begin_array();
      for (const StatementId alias : destination.aliases) json_.string(plan_.statements[alias].name);
      json_.end_array();
    }
    write_transfers(destination.transfers, offset);
    if (!destination.comparisons.empty()) {
      json_.key("comparisons").begin_array();
      for (const auto& comparison : destination.comparisons) {
        json_.begin_object();
        write_transfers(comparison, offset);
        json_.end_object();
      }
      json_.end_array();
    }
    json_.end_object();
  }

  void write_read(const Read& read, const Offset& begin) {
    json_.begin_object(kOneLine).key("file").string(plan_.files[read.file].name);
    write_checkpoint(json_, plan_.files[read.file].checkpoint);
    json_.key("begin");
    write_offset(begin);
    json_.key("size").number(read.size_bytes);
    if (read.count > 1) json_.key("count").number(read.count).key("stride").number(read.stride_bytes);
    json_.key("for").begin_array();
    for (const TransferRef& ref : read.transfers) {
      json_.begin_array().number(ref.destination.number()).number(ref.transfer);
      if (ref.is_comparison()) json_.number(ref.list - 1);
      json_.end_array();
    }
    json_.end_array().end_object();
  }

  void write_scale_read(const ScaleRead& read, Offsets& offset) {
    const Source& source = plan_.sources[read.source];
    const Scaling& scaling = *source.scaling;
    json_.begin_object(kOneLine).key("scales").string(key_of(scaling.scales));
    json_.key("of").string(source.key).key("begin");
    write_offset(*offset++);
    json_.key("size").number(read.bytes.size_bytes());
    if (read.zeros.size_bytes() > 0) {
      json_.key("zeros").string(key_of(scaling.zeros)).key("zeros_begin");
      write_offset(*offset++);
      json_.key("zeros_size").number(read.zeros.size_bytes());
    }
    if (!scaling.tensor_scale.is_none()) json_.key("tensor_scale").string(key_of(scaling.tensor_scale));
    if (!scaling.groups.is_none()) json_.key("groups").string(key_of(scaling.groups));
    json_.end_object();
  }

  [[nodiscard]] std::string device_of(const RankPlan& rank) const { return plan_.devices.of(rank.rank).text(); }

  void write_ranks() {
    const std::vector<RankGroup> groups = group_ranks(plan_);
    std::vector<std::size_t> group_of(plan_.ranks.size());
    for (std::size_t g = 0; g < groups.size(); ++g) {
      for (const std::size_t member : groups[g].members) group_of[member] = g;
    }
    json_.key("ranks").begin_array();
    for (std::size_t r = 0; r < plan_.ranks.size(); ++r) write_rank(plan_.ranks[r], group_of[r]);
    json_.end_array();
    json_.key("rank_groups").begin_array();
    for (const RankGroup& group : groups) write_group(group);
    json_.end_array();
  }

  void write_rank(const RankPlan& rank, std::size_t group) {
    json_.begin_object(kOneLine);
    json_.key("rank").number(rank.rank);
    json_.key("group").number(group);
    json_.key("device").string(device_of(rank));
    json_.key("read_bytes").number(rank.read_bytes);
    json_.key("owned_bytes").number(rank.owned_bytes);
    json_.key("staging_bytes").number(rank.staging_bytes);
    if (rank.flat_parameter_gap_bytes > 0) json_.key("unit_gap_bytes").number(rank.flat_parameter_gap_bytes);
    json_.key("device_bytes").begin_object(kOneLine);
    for (const auto& [device, bytes] : device_bytes(rank)) json_.key(device).number(bytes);
    json_.end_object().end_object();
  }

  void write_group(const RankGroup& group) {
    const RankPlan& rank = plan_.ranks[group.members.front()];
    json_.begin_object();
    json_.key("ranks").begin_array(kOneLine);
    for (const std::size_t member : group.members) json_.number(plan_.ranks[member].rank);
    json_.end_array();
    auto offset = group.offsets.begin();
    json_.key("destinations").begin_array();
    for (const Destination& destination : rank.destinations) write_destination(destination, device_of(rank), offset);
    json_.end_array();
    json_.key("reads").begin_array();
    for (const Read& read : rank.reads) write_read(read, *offset++);
    json_.end_array();
    if (!rank.scale_reads.empty()) {
      json_.key("scale_reads").begin_array();
      for (const ScaleRead& read : rank.scale_reads) write_scale_read(read, offset);
      json_.end_array();
    }
    if (!rank.batch_ends.empty()) {
      json_.key("batch_ends").begin_array(kOneLine);
      for (const std::uint32_t end : rank.batch_ends) json_.number(end);
      json_.end_array();
    }
    json_.end_object();
  }

  const Plan& plan_;
  JsonWriter json_;
};

}  // namespace

std::string plan_json(const Plan& plan) { return Writer(plan).run(); }

}  // namespace lading::plan
