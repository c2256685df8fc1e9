// For tests: random plans with files and memory of their own, and what the memory must hold after a load, worked out
// element by element from the meaning of the plan (checker/check_naive_for_tests.h). Shares no code with the executor.
#pragma once

#include <cstring>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "checker/check_random_plan_for_tests.h"
#include "device/cast.h"
#include "device/random.h"
#include "exec/executor.h"
#include "exec/quantized_elements_for_tests.h"
#include "support/memory_file.h"

namespace lading::exec {

using Bytes = std::vector<std::byte>;

class RandomLoad {
 public:
  static constexpr std::size_t kGuardBytes = 32;  // on both sides of every buffer

  explicit RandomLoad(std::uint64_t seed) : dice_(seed), maker_(seed) {
    do {
      plan_ = maker_.make_plan();
    } while (!is_sensible());
    put_on({"cpu"});
    for (const plan::PlannedFile& file : plan_.files) files_.push_back(random_bytes(file.size_bytes));
    for (const plan::Source& source : plan_.sources) {
      if (source.scaling) make_scales_finite(plan_, source, dice_, files_);
    }
    for (const plan::Statement& s : plan_.statements) values_[s.name] = random_bytes(*s.shape.size_bytes(s.storage));
    for (const plan::RankPlan& rank : plan_.ranks) {
      for (const plan::Destination& d : rank.destinations) {
        Bytes& buffer = buffers_[key(rank, d)];
        if (buffer.empty()) buffer = random_bytes(d.buffer_bytes + 2 * kGuardBytes);
      }
    }
    expected_ = buffers_;
    for (const plan::RankPlan& rank : plan_.ranks) {
      for (const plan::Destination& d : rank.destinations) expect(rank, d);
    }
  }

  /// Rank by rank over these devices.
  void put_on(const std::vector<std::string>& devices) {
    for (std::size_t r = 0; r < plan_.ranks.size(); ++r) {
      for (plan::Destination& d : plan_.ranks[r].destinations) d.device = devices[r % devices.size()];
    }
  }

  [[nodiscard]] const plan::Plan& plan() const { return plan_; }
  [[nodiscard]] Bytes& file(plan::FileId i) { return files_[i.number()]; }
  /// Buffers with their guards, as they are and as they must be.
  [[nodiscard]] bool is_right() const { return buffers_ == expected_; }
  [[nodiscard]] const std::vector<device::Digest>& digests() const { return digests_; }
  [[nodiscard]] bool ties_differ() const { return ties_differ_; }
  /// What the buffers held before.
  void restore(const std::map<std::string, Bytes>& buffers) { buffers_ = buffers; }
  [[nodiscard]] const std::map<std::string, Bytes>& buffers() const { return buffers_; }
  /// What a destination's memory must hold, guards aside.
  [[nodiscard]] std::span<const std::byte> expected(const DestinationRef& ref) const {
    const plan::RankPlan& rank = plan_.ranks[ref.rank];
    const plan::Destination& d = rank.destinations[ref.destination];
    return std::span(expected_.at(key(rank, d))).subspan(kGuardBytes, d.buffer_bytes);
  }
  /// Whether its value comes from a file, and nothing else shares its memory.
  [[nodiscard]] bool can_be_received(const DestinationRef& ref) const {
    const plan::Destination& d = plan_.ranks[ref.rank].destinations[ref.destination];
    return d.flat_parameter.empty() && root_of(plan_.statements[d.statement]).provenance == Provenance::kFile;
  }
  /// Which of them is a destination's.
  static std::string key(const plan::RankPlan& rank, const plan::Destination& d) {
    const std::string unit = d.flat_parameter.empty() ? "of " + std::to_string(d.statement.number()) : d.flat_parameter;
    return std::to_string(rank.rank) + "/" + unit + "/" + d.slot;
  }

  [[nodiscard]] Inputs inputs() {
    Inputs inputs{plan_, {}, {}, {}};
    for (const plan::RankPlan& rank : plan_.ranks) {
      auto& memory = inputs.memory.emplace_back();
      for (const plan::Destination& d : rank.destinations) {
        memory.push_back({buffers_[key(rank, d)].data() + kGuardBytes, d.buffer_bytes});
      }
    }
    inputs.open = [this](plan::FileId file) { return open(file); };
    inputs.value = [this](const plan::Statement& s, std::uint64_t) -> Result<HostValue> {
      const Bytes& value = values_.at(s.name);
      return HostValue{value.data(), value.size(), s.storage};
    };
    return inputs;
  }

  Result<io::File> open(plan::FileId file) const {
    return io::File::adopt(test::memory_file(files_[file.number()]), plan_.files[file].name);
  }

 private:
  // The planner refuses constants and random values that a dtype cannot hold; the maker does not know that.
  [[nodiscard]] bool is_sensible() const {
    for (const plan::Statement& s : plan_.statements) {
      const bool integer = class_of(s.storage) != DTypeClass::kFloat;
      if (integer && s.provenance == Provenance::kRandom) return false;
      if (integer && s.expression.text().find("pad") != std::string::npos) return false;
    }
    return true;
  }

  Bytes random_bytes(std::uint64_t size) {
    Bytes bytes(size);
    for (std::byte& b : bytes) b = static_cast<std::byte>(dice_());
    return bytes;
  }

  [[nodiscard]] const plan::Statement& root_of(const plan::Statement& s) const {
    for (const plan::Statement& other : plan_.statements) {
      if (s.provenance == Provenance::kAlias && other.name == s.alias_of) return other;
    }
    return s;
  }

  static void cast(const std::byte* from, DType from_dtype, std::byte* to, DType to_dtype) {
    if (from_dtype == to_dtype) {
      std::memcpy(to, from, bits(to_dtype) / 8);
    } else {
      device::find_cast(from_dtype, to_dtype)(from, to, 1);
    }
  }

  void write_label(const checker::naive::Label& label, DType storage, std::byte* to) const {
    if (label.source.is_none()) {
      const std::uint64_t value = device::bits_of(std::bit_cast<double>(label.value), storage);
      std::memcpy(to, &value, bits(storage) / 8);
      return;
    }
    const plan::Source& source = plan_.sources[label.source];
    if (source.scaling) {
      const std::uint64_t result = QuantizedElements(plan_, files_).result(source, label.value, storage);
      std::memcpy(to, &result, bits(storage) / 8);
      return;
    }
    cast(files_[source.file.number()].data() + source.bytes.begin + label.value * bits(source.dtype) / 8, source.dtype,
         to, storage);
  }

  // One element of the whole tensor.
  void write_element(const plan::Statement& root, const std::optional<checker::naive::Dense>& dense,
                     std::uint64_t index, DType storage, std::byte* to) const {
    const std::uint64_t rows = root.shape.rank() == 0 ? 1 : root.shape[0];
    const bool zero = root.recipe.zero_row && index / (*root.shape.num_elems() / rows) == *root.recipe.zero_row;
    const std::uint64_t width = bits(storage) / 8;
    switch (root.provenance) {
      case Provenance::kFile: return write_label(dense->labels[index], storage, to);
      case Provenance::kFill: return write_label(checker::naive::constant(zero ? 0 : root.recipe.value), storage, to);
      case Provenance::kRandom: {
        float value = 0;
        const device::RandomRecipe recipe{device::Distribution::kNormal, root.recipe.mean, root.recipe.std,
                                          root.recipe.low, root.recipe.high};
        if (!zero) device::sample(recipe, device::random_key(plan_.seed, root.name), index, {&value, 1});
        return cast(reinterpret_cast<const std::byte*>(&value), DType::kF32, to, storage);
      }
      case Provenance::kHost:
      case Provenance::kCall: std::memcpy(to, values_.at(root.name).data() + index * width, width); return;
      default: return;  // kept
    }
  }

  void expect(const plan::RankPlan& rank, const plan::Destination& d) {
    const plan::Statement& s = plan_.statements[d.statement];
    const plan::Statement& root = root_of(s);
    const std::uint64_t width = bits(s.storage) / 8;
    Bytes& buffer = expected_[key(rank, d)];
    std::optional<checker::naive::Dense> dense;
    if (root.provenance == Provenance::kFile) dense = checker::naive::evaluate(root.expression, root.checkpoint, plan_);
    device::Digest digest;
    for (const layout::Slot& slot : s.placement.slots) {
      if (slot.name != d.slot) continue;
      const auto memory = checker::naive::memory_of(s, slot, plan_.mesh, rank.rank);
      for (std::uint64_t i = 0; i < memory->cells.size(); ++i) {
        std::byte* const place = buffer.data() + kGuardBytes + i * width;
        const auto& [cell, index] = memory->cells[i];
        if (cell == checker::naive::Cell::kOwned) {
          write_element(root, dense, index, s.storage, place);
          digest += device::digest_of({place, width}, index * width);
          compare(root, d, index, s.storage, place);
        } else if (cell == checker::naive::Cell::kZero && root.provenance != Provenance::kKept) {
          std::memset(place, 0, width);
        }
      }
    }
    digests_.push_back(digest);
  }

  void compare(const plan::Statement& root, const plan::Destination& d, std::uint64_t index, DType storage,
               const std::byte* place) {
    for (std::size_t e = 0; e < d.comparisons.size(); ++e) {
      const auto other = checker::naive::evaluate(root.must_equal[e], root.checkpoint, plan_);
      Bytes value(bits(storage) / 8);
      write_label(other->labels[index], storage, value.data());
      if (std::memcmp(value.data(), place, value.size()) != 0) ties_differ_ = true;
    }
  }

  std::mt19937_64 dice_;
  checker::naive::PlanMaker maker_;
  plan::Plan plan_;
  FileBytes files_;
  std::map<std::string, Bytes> values_;
  std::map<std::string, Bytes> buffers_;
  std::map<std::string, Bytes> expected_;
  std::vector<device::Digest> digests_;  // by destination
  bool ties_differ_ = false;
};

}  // namespace lading::exec
