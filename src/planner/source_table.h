// Keys of the catalog that tensors are made of, as Plan::sources: each is listed when it is first asked for, and so is
// its file. Internal to the room.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/catalog.h"
#include "mapping/pieces.h"
#include "planner/plan_types.h"
#include "planner/planner.h"
#include "planner/work_out.h"

namespace lading::planner {

class SourceTable {
 public:
  /// Borrows both; adds to the plan's files, sources and gaps.
  SourceTable(const PlanInputs& inputs, Plan& plan);

  /// Null if the checkpoint has no such key.
  [[nodiscard]] const Shape* shape_of(std::string_view key, std::uint32_t checkpoint);
  /// Whether this key of the base checkpoint is.
  [[nodiscard]] bool is_read(std::string_view key);
  /// Of the keys of an expression, which must be there.
  [[nodiscard]] std::set<std::optional<DType>> dtypes_of(const mapping::Expression& expression,
                                                         std::uint32_t checkpoint) const;
  /// "head" BF16 [4, 2]
  [[nodiscard]] std::string forms_of(const mapping::Expression& expression, std::uint32_t checkpoint) const;
  /// The keys of a checkpoint that `tensor` is made of, which must be there, and their scales. Refuses those of unknown
  /// dtypes, dtypes that cannot be dequantized, and keys that are read in two ways.
  Errors number(std::string_view tensor, std::uint32_t checkpoint, const mapping::Pieces& pieces,
                SourceNumbers& numbers);

 private:
  Result<SourceId> number_of(std::string_view tensor, std::uint32_t checkpoint, const std::string& key);
  Result<void> scale(std::string_view tensor, std::uint32_t checkpoint, const mapping::PieceScaling* wanted,
                     SourceId id, bool is_new);
  Result<plan::Scaling> scaling_of(std::string_view tensor, std::uint32_t checkpoint,
                                   const mapping::PieceScaling& wanted, SourceId id);
  [[nodiscard]] const checkpoint::CatalogTensor* find(std::string_view key, std::uint32_t checkpoint);
  [[nodiscard]] std::size_t index_of(const checkpoint::CatalogTensor& found) const;
  SourceId add(const checkpoint::CatalogTensor& found);

  const PlanInputs& inputs_;
  Plan& plan_;
  std::vector<SourceId> source_ids_;          // by tensor of the catalog; none: nobody reads it yet
  std::size_t last_key_ = 0;                  // into the catalog's tensors
  std::map<std::uint32_t, FileId> file_ids_;  // by file of the catalog
};

}  // namespace lading::planner
