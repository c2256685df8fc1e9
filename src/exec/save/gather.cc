#include "exec/save/gather.h"

#include <algorithm>

#include "base/element_bytes.h"
#include "base/loop_nest.h"

namespace lading::exec {
namespace {

class Walk {
 public:
  Walk(const GatherInputs& inputs, const std::function<Result<void>(const Stretch&)>& act)
      : inputs_(inputs), loops_(inputs.write.loops), act_(act), elems_below_(loops_.size() + 1) {
    elems_below_.back() = inputs.write.run_elems;
    for (std::size_t l = loops_.size(); l-- > 0;) elems_below_[l] = elems_below_[l + 1] * loops_[l].count;
    contiguous_from_ = loops_.size();
    while (contiguous_from_ > 0 &&
           loops_[contiguous_from_ - 1].target_stride_bytes == file_bytes(elems_below_[contiguous_from_])) {
      --contiguous_from_;
    }
  }

  Result<void> run(std::uint64_t begin, std::uint64_t end) {
    return walk(0, {inputs_.write.file_begin_bytes, inputs_.write.memory_begin_bytes}, begin, end);
  }

 private:
  struct Place {
    std::uint64_t file = 0;
    std::uint64_t memory = 0;
  };

  [[nodiscard]] std::uint64_t file_bytes(std::uint64_t elems) const {
    return bytes_of_elems(elems, inputs_.file_dtype);
  }
  [[nodiscard]] std::uint64_t memory_bytes(std::uint64_t elems) const {
    return bytes_of_elems(elems, inputs_.memory_dtype);
  }

  // Elements [begin, end) of what is within loop `l`, which begins at this place.
  Result<void> walk(std::size_t l, Place at, std::uint64_t begin, std::uint64_t end) {
    if (begin >= end) return {};
    if (l == loops_.size()) return run_part(at, begin, end);
    const std::uint64_t each = elems_below_[l + 1];
    if (l >= contiguous_from_ && each <= inputs_.most_elems) return gather(l, at, begin, end);
    for (std::uint64_t round = begin / each; round * each < end; ++round) {
      const std::uint64_t first = round * each;
      LADING_TRY(walk(l + 1, moved(l, at, round), std::max(begin, first) - first, std::min(end - first, each)));
    }
    return {};
  }

  // Whole rounds of loop `l` together, as many as fit; a round that is cut by itself.
  Result<void> gather(std::size_t l, Place at, std::uint64_t begin, std::uint64_t end) {
    const std::uint64_t each = elems_below_[l + 1];
    const std::uint64_t fit = inputs_.most_elems / each;
    for (std::uint64_t next = begin; next < end;) {
      const std::uint64_t round = next / each;
      const std::uint64_t first = round * each;
      const std::uint64_t whole = next == first ? std::min((end - first) / each, fit) : 0;
      if (whole == 0) {
        const std::uint64_t stop = std::min(end, first + each);
        LADING_TRY(walk(l + 1, moved(l, at, round), next - first, stop - first));
        next = stop;
        continue;
      }
      const Place begins = moved(l, at, round);
      Stretch stretch{begins.file, begins.memory, inputs_.write.run_elems, {}};
      stretch.loops.push_back({whole, loops_[l].source_stride_bytes, loops_[l].target_stride_bytes});
      stretch.loops.insert(stretch.loops.end(), loops_.begin() + static_cast<std::ptrdiff_t>(l) + 1, loops_.end());
      LADING_TRY(act_(stretch));
      next = first + whole * each;
    }
    return {};
  }

  Result<void> run_part(Place at, std::uint64_t begin, std::uint64_t end) {
    const bool is_staged = !inputs_.can_be_written_from_memory || inputs_.file_dtype != inputs_.memory_dtype;
    const std::uint64_t most = is_staged ? inputs_.most_elems : end - begin;
    for (std::uint64_t next = begin; next < end;) {
      const std::uint64_t elems = std::min(most, end - next);
      LADING_TRY(act_({at.file + file_bytes(next), at.memory + memory_bytes(next), elems, {}}));
      next += elems;
    }
    return {};
  }

  [[nodiscard]] Place moved(std::size_t l, Place at, std::uint64_t round) const {
    return {at.file + round * loops_[l].target_stride_bytes, at.memory + round * loops_[l].source_stride_bytes};
  }

  const GatherInputs& inputs_;
  const std::vector<ByteLoop>& loops_;
  const std::function<Result<void>(const Stretch&)>& act_;
  std::vector<std::uint64_t> elems_below_;  // within loop l and all that are in it; last: the run
  std::size_t contiguous_from_ = 0;         // from this loop on, rounds follow each other in the file
};

}  // namespace

std::uint64_t Stretch::elems() const { return run_elems * rounds_of(loops); }

Result<void> for_each_stretch(const GatherInputs& inputs, std::uint64_t begin_elem, std::uint64_t end_elem,
                              const std::function<Result<void>(const Stretch&)>& act) {
  return Walk(inputs, act).run(begin_elem, end_elem);
}

}  // namespace lading::exec
