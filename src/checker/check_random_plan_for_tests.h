// For tests: good plans of random shape, mesh, cuts and expressions, worked out element by element from
// check_naive_for_tests.h. The planner has no part in them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checker/check_naive_for_tests.h"
#include "checker/check_random_reads_for_tests.h"
#include "layout/region.h"

namespace lading::checker::naive {

class PlanMaker {
 public:
  explicit PlanMaker(std::uint64_t seed) : random_(seed), of_adapters_(seed), of_scales_(seed) {}

  std::uint64_t below(std::uint64_t n) { return random_() % n; }
  bool once_in(std::uint64_t n) { return below(n) == 0; }

  Plan make_plan() {
    plan_ = {};
    make_mesh();
    plan_.files.resize(1 + below(3));
    for (const FileId f : plan_.files.ids()) {
      plan_.files[f] = {"model-" + std::to_string(f.number()) + ".safetensors", 8 + below(40)};
    }
    checkpoints_ = of_adapters_() % 2 == 0 ? 1 : std::min<std::size_t>(2, plan_.files.size());
    if (checkpoints_ > 1) {  // an adapter, whose file is called as one of the base's
      plan_.files[FileId(1)].checkpoint = 1;
      plan_.files[FileId(1)].name = plan_.files[FileId(0)].name;
    }
    const std::uint64_t tensors = 1 + below(4);
    for (std::uint64_t t = 0; t < tensors; ++t) make_statement();
    if (once_in(4)) make_unit();
    if (once_in(4)) make_calls();
    finish_files();
    const std::uint64_t ranks = mesh_ranks();
    for (std::uint64_t r = 0; r < ranks; ++r) {
      if (ranks <= 2 || !once_in(3)) plan_.ranks.push_back(make_rank(r));
    }
    if (plan_.ranks.empty()) plan_.ranks.push_back(make_rank(ranks - 1));
    return std::move(plan_);
  }

  /// Transfers, and everything else that follows from statements, for one rank.
  RankPlan make_rank(std::uint64_t rank) {
    RankPlan out;
    out.rank = rank;
    out.staging_bytes = below(plan_.budget_bytes + 1);
    std::vector<std::string> units;
    for (const StatementId s : plan_.statements.ids()) {
      const Statement& root = plan_.statements[s];
      if (root.provenance == Provenance::kAlias) continue;
      for (std::size_t slot = 0; slot < root.placement.slots.size(); ++slot) {
        Destination d;
        bool found = false;
        for (const StatementId m : members_of(s)) {
          const Statement& member = plan_.statements[m];
          if (!memory_of(member, member.placement.slots[slot], plan_.mesh, rank)->present) continue;
          if (std::exchange(found, true)) {
            d.aliases.push_back(m);
          } else {
            d.statement = m;
          }
        }
        if (!found) continue;
        d.root = s;
        fill_in(d, slot, rank);
        add_region(out, d, slot);
        if (d.flat_parameter.empty() || std::find(units.begin(), units.end(), d.flat_parameter) == units.end()) {
          out.owned_bytes += d.buffer_bytes;
        }
        if (!d.flat_parameter.empty()) {
          const std::uint64_t owned = d.owned_elems * bits(plan_.statements[d.statement].storage) / 8;
          if (std::find(units.begin(), units.end(), d.flat_parameter) == units.end())
            out.flat_parameter_gap_bytes += d.buffer_bytes;
          out.flat_parameter_gap_bytes -= owned;
          units.push_back(d.flat_parameter);
        }
        out.destinations.push_back(std::move(d));
      }
    }
    serve_again(*this, plan_, out);
    out.staging_bytes = std::max(out.staging_bytes, memory_of_scales(plan_, out));
    return out;
  }

  // The root, then the others.
  std::vector<StatementId> members_of(StatementId root) const {
    std::vector<StatementId> members = {root};
    for (const StatementId m : plan_.statements.ids()) {
      if (plan_.statements[m].alias_of == plan_.statements[root].name) members.push_back(m);
    }
    return members;
  }

  // Destinations that hold the same share one.
  void add_region(RankPlan& out, Destination& d, std::size_t slot) {
    const Statement& s = plan_.statements[d.statement];
    layout::Region region = layout::region_of(s.shape, s.placement.slots[slot].cuts, plan_.mesh, out.rank);
    const auto known = std::find(out.regions.begin(), out.regions.end(), region);
    d.region = plan::RegionId(static_cast<std::size_t>(known - out.regions.begin()));
    if (known == out.regions.end()) out.regions.push_back(std::move(region));
  }

  Plan& plan() { return plan_; }

 private:
  std::uint64_t mesh_ranks() const {
    std::uint64_t ranks = 1;
    for (const auto& axis : plan_.mesh.axes()) ranks *= axis.size;
    return ranks;
  }

  void make_mesh() {
    std::vector<layout::Axis> axes;
    const char* names[] = {"pp", "dp", "tp"};
    for (const char* name : names) {
      if (!once_in(3)) axes.push_back({name, 1 + below(3)});
    }
    plan_.mesh = layout::Mesh(axes);
    plan_.budget_bytes = 100'000;
    plan_.devices.type = once_in(3) ? layout::DeviceType::kCpu : layout::DeviceType::kCuda;
    plan_.devices.per_node = 1 + below(4);
    if (!once_in(2)) return;
    for (std::uint64_t r = 0; r < mesh_ranks(); ++r)
      plan_.devices.list.push_back({layout::DeviceType::kCuda, below(8)});
  }

  std::string new_name() { return "layers." + std::to_string(10 + plan_.statements.size()) + ".w"; }

  Indices random_dims() {
    Indices dims;
    for (std::uint64_t d = below(4); d > 0; --d) dims.push_back(once_in(12) ? below(2) : 1 + below(6));
    return dims;
  }

  std::uint32_t choose_checkpoint() { return checkpoint_ = static_cast<std::uint32_t>(of_adapters_() % checkpoints_); }

  Source source_of(const Indices& dims) {
    Source source;
    source.key = "key" + std::to_string(plan_.sources.size());
    source.file = FileId(below(plan_.files.size()));
    // Of the statement's checkpoint; and the other one may have the same key.
    if (plan_.files[source.file].checkpoint != checkpoint_) source.file = FileId(checkpoint_);
    const auto same = [&](const Source& other) {
      return plan_.files[other.file].checkpoint == checkpoint_ && other.key == "key0";
    };
    const bool is_free = std::none_of(plan_.sources.begin(), plan_.sources.end(), same);
    if (checkpoints_ > 1 && is_free) source.key = "key0";
    source.dtype = dtype_;
    source.shape = Shape(dims);
    return source;
  }

  mapping::Expression new_source(const Indices& dims) {
    if (code_) return packed(dims);
    Source source = source_of(dims);
    if (is_scaled_ && of_scales_() % 4 != 0) return scaled(std::move(source));
    plan_.sources.push_back(source);
    return mapping::Expression::source(source.key);
  }

  // Codes, some of them too many, so that what is taken begins anywhere in an element.
  mapping::Expression packed(const Indices& dims);
  // Quantized, with scales that may lie in another file.
  mapping::Expression scaled(Source source);
  SourceId add_companion(const Source& of, std::string_view suffix, DType dtype, const Indices& dims);

  // Backwards: something whose result has these dims.
  mapping::Expression expression_of(const Indices& dims, int depth) {
    using mapping::Expression;
    if (depth == 0 || once_in(4)) return new_source(dims);
    if (dims.empty()) return Expression::reshape(expression_of({1, 1}, depth - 1), Shape());
    const std::size_t dim = below(dims.size());
    Indices other = dims;
    switch (below(7)) {
      case 0: {
        const std::uint64_t first = below(dims[dim] + 1);
        Indices rest = dims;
        other[dim] = first;
        rest[dim] = dims[dim] - first;
        return Expression::concat(dim, {expression_of(other, depth - 1), expression_of(rest, depth - 1)});
      }
      case 1: {
        if (dims[dim] == 0) return new_source(dims);
        other.erase(other.begin() + static_cast<std::ptrdiff_t>(dim));
        std::vector<Expression> parts;
        for (std::uint64_t p = 0; p < dims[dim]; ++p) parts.push_back(expression_of(other, depth - 1));
        return Expression::stack(dim, std::move(parts));
      }
      case 2: {
        const std::uint64_t before = below(3);
        other[dim] = before + dims[dim] + below(3);
        return Expression::slice(expression_of(other, depth - 1), dim, before, before + dims[dim]);
      }
      case 3: {
        std::vector<std::size_t> order(dims.size());
        for (std::size_t d = 0; d < order.size(); ++d) order[d] = d;
        std::shuffle(order.begin(), order.end(), random_);
        for (std::size_t d = 0; d < order.size(); ++d) other[order[d]] = dims[d];
        return Expression::permute(expression_of(other, depth - 1), order);
      }
      case 4: return rearranged(dims, dim, depth);
      case 5: {
        std::shuffle(other.begin(), other.end(), random_);
        if (once_in(2)) other = {product(dims)};
        return Expression::reshape(expression_of(other, depth - 1), Shape(dims));
      }
      default: {
        other[dim] = dims[dim] - std::min(dims[dim], below(3));
        const double fills[] = {0, class_of(dtype_) == DTypeClass::kFloat ? 1.5 : 2, -0.0};
        return Expression::pad(expression_of(other, depth - 1), dim, dims[dim], fills[below(3)]);
      }
    }
  }

  mapping::Expression rearranged(const Indices& dims, std::size_t dim, int depth) {
    std::vector<std::uint64_t> factors;
    std::uint64_t rest = dims[dim];
    for (const std::uint64_t f : {std::uint64_t{2}, std::uint64_t{3}}) {
      if (rest == 0 || rest % f != 0) continue;
      factors.push_back(f);
      rest /= f;
    }
    if (rest == 0) return new_source(dims);
    factors.push_back(rest);
    std::vector<std::size_t> order(factors.size());
    for (std::size_t d = 0; d < order.size(); ++d) order[d] = d;
    std::shuffle(order.begin(), order.end(), random_);
    return mapping::Expression::rearrange(expression_of(dims, depth - 1), dim, factors, order);
  }

  std::vector<layout::Cut> random_cuts(std::size_t rank) {
    std::vector<std::size_t> axes(plan_.mesh.axes().size());
    for (std::size_t a = 0; a < axes.size(); ++a) axes[a] = a;
    std::shuffle(axes.begin(), axes.end(), random_);
    std::vector<layout::Cut> cuts;
    while (!axes.empty()) {
      layout::Cut cut;
      for (std::uint64_t take = 1 + below(2); take > 0 && !axes.empty(); --take) {
        cut.axes.push_back(axes.back());
        axes.pop_back();
      }
      const std::uint64_t kind = below(6);
      if (kind == 0) continue;
      if (kind == 1) {
        cut.kind = layout::CutKind::kFlat;
        std::uint64_t group = 1;
        for (const std::size_t a : cut.axes) group *= plan_.mesh.axes()[a].size;
        if (once_in(3)) cut.pad_multiple = group * (1 + below(3));
        cuts.push_back(cut);
        return cuts;
      }
      if (kind == 2) {
        cut.kind = layout::CutKind::kOwner;
        cut.owners = {below(2), below(3)};
      } else if (rank == 0) {
        continue;
      } else {
        cut.kind = kind == 3 ? layout::CutKind::kStridedShard : layout::CutKind::kShard;
        cut.dim = below(rank);
        cut.split_factor = 1 + below(3);
      }
      cuts.push_back(cut);
    }
    return cuts;
  }

  // Of every source of the statement that is being made, or of none.
  void choose_codes() {
    const CodeType codes[] = {CodeType::kF4, CodeType::kU2, CodeType::kU4, CodeType::kU4, CodeType::kU8, CodeType::kI8};
    const DType dtypes[] = {DType::kU8, DType::kI32, DType::kI32, DType::kI8, DType::kU16, DType::kU32, DType::kI64};
    code_.reset();
    if (of_scales_() % 4 != 0) return;
    code_ = codes[of_scales_() % 6];
    dtype_ = dtypes[of_scales_() % 7];
    is_scaled_ = false;
  }

  void make_statement() {
    Statement s;
    s.name = new_name();
    const DType dtypes[] = {DType::kF32, DType::kBF16, DType::kF16,   DType::kF64,
                            DType::kI32, DType::kU8,   DType::kF8E4M3};
    const std::uint64_t pick = below(7);
    dtype_ = dtypes[pick];
    s.storage = pick < 4 ? dtypes[below(4)] : dtype_;  // the first four can be cast into one another
    is_scaled_ = dtype_ == DType::kF8E4M3 && of_scales_() % 4 != 0;
    if (is_scaled_) s.storage = dtypes[of_scales_() % 4];
    choose_codes();
    if (code_) s.storage = dtypes[of_scales_() % 4];
    s.compute = s.storage;
    const Indices dims = random_dims();
    s.shape = Shape(dims);
    s.placement.slots.front().cuts = random_cuts(dims.size());
    if (once_in(5)) s.placement.slots.push_back({"secondary", random_cuts(dims.size())});
    if (once_in(5)) s.placement.device = layout::DeviceRule::kCpu;
    const Provenance kinds[] = {Provenance::kFill, Provenance::kRandom, Provenance::kHost, Provenance::kKept};
    if (once_in(4)) {
      s.provenance = kinds[below(4)];
      if (class_of(s.storage) != DTypeClass::kFloat && s.provenance == Provenance::kRandom)
        s.provenance = Provenance::kHost;
      if (s.provenance == Provenance::kRandom) s.recipe.kind = model::RecipeKind::kNormal;
      s.recipe.value = 1;
      if (s.provenance == Provenance::kFill && !dims.empty() && dims[0] > 0 && once_in(2))
        s.recipe.zero_row = below(dims[0]);
    } else {
      s.checkpoint = choose_checkpoint();
      s.expression = expression_of(dims, 3);
      s.checkpoint_dtype = dtype_;
      for (std::uint64_t others = once_in(6) ? 1 + below(2) : 0; others > 0; --others) {
        s.must_equal.push_back(expression_of(dims, 1));
      }
    }
    const bool tied = once_in(4);
    plan_.statements.push_back(s);
    if (!tied) return;
    Statement alias = s;
    alias.name = new_name();
    alias.provenance = Provenance::kAlias;
    alias.alias_of = s.name;
    alias.must_equal.clear();
    alias.checkpoint = 0;
    for (auto& slot : alias.placement.slots) {
      for (auto& cut : slot.cuts) {
        if (cut.kind == layout::CutKind::kOwner) cut.owners = {below(3)};
      }
    }
    plan_.statements.push_back(alias);
    if (plan_.statements.size() % 3 != 0) return;  // not by dice: they fall as they always did
    // A plain attribute, which is no root though it comes first.
    Statement& first = plan_.statements[StatementId(plan_.statements.size() - 2)];
    Statement& second = plan_.statements[StatementId(plan_.statements.size() - 1)];
    std::swap(first, second);
    std::swap(first.name, second.name);
    first.kind = model::Kind::kAttribute;
    first.alias_of = second.name;
  }

  // FSDP1: two tensors in one flat buffer, with a gap.
  void make_unit() {
    layout::Cut cut;
    cut.kind = layout::CutKind::kFlatGroup;
    cut.flat_parameter = "block";
    for (std::size_t a = 0; a < plan_.mesh.axes().size(); ++a) {
      if (once_in(2)) cut.axes.push_back(a);
    }
    const Indices first = random_dims();
    const Indices second = random_dims();
    const std::uint64_t gap = below(4);
    cut.group_elems = product(first) + gap + product(second) + below(4);
    is_scaled_ = of_scales_() % 3 == 0;
    dtype_ = is_scaled_ ? DType::kF8E5M2 : DType::kBF16;
    choose_codes();
    for (const Indices& dims : {first, second}) {
      Statement s;
      s.name = new_name();
      s.storage = DType::kF32;
      s.checkpoint_dtype = dtype_;
      s.shape = Shape(dims);
      s.checkpoint = choose_checkpoint();
      s.expression = expression_of(dims, 2);
      s.placement.slots.front().cuts = {cut};
      plan_.statements.push_back(s);
      cut.group_offset_elems = product(first) + gap;
    }
  }

  // On the ranks that have its input, no others.
  static std::vector<layout::Cut> owner_cuts(const layout::Slot& slot) {
    std::vector<layout::Cut> cuts = slot.cuts;
    std::erase_if(cuts, [](const layout::Cut& cut) { return cut.kind != layout::CutKind::kOwner; });
    return cuts;
  }

  void make_calls() {
    Statement s;
    s.name = new_name();
    s.provenance = Provenance::kCall;
    s.recipe.kind = model::RecipeKind::kCall;
    s.shape = {2, 2};
    s.recipe.inputs = {plan_.statements.front().name};
    s.placement.slots.front().cuts = owner_cuts(plan_.statements.front().placement.slots.front());
    plan_.statements.push_back(s);
    Statement later = s;
    later.name = new_name();
    later.recipe.inputs.push_back(s.name);
    plan_.statements.push_back(later);
    const std::size_t count = plan_.statements.size();
    plan_.call_order = {StatementId(count - 2), StatementId(count - 1)};
  }

  void finish_files() {
    for (Source& source : plan_.sources) {
      PlannedFile& file = plan_.files[source.file];
      file.size_bytes += once_in(3) ? below(8) : 0;  // a tensor that nobody wants
      source.bytes.begin = file.size_bytes;
      file.size_bytes += product(indices_of(source.shape)) * width_of(source) / 8;
      source.bytes.end = file.size_bytes;
    }
  }

  void fill_in(Destination& d, std::size_t slot_index, std::uint64_t rank);
  std::vector<Transfer> transfers_for(const std::vector<std::pair<std::uint64_t, Label>>& cells, DType storage);

  std::mt19937_64 random_;
  // Of their own, so that they change nothing else in the plan of a seed.
  std::mt19937_64 of_adapters_;
  std::mt19937_64 of_scales_;
  bool is_scaled_ = false;  // the statement that is being made
  std::optional<CodeType> code_;
  std::size_t checkpoints_ = 1;
  std::uint32_t checkpoint_ = 0;  // of the statement that is being made
  Plan plan_;
  DType dtype_ = DType::kF32;
};

}  // namespace lading::checker::naive

#include "checker/check_random_scales_for_tests.h"     // IWYU pragma: export
#include "checker/check_random_transfers_for_tests.h"  // IWYU pragma: export
