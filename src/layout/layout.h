// What the engine makes of a layout: regions, checks, and `lading.layout/1`. Pure.
// Nothing outside this room and planner/ computes an offset; the checker has arithmetic of its own.
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
#include "lading/layout.h"
#include "lading/result.h"
#include "lading/shape.h"

namespace lading::layout {

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

/// The placement of a name: of the first rule that matches it. Names, or patterns without "*", cost one look-up.
/// Borrows from the layout.
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

/// Mesh, devices, slots, and axes that are not in the mesh: what a document cannot say, whatever the tensors are.
Errors check_writable(const Layout& layout);

/// `lading.layout/1`, docs/schema/layout.md. The layout that is written must have passed check_writable().
Result<Layout, Errors> parse_layout(const JsonDocument& document);
std::string layout_json(const Layout& layout);

}  // namespace lading::layout
