// Trace: follows elements of a model tensor back through its expression to the checkpoint tensors they come
// from. The checker's own reading of mapping::Expression; the planner works the other way round, by pieces.
//
// Elements are followed as progressions (begin, stride, count) of row-major indices, so that a row of a
// transposed tensor costs as much as a row of a plain one.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/inline_vector.h"
#include "checker/plan_types.h"
#include "lading/result.h"
#include "lading/shape.h"
#include "mapping/expression.h"

namespace lading::checker {

/// `count` elements of one source, `stride` apart; or `count` times one constant.
struct Origin {
  SourceId source;           ///< none: a constant
  std::uint64_t begin = 0;   ///< row-major index in the source
  std::uint64_t stride = 1;  ///< says nothing if count is 1
  std::uint64_t count = 0;
  double fill = 0;

  [[nodiscard]] bool is_fill() const { return source.is_none(); }
};

/// Something that is there `count` times, each time `step` elements behind the time before.
struct Rounds {
  std::uint64_t count = 1;
  std::uint64_t step = 0;
};

/// Takes origins in the order of the elements asked for; false: enough.
class OriginSink {
 public:
  OriginSink() = default;
  OriginSink(const OriginSink&) = delete;
  OriginSink& operator=(const OriginSink&) = delete;
  virtual ~OriginSink() = default;
  /// All elements of a round before those of the next.
  virtual bool take(Origin origin, Rounds rounds) = 0;
};

/// The plan's sources by checkpoint and key: two checkpoints may have the same keys. Of a key that occurs twice in
/// one checkpoint, the first.
class SourceIndex {
 public:
  SourceIndex() = default;
  explicit SourceIndex(const Plan& plan);

  [[nodiscard]] bool is_again(SourceId source) const { return !again_.empty() && again_[source]; }
  /// Fast for the key behind the one that was found last: statements and sources are mostly in the same order.
  [[nodiscard]] std::optional<SourceId> find(std::string_view key, std::uint32_t checkpoint);

 private:
  using Key = std::pair<std::uint32_t, std::string_view>;
  [[nodiscard]] Key key_of(SourceId source) const;

  const Plan* plan_ = nullptr;
  std::vector<SourceId> by_key_;
  IndexedVector<SourceId, bool> again_;  // empty: none is
  std::size_t next_ = 0;                 // into by_key_: behind the last that was found
};

class Trace {
 public:
  /// The expression's keys are those of one checkpoint. Refuses, with a message of what does not fit, parts of unlike
  /// shapes, slices outside, unknown keys.
  static Result<Trace> of(const mapping::Expression& expression, std::uint32_t checkpoint, SourceIndex& index,
                          const IndexedVector<SourceId, Source>& sources);
  /// A tensor of one constant, but for one row of dim 0 that is zero, if there is one (R20).
  static Trace constant(const Shape& shape, const model::Recipe& recipe);

  [[nodiscard]] const Shape& shape() const { return shape_; }
  /// The sources that it names, in the order of the expression, perhaps twice.
  [[nodiscard]] const InlineVector<SourceId, 2>& sources() const { return sources_; }
  /// Where elements [begin, end) of the row-major tensor come from, round after round; false if the sink had enough.
  bool follow(std::uint64_t begin, std::uint64_t end, Rounds rounds, OriginSink& sink) const;

 private:
  friend class TraceBuilder;
  using NodeId = Index<struct NodeTag>;  // into nodes_

  // Concat, stack, slice and pad are one thing: the result is periods of `period` elements, and each period
  // is segments that lie one after the other in the periods of other nodes.
  struct Segment {
    std::uint64_t begin = 0;  // in the period
    std::uint64_t end = 0;
    NodeId part;
    std::uint64_t part_period = 0;
    std::uint64_t part_offset = 0;
  };
  struct Dim {
    std::uint64_t size = 0;
    std::uint64_t stride = 0;       // of the result
    std::uint64_t part_stride = 0;  // of what is permuted
  };
  enum class NodeKind : std::uint8_t { kSource, kConstant, kSegments, kDims };
  struct Node {
    NodeKind kind = NodeKind::kSource;
    SourceId source;
    NodeId part;
    double fill = 0;
    std::uint64_t period = 0;
    std::vector<Segment> segments;
    std::vector<Dim> dims;
  };
  struct Progression {
    std::uint64_t begin = 0;
    std::uint64_t stride = 1;
    std::uint64_t count = 0;
  };

  bool walk_rounds(NodeId id, Progression elems, Rounds rounds, OriginSink& sink) const;
  bool walk(NodeId id, Progression elems, OriginSink& sink) const;
  static const Segment& segment_at(const Node& node, std::uint64_t within);
  bool walk_segments(const Node& node, Progression elems, OriginSink& sink) const;
  static Rounds rounds_alike(const Node& node, Progression elems);
  bool walk_dims(const Node& node, Progression elems, OriginSink& sink) const;

  IndexedVector<NodeId, Node> nodes_;
  InlineVector<SourceId, 2> sources_;
  NodeId root_ = 0;
  Shape shape_;
};

}  // namespace lading::checker
