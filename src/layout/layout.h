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
#include <vector>

#include "base/json_reader.h"
#include "lading/result.h"
#include "lading/shape.h"

namespace lading::layout {

struct Axis {
  std::string name;  ///< "dp", "tp"
  std::uint64_t size = 1;
};

/// Ranks are numbered row-major over the axes: the last axis varies fastest.
class Mesh {
 public:
  Mesh() = default;
  explicit Mesh(std::vector<Axis> axes) : axes_(std::move(axes)) {}

  [[nodiscard]] const std::vector<Axis>& axes() const { return axes_; }
  [[nodiscard]] std::uint64_t ranks() const;
  [[nodiscard]] std::optional<std::size_t> find(std::string_view axis) const;
  [[nodiscard]] std::vector<std::uint64_t> coordinate(std::uint64_t rank) const;

 private:
  std::vector<Axis> axes_;
};

enum class CutKind : std::uint8_t {
  kShard,         ///< torch.chunk along `dim` (R53)
  kStridedShard,  ///< `split_factor` groups along `dim`, chunk of each (R55)
  kFlat,          ///< row-major, padded to a multiple, equal parts: ZeRO-3. Only as the last cut
  kFlatGroup,     ///< a stretch of a flat buffer shared with other tensors: FSDP1. Only as the only cut
  kOwner,         ///< whole, but only on the ranks whose coordinate is in `owners`: pipeline stages
};

struct Cut {
  CutKind kind = CutKind::kShard;
  std::vector<std::size_t> axes;  ///< into the mesh; several are flattened row-major into one
  std::size_t dim = 0;
  std::uint64_t split_factor = 1;
  std::uint64_t pad_multiple = 0;      ///< kFlat: elements are padded to a multiple of it; 0: of the group's size
  std::string unit;                    ///< kFlatGroup: the name of the shared buffer
  std::uint64_t group_offset_elems = 0;  ///< kFlatGroup: where the tensor begins in the unsharded buffer
  std::uint64_t group_elems = 0;         ///< kFlatGroup: the size of that buffer, padding included
  std::vector<std::uint64_t> owners;   ///< kOwner

  friend bool operator==(const Cut&, const Cut&) = default;
};

/// One memory that a tensor has on a rank. Most have one; ZeRO++ keeps a second partition.
struct Slot {
  std::string name;  ///< "" for the ordinary one, "secondary"
  std::vector<Cut> cuts;

  friend bool operator==(const Slot&, const Slot&) = default;
};

enum class DeviceRule : std::uint8_t { kRankDevice, kCpu };

struct Placement {
  std::vector<Slot> slots;
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
  bool present = true;              ///< false: the rank does not have the tensor at all (kOwner)
  std::vector<std::vector<Run>> runs;  ///< per dim, in local order; their product is what is held, before `flat`
  Shape local_shape;                ///< of that product
  struct Flat {
    std::uint64_t begin = 0;        ///< of the row-major local_shape, half-open
    std::uint64_t end = 0;
    std::uint64_t buffer_begin = 0;  ///< where element `begin` sits in the buffer
  };
  std::optional<Flat> flat;         ///< set: only this stretch of the product is held, one-dimensional
  std::uint64_t buffer_elems = 0;   ///< size of the memory, padding included; of a shared unit: of the rank's part of it
  std::string unit;                 ///< the shared buffer's name, or ""

  [[nodiscard]] std::uint64_t owned_elems() const;
};

/// Where a rank's share lies. The shape and the cuts must have passed check_cuts().
Region region_of(const Shape& global, const std::vector<Cut>& cuts, const Mesh& mesh, std::uint64_t rank);

/// What is wrong with cutting this shape so, on any rank: a dim that is not there, a cut behind a flat one,
/// an axis used twice, a split factor of 0. Fills message, rule, expected and found.
Errors check_cuts(const Shape& global, const std::vector<Cut>& cuts, const Mesh& mesh);

/// A device with its index: "cuda:1". Bare "cuda" is refused (R34).
struct Device {
  std::string type;
  std::uint64_t index = 0;

  [[nodiscard]] std::string text() const;  ///< "cpu" or "cuda:1"
  friend bool operator==(const Device&, const Device&) = default;
};
Result<Device> parse_device(std::string_view text);

struct PlacementRule {
  std::string pattern;  ///< a name in which "*" stands for any characters; every tensor takes the first rule that matches
  Placement placement;
};

struct Layout {
  Mesh mesh;
  std::vector<Device> devices;       ///< one per rank
  std::vector<PlacementRule> rules;  ///< a tensor that none matches is replicated

  [[nodiscard]] const Placement& placement_of(std::string_view name) const;
};

/// `lading.layout/1`.
Result<Layout, Errors> parse_layout(const JsonDocument& document);
std::string layout_json(const Layout& layout);

/// "dp=4,tp=2"
Result<Mesh> parse_mesh(std::string_view text);

/// "*" matches any run of characters, dots included. Linear time.
bool matches(std::string_view pattern, std::string_view name);

}  // namespace lading::layout
