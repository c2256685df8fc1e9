// Layout: which part of each tensor a rank holds, and where it sits in that rank's memory. Pure.
//
// A placement is a list of cuts in *physical* order: each cut takes what the cuts before it left and keeps
// one rank's share. FSDP2 over TP is [tp: shard 0, dp: shard 0], whatever DTensor's metadata says (R54).
// Nothing outside this room and plan/ computes an offset.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/json_reader.h"
#include "base/name_pattern.h"
#include "lading/result.h"
#include "lading/shape.h"

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
  /// The mesh must have passed check_mesh(), here and below.
  [[nodiscard]] std::uint64_t ranks() const;
  [[nodiscard]] std::optional<std::size_t> find(std::string_view axis) const;
  [[nodiscard]] std::vector<std::uint64_t> coordinate(std::uint64_t rank) const;
  /// Among the ranks that differ from `rank` in these axes only, numbered row-major in the order given.
  [[nodiscard]] Seat seat(const std::vector<std::size_t>& axes, std::uint64_t rank) const;
  /// How many ranks that are; nothing needs to be known of any one of them.
  [[nodiscard]] std::uint64_t group_size(const std::vector<std::size_t>& axes) const;
  /// "dp=4,tp=2"
  [[nodiscard]] std::string text() const;

  friend bool operator==(const Mesh&, const Mesh&) = default;

 private:
  std::vector<Axis> axes_;
};

/// Names that are empty, odd or used twice, sizes of 0, more than kMaxRanks ranks or kMaxAxes axes.
Errors check_mesh(const Mesh& mesh);
/// "dp=4,tp=2"
Result<Mesh> parse_mesh(std::string_view text);

enum class CutKind : std::uint8_t {
  kShard,         ///< torch.chunk along `dim` (R53)
  kStridedShard,  ///< `split_factor` groups along `dim`, chunk of each (R55)
  kFlat,          ///< row-major, padded to a multiple, equal parts: ZeRO-3. Only as the last cut
  kFlatGroup,     ///< a stretch of a flat buffer shared with other tensors: FSDP1. No other cut but owners
  kOwner,         ///< whole, but only on the ranks whose coordinate is in `owners`: pipeline stages
};

struct Cut {
  CutKind kind = CutKind::kShard;
  std::vector<std::size_t> axes;  ///< into the mesh; several are flattened row-major into one
  std::size_t dim = 0;
  std::uint64_t split_factor = 1;
  bool even = false;                     ///< kShard: uneven is refused, as FSDP2 does on every dim but 0
  std::uint64_t pad_multiple = 0;        ///< kFlat: elements are padded to a multiple of it; 0: of the group's size
  std::string flat_parameter;            ///< kFlatGroup: the name of the buffer, FSDP1's FlatParameter
  std::uint64_t group_offset_elems = 0;  ///< kFlatGroup: where the tensor begins in the unsharded buffer
  std::uint64_t group_elems = 0;         ///< kFlatGroup: the size of that buffer, padding included
  std::vector<std::uint64_t> owners;     ///< kOwner

  friend bool operator==(const Cut&, const Cut&) = default;
};

/// One memory that a tensor has on a rank. Most have one; ZeRO++ keeps a second partition.
struct Slot {
  std::string name;  ///< "" for the ordinary one, which comes first; "secondary"
  std::vector<Cut> cuts;

  friend bool operator==(const Slot&, const Slot&) = default;
};

enum class DeviceRule : std::uint8_t { kRankDevice, kCpu };

/// By default: whole, on every rank, on the rank's device.
struct Placement {
  std::vector<Slot> slots = {Slot{}};
  DeviceRule device = DeviceRule::kRankDevice;  ///< kCpu: offloaded (R36)
  std::string fsdp_group;                       ///< the FSDP2 unit it is in; "" if none (R27, R52)

  friend bool operator==(const Placement&, const Placement&) = default;
};

/// A run of indices of one dim that a rank holds: [begin, begin + size) of the global tensor sits at
/// [local_begin, local_begin + size) of the local one.
struct Run {
  std::uint64_t begin = 0;
  std::uint64_t local_begin = 0;
  std::uint64_t size = 0;

  friend bool operator==(const Run&, const Run&) = default;
};

/// A rank's share of a tensor in one slot.
struct Region {
  bool present = true;                 ///< false: the rank does not have the tensor at all (kOwner)
  std::vector<std::vector<Run>> runs;  ///< per dim, ascending on both sides, none empty, none that could be
                                       ///< joined; their product is what is held, before `flat`
  Shape local_shape;                   ///< of that product
  struct Flat {
    std::uint64_t begin = 0;  ///< of the row-major local_shape, half-open
    std::uint64_t end = 0;
    std::uint64_t buffer_begin = 0;  ///< where element `begin` sits in the buffer; 0 if nothing is held

    friend bool operator==(const Flat&, const Flat&) = default;
  };
  std::optional<Flat> flat;        ///< set: only this stretch of the product is held, one-dimensional
  std::uint64_t buffer_elems = 0;  ///< size of the memory, flat padding included; of a flat parameter: of the
                                   ///< rank's part of it
  std::string flat_parameter;      ///< the shared buffer's name, or ""

  [[nodiscard]] std::uint64_t owned_elems() const;
  friend bool operator==(const Region&, const Region&) = default;
};

/// A dim in more runs than this is a mistake, or an attack.
inline constexpr std::uint64_t kMaxRuns = std::uint64_t{1} << 20;

/// What is wrong with cutting this shape so, on any rank: a dim that is not there, a cut behind a flat one,
/// an axis used twice, a split factor of 0. Fills message, rule, expected and found.
Errors check_cuts(const Shape& global, const std::vector<Cut>& cuts, const Mesh& mesh);

/// A device with its index: "cuda:1". Bare "cuda" is refused (R34).
struct Device {
  std::string type = "cpu";
  std::uint64_t index = 0;

  [[nodiscard]] std::string text() const;  ///< "cpu" or "cuda:1"
  friend bool operator==(const Device&, const Device&) = default;
};
Result<Device> parse_device(std::string_view text);

/// The device of each rank: listed, or by a rule, so that a mesh of a million ranks costs nothing.
struct DeviceMap {
  std::vector<Device> list;  ///< one per rank; empty: rank r has type:(r % per_node)
  std::string type = "cpu";  ///< "cpu" has no index
  std::uint64_t per_node = 1;

  [[nodiscard]] Device of(std::uint64_t rank) const;
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

  /// Tries one rule after the other: for a few names. For all names of a model: PlacementIndex.
  [[nodiscard]] const Placement& placement_of(std::string_view name) const;
  /// Where a tensor of this placement lives on this rank (R34, R36).
  [[nodiscard]] Device device_of(const Placement& placement, std::uint64_t rank) const;

  friend bool operator==(const Layout&, const Layout&) = default;
};

/// The same answers as Layout::placement_of, and names, or patterns without "*", cost one look-up. Borrows from the
/// layout.
class PlacementIndex {
 public:
  explicit PlacementIndex(const Layout& layout);
  [[nodiscard]] const Placement& of(std::string_view name) const;

 private:
  const Layout* layout_;
  std::unordered_map<std::string_view, std::size_t> exact_;  // to the first rule of that name
  std::vector<std::size_t> wild_;
};

/// A tensor of the model, as far as layout cares.
struct TensorToPlace {
  std::string_view name;  ///< borrowed
  Shape shape;
  bool is_parameter = true;
  bool is_alias = false;  ///< tied to one that is listed: in a shared buffer it has that one's place
};

/// Everything that is wrong with laying these tensors out so: the mesh, the devices, each tensor's cuts, shared
/// buffers whose members disagree or overlap, rules that match nothing (R43).
Errors check_layout(const Layout& layout, const std::vector<TensorToPlace>& tensors);

/// `lading.layout/1`, docs/schema/layout.md. The layout that is written must have passed check_layout().
Result<Layout, Errors> parse_layout(const JsonDocument& document);
std::string layout_json(const Layout& layout);

}  // namespace lading::layout
