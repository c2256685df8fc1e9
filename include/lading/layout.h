// Layout: which part of each tensor a rank holds, and where it sits in that rank's memory.
//
// A placement is a list of cuts in *physical* order: each cut takes what the cuts before it left and keeps
// one rank's share. FSDP2 over TP is [tp: shard 0, dp: shard 0], whatever DTensor's metadata says (R54).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lading/export.h"
#include "lading/name_pattern.h"
#include "lading/result.h"

namespace lading::layout {

struct Axis {
  std::string name;  ///< "dp", "tp": letters, digits, "_", "-"
  std::uint64_t size = 1;

  friend bool operator==(const Axis&, const Axis&) = default;
};

/// A place in a group of ranks: `index` of `size`.
struct Seat {
  std::uint64_t index = 0;
  std::uint64_t size = 1;

  friend bool operator==(const Seat&, const Seat&) = default;
};

/// Ranks are numbered row-major over the axes: the last axis varies fastest. Without axes: one rank.
class Mesh {
 public:
  static constexpr std::uint64_t kMaxRanks = std::uint64_t{1} << 32;
  static constexpr std::size_t kMaxAxes = 64;

  Mesh() = default;
  explicit Mesh(std::vector<Axis> axes) : axes_(std::move(axes)) {}

  [[nodiscard]] const std::vector<Axis>& axes() const { return axes_; }
  /// Call these only on a mesh for which check_mesh() returns no errors.
  [[nodiscard]] LADING_API std::uint64_t ranks() const;
  [[nodiscard]] LADING_API std::optional<std::size_t> find(std::string_view axis) const;
  [[nodiscard]] LADING_API std::vector<std::uint64_t> coordinate(std::uint64_t rank) const;
  /// Among the ranks that differ from `rank` in these axes only, numbered row-major in the order given.
  [[nodiscard]] LADING_API Seat seat(const std::vector<std::size_t>& axes, std::uint64_t rank) const;
  /// The number of such ranks.
  [[nodiscard]] LADING_API std::uint64_t group_size(const std::vector<std::size_t>& axes) const;
  /// "dp=4,tp=2"
  [[nodiscard]] LADING_API std::string text() const;

  friend bool operator==(const Mesh&, const Mesh&) = default;

 private:
  std::vector<Axis> axes_;
};

/// Names that are empty, odd or used twice, sizes of 0, more than kMaxRanks ranks or kMaxAxes axes.
LADING_API Errors check_mesh(const Mesh& mesh);
/// "dp=4,tp=2"
LADING_API Result<Mesh> parse_mesh(std::string_view text);

enum class CutKind : std::uint8_t {
  kShard,         ///< torch.chunk along `dim` (R53)
  kStridedShard,  ///< `split_factor` groups along `dim`, chunk of each (R55)
  kFlat,          ///< row-major, padded to a multiple, equal parts: ZeRO-3. Only as the last cut
  kFlatGroup,     ///< a stretch of a flat buffer shared with other tensors: FSDP1. No other cut but owners
  kOwner,         ///< whole, but only on the ranks whose coordinate is in `owners`: pipeline stages
};

struct Cut {
  CutKind kind = CutKind::kShard;
  std::vector<std::size_t> axes = {};  ///< into the mesh; several are flattened row-major into one
  std::size_t dim = 0;
  std::uint64_t split_factor = 1;
  bool even = false;                       ///< kShard: uneven is refused, as FSDP2 does on every dim but 0
  std::uint64_t pad_multiple = 0;          ///< kFlat: elements are padded to a multiple of it; 0: of the group's size
  std::string flat_parameter = {};         ///< kFlatGroup: the name of the buffer, FSDP1's FlatParameter
  std::uint64_t group_offset_elems = 0;    ///< kFlatGroup: where the tensor begins in the unsharded buffer
  std::uint64_t group_elems = 0;           ///< kFlatGroup: the size of that buffer, padding included
  std::vector<std::uint64_t> owners = {};  ///< kOwner
  bool gathered = false;                   ///< kShard: ranks put the tensor together before they use it, as FSDP2 does

  /// A chunk of `dim` for each rank of these axes: DTensor's Shard(dim).
  static Cut shard(std::vector<std::size_t> axes, std::size_t dim) {
    return {.kind = CutKind::kShard, .axes = std::move(axes), .dim = dim};
  }

  friend bool operator==(const Cut&, const Cut&) = default;
};

/// One memory that a tensor has on a rank. Most have one; ZeRO++ keeps a second partition.
struct Slot {
  std::string name = {};  ///< "" for the ordinary one, which comes first; "secondary"
  std::vector<Cut> cuts = {};

  friend bool operator==(const Slot&, const Slot&) = default;
};

enum class DeviceRule : std::uint8_t { kRankDevice, kCpu };

/// By default: whole, on every rank, on the rank's device.
struct Placement {
  std::vector<Slot> slots = {Slot{}};
  DeviceRule device = DeviceRule::kRankDevice;  ///< kCpu: offloaded (R36)
  std::string fsdp_group = {};                  ///< the FSDP2 unit it is in; "" if none (R27, R52)

  friend bool operator==(const Placement&, const Placement&) = default;
};

enum class DeviceType : std::uint8_t { kCpu, kCuda };

/// "cpu", "cuda"
[[nodiscard]] LADING_API std::string_view word(DeviceType type);

/// A device with its index: "cuda:1". Bare "cuda" is refused (R34).
struct Device {
  DeviceType type = DeviceType::kCpu;
  std::uint64_t index = 0;

  [[nodiscard]] LADING_API std::string text() const;  ///< "cpu" or "cuda:1"
  friend bool operator==(const Device&, const Device&) = default;
  friend bool operator<(const Device& a, const Device& b) {
    return a.type != b.type ? a.type < b.type : a.index < b.index;
  }
};
LADING_API Result<Device> parse_device(std::string_view text);

/// The device of each rank: listed, or by a rule, so that a mesh of a million ranks costs nothing.
struct DeviceMap {
  std::vector<Device> list;  ///< one per rank; empty: rank r has type:(r % per_node)
  DeviceType type = DeviceType::kCpu;
  std::uint64_t per_node = 1;

  [[nodiscard]] LADING_API Device of(std::uint64_t rank) const;
  friend bool operator==(const DeviceMap&, const DeviceMap&) = default;
};

struct PlacementRule {
  NamePattern pattern;  ///< a tensor takes the first rule that matches
  Placement placement;

  friend bool operator==(const PlacementRule&, const PlacementRule&) = default;
};

struct Layout {
  Mesh mesh;
  DeviceMap devices;
  std::vector<PlacementRule> rules;  ///< a tensor that none matches is replicated

  /// Returns the placement of the first rule that matches. Linear in the number of rules.
  [[nodiscard]] LADING_API const Placement& placement_of(std::string_view name) const;
  /// Where a tensor of this placement lives on this rank (R34, R36).
  [[nodiscard]] LADING_API Device device_of(const Placement& placement, std::uint64_t rank) const;

  friend bool operator==(const Layout&, const Layout&) = default;
};

enum class Strategy : std::uint8_t {
  kSingle,   ///< one rank
  kDdp,      ///< axis dp: everything everywhere
  kFsdp2,    ///< axis dp: parameters shard(0)
  kHsdp,     ///< axes replicate and shard: parameters shard(0) over shard
  kTp,       ///< axis tp: parameters by the plan
  kFsdp2Tp,  ///< axes dp and tp: the plan first, then shard(0) of what is left (R54)
  kZero3,    ///< any axes, all taken as one group: parameters flat
};

/// "single", "ddp", "fsdp2", "hsdp", "tp", "fsdp2+tp", "zero3"
LADING_API Result<Strategy> parse_strategy(std::string_view word);
[[nodiscard]] LADING_API std::string_view word(Strategy strategy);

/// How tensor parallelism cuts a parameter. Weights are [out, in]; of more dims, those two come last.
enum class TpStyle : std::uint8_t {
  kColwise,  ///< by out features: the last dim but one; of one dim, that
  kRowwise,  ///< by in features: the last dim; one dim (a bias): replicated
  kReplicate,
  kVocab,  ///< by rows: dim 0
};

/// "colwise", "rowwise", "replicate", "vocab"
LADING_API Result<TpStyle> parse_tp_style(std::string_view word);

struct TpRule {
  NamePattern pattern;  ///< as in PlacementRule; the first that matches decides
  TpStyle style = TpStyle::kReplicate;
};

/// Where the ranks' memory is.
struct DeviceChoice {
  DeviceType type = DeviceType::kCpu;
  /// For GPUs: the device index in the rank's own process. Only if one rank is requested. If empty, rank r uses index
  /// r % per_node (R34).
  std::optional<std::uint64_t> index;
  std::optional<std::uint64_t> per_node;  ///< of GPUs without `index`; nothing: all ranks if they are at most 8, else 8

  friend bool operator==(const DeviceChoice&, const DeviceChoice&) = default;
};
/// "cpu", "cuda", "cuda:1"
LADING_API Result<DeviceChoice> parse_device_choice(std::string_view text);

/// A layout by the name of a strategy. No `fsdp_group` is set: the user's fully_shard calls are not known.
struct ByStrategy {
  Strategy strategy = Strategy::kSingle;
  Mesh mesh = {};
  /// For strategies with tp: the first rule that matches a parameter applies. A parameter that no rule matches is
  /// replicated over tp. If there are no rules, 2-D parameters are cut along dim 0 and all others are replicated; such
  /// shards can be stored, but match no particular model's forward pass.
  std::vector<TpRule> tp_plan = {};
  DeviceChoice device = {};
};

}  // namespace lading::layout
