#include "layout/cut_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/checked.h"
#include "base/enumerator.h"
#include "base/text.h"
#include "layout/chunk.h"

namespace lading::layout {
namespace {

// A dim of more different sizes than this, over all ranks, is not worth proving even.
constexpr std::size_t kMaxSizes = 4096;

/// The problems of one cut, whatever tensor it is for.
class CutList {
 public:
  CutList(const std::vector<Cut>& cuts, const Mesh& mesh)
      : cuts_(cuts), mesh_(mesh), used_(mesh.axes().size(), false) {}

  std::vector<CutProblem> problems() && {
    for (at_ = 0; at_ < cuts_.size(); ++at_) {
      const Cut& cut = cuts_[at_];
      const bool axes_are_good = check_axes(cut);
      if (cut.even && cut.kind != CutKind::kShard) {
        add("R53", "only a plain shard can be declared even");
      }
      switch (cut.kind) {
        case CutKind::kShard: break;
        case CutKind::kStridedShard:
          if (cut.split_factor == 0) add("R55", "the split factor is 0", "1 or more", "0");
          break;
        case CutKind::kFlat: check_flat(cut, axes_are_good); break;
        case CutKind::kFlatGroup: check_flat_group(cut); break;
        case CutKind::kOwner:
          if (axes_are_good) check_owners(cut);
          break;
      }
    }
    return std::move(problems_);
  }

 private:
  bool check_axes(const Cut& cut) {
    if (cut.axes.empty()) {
      add("R53", "the cut names no axis of the mesh", "one axis or more", "none");
      return false;
    }
    bool good = true;
    for (const std::size_t axis : cut.axes) {
      if (axis >= used_.size()) {
        add("R53", "the cut names an axis that the mesh does not have", fmt::format("one of {}", used_.size()),
            std::to_string(axis));
        good = false;
      } else if (used_[axis]) {
        // The ranks along one axis can share a tensor out only once: a second time, parts would have no holder.
        add("R11", fmt::format("the axis {} cuts the tensor twice", quote(mesh_.axes()[axis].name)));
        good = false;
      } else {
        used_[axis] = true;
      }
    }
    return good;
  }

  void check_flat(const Cut& cut, bool axes_are_good) {
    if (at_ + 1 != cuts_.size()) add("R56", "the flat cut is not the last cut: its parts have no dims to cut");
    if (!axes_are_good || cut.pad_multiple == 0) return;
    if (const std::uint64_t group = mesh_.group_size(cut.axes); cut.pad_multiple % group != 0) {
      add("R56", "the padded size does not divide into equal parts", fmt::format("a multiple of {}", group),
          std::to_string(cut.pad_multiple));
    }
  }

  void check_flat_group(const Cut& cut) {
    const auto others =
        std::count_if(cuts_.begin(), cuts_.end(), [](const Cut& c) { return c.kind != CutKind::kOwner; });
    if (others != 1 || at_ + 1 != cuts_.size()) {
      add("R56", "the tensor is in a shared buffer and has other cuts too: only owners may come before");
    }
    if (cut.flat_parameter.empty()) add("R56", "the shared buffer has no name");
    if (cut.group_elems > kMaxSize - Mesh::kMaxRanks) {
      add("R56", "the shared buffer is too large", "less than 2^63 elements", std::to_string(cut.group_elems));
    }
  }

  void check_owners(const Cut& cut) {
    const std::uint64_t group = mesh_.group_size(cut.axes);
    if (cut.owners.empty()) add("R59", "the tensor has no owner", "one owner or more", "none");
    std::set<std::uint64_t> seen;
    for (const std::uint64_t owner : cut.owners) {
      if (owner >= group) {
        add("R59", "an owner is not a rank of the axis", fmt::format("less than {}", group), std::to_string(owner));
      } else if (!seen.insert(owner).second) {
        add("R59", "an owner is named twice", "each once", std::to_string(owner));
      }
    }
  }

  void add(std::string_view rule, std::string message, std::string expected = "", std::string found = "") {
    problems_.push_back(
        {at_,
         Error(Code::kLayout, std::move(message)).by_rule(rule).wanted(std::move(expected)).got(std::move(found))});
  }

  const std::vector<Cut>& cuts_;
  const Mesh& mesh_;
  std::vector<bool> used_;
  std::size_t at_ = 0;
  std::vector<CutProblem> problems_;
};

/// The sizes that a dim of `elems` can have on some rank, after a (strided) shard over `group` ranks.
void add_sizes_after(std::uint64_t elems, std::uint64_t split_factor, std::uint64_t group,
                     std::set<std::uint64_t>& sizes) {
  const std::uint64_t whole = divide_up(elems, split_factor);
  const std::uint64_t whole_groups = whole == 0 ? 0 : elems / whole;
  const std::uint64_t rest = whole == 0 ? 0 : elems % whole;
  // Along the seats a chunk's size changes only where its last elements are: look on both sides of that.
  std::set<std::uint64_t> seats = {0, group - 1};
  for (const std::uint64_t part : {whole, rest}) {
    const std::uint64_t each = divide_up(part, group);
    const std::uint64_t last = each == 0 ? 0 : part / each;
    for (const std::uint64_t seat : {last == 0 ? 0 : last - 1, last, last + 1}) {
      if (seat < group) seats.insert(seat);
    }
  }
  const auto size_of = [&](std::uint64_t part, std::uint64_t seat) {
    const Interval interval = chunk(part, {seat, group});
    return interval.end - interval.begin;
  };
  for (const std::uint64_t seat : seats) sizes.insert(whole_groups * size_of(whole, seat) + size_of(rest, seat));
}

/// The problems of cutting one shape. Cuts that are wrong in themselves are left out.
class ShapeChecker {
 public:
  ShapeChecker(const Shape& global, const Mesh& mesh, bool even_matters)
      : global_(global), mesh_(mesh), runs_(global.rank(), 1), sizes_(even_matters ? global.rank() : 0) {
    for (std::size_t d = 0; d < sizes_.size(); ++d) sizes_[d].insert(global[d]);
  }

  std::optional<Error> check(const Cut& cut) {
    switch (cut.kind) {
      case CutKind::kShard:
      case CutKind::kStridedShard: return check_shard(cut);
      case CutKind::kFlat: return check_flat(cut);
      case CutKind::kFlatGroup: return check_flat_group(cut);
      case CutKind::kOwner: return std::nullopt;
    }
    return std::nullopt;
  }

 private:
  std::optional<Error> check_shard(const Cut& cut) {
    if (cut.dim >= global_.rank()) {
      return Error(Code::kLayout, "the cut names a dim that the tensor does not have")
          .by_rule("R53")
          .wanted(global_.rank() == 0 ? "no cut, since it has no dims" : fmt::format("less than {}", global_.rank()))
          .got(std::to_string(cut.dim));
    }
    const std::uint64_t split_factor = cut.kind == CutKind::kShard ? 1 : cut.split_factor;
    if (split_factor > 1) runs_[cut.dim] += std::min({split_factor, global_[cut.dim], kMaxRuns});
    if (runs_[cut.dim] > kMaxRuns) {
      return Error(Code::kLayout, "the cut leaves a dim in too many pieces")
          .by_rule("R55")
          .wanted(fmt::format("a split factor below {}", kMaxRuns))
          .got(std::to_string(cut.split_factor));
    }
    if (sizes_.empty()) return std::nullopt;
    return follow_sizes(cut, split_factor);
  }

  std::optional<Error> follow_sizes(const Cut& cut, std::uint64_t split_factor) {
    const std::uint64_t group = mesh_.group_size(cut.axes);
    std::set<std::uint64_t>& sizes = sizes_[cut.dim];
    if (cut.even) {
      // The verdict is over all ranks: FSDP2 itself raises only where the local size is odd, and the others wait.
      const auto uneven = std::find_if(sizes.begin(), sizes.end(), [&](std::uint64_t n) { return n % group != 0; });
      if (uneven != sizes.end()) {
        return Error(Code::kLayout, "the dim does not divide evenly, but the cut is declared even")
            .by_rule("R53")
            .wanted(fmt::format("a multiple of {}", group))
            .got(std::to_string(*uneven));
      }
    }
    std::set<std::uint64_t> after;
    for (const std::uint64_t size : sizes) add_sizes_after(size, split_factor, group, after);
    sizes = std::move(after);
    if (sizes.size() > kMaxSizes) {
      return Error(Code::kLayout, "the cuts leave too many different sizes to check whether they are even")
          .by_rule("R53");
    }
    return std::nullopt;
  }

  std::optional<Error> check_flat(const Cut& cut) const {
    const std::uint64_t multiple = cut.pad_multiple == 0 ? mesh_.group_size(cut.axes) : cut.pad_multiple;
    const std::uint64_t elems = *global_.num_elems();
    const auto padded = checked_mul(divide_up(elems, multiple), multiple);
    if (padded) return std::nullopt;
    return Error(Code::kLayout, "the padded tensor is too large")
        .by_rule("R56")
        .wanted("less than 2^63 elements")
        .got(fmt::format("{} padded to a multiple of {}", elems, multiple));
  }

  std::optional<Error> check_flat_group(const Cut& cut) const {
    const auto end = checked_add(cut.group_offset_elems, *global_.num_elems());
    if (end && *end <= cut.group_elems) return std::nullopt;
    return Error(Code::kLayout,
                 fmt::format("the tensor does not fit into the shared buffer {}", quote(cut.flat_parameter)))
        .by_rule("R11")
        .wanted(fmt::format("an end at {} or before", cut.group_elems))
        .got(fmt::format("{} elements at {}", *global_.num_elems(), cut.group_offset_elems));
  }

  const Shape& global_;
  const Mesh& mesh_;
  std::vector<std::uint64_t> runs_;             // an upper bound, per dim
  std::vector<std::set<std::uint64_t>> sizes_;  // per dim, over all ranks
};

}  // namespace

std::vector<CutProblem> cut_list_problems(const std::vector<Cut>& cuts, const Mesh& mesh) {
  return CutList(cuts, mesh).problems();
}

Errors check_cuts(const Shape& global, const std::vector<Cut>& cuts, const Mesh& mesh) {
  Errors errors = check_mesh(mesh);
  if (!errors.empty()) return errors;
  if (!global.num_elems()) {
    errors.add(Error(Code::kLayout, "the tensor is too large")
                   .by_rule("R41")
                   .wanted("less than 2^63 elements")
                   .got(global.text()));
    return errors;
  }
  if (cuts.empty()) return errors;
  for (const Cut& cut : cuts) {
    if (!is_enumerator(cut.kind, CutKind::kOwner))
      errors.add(Error(Code::kLayout, "the kind of a cut is not a known enumerator"));
    if (find_invalid_utf8(cut.flat_parameter)) {
      errors.add(Error(Code::kLayout, "the name of a flat parameter is not UTF-8").got(quote(cut.flat_parameter)));
    }
  }
  if (!errors.empty()) return errors;
  std::vector<bool> bad(cuts.size(), false);
  for (CutProblem& problem : cut_list_problems(cuts, mesh)) {
    bad[problem.cut] = true;
    problem.error.message = fmt::format("cut {}: {}", problem.cut, problem.error.message);
    errors.add(std::move(problem.error));
  }
  const bool even_matters = std::any_of(cuts.begin(), cuts.end(), [](const Cut& cut) { return cut.even; });
  ShapeChecker shape(global, mesh, even_matters);
  for (std::size_t i = 0; i < cuts.size(); ++i) {
    if (bad[i]) continue;
    if (auto error = shape.check(cuts[i])) {
      error->message = fmt::format("cut {}: {}", i, error->message);
      errors.add(*std::move(error));
    }
  }
  return errors;
}

}  // namespace lading::layout
