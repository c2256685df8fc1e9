// Values: what a tensor must be, by its expression or recipe, any stretch of it on demand. For verify.cc only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/element_bytes.h"
#include "checkpoint/catalog.h"
#include "lading/result.h"
#include "ledger/ledger.h"
#include "mapping/pieces.h"

namespace lading::exec {

/// Both sides of a cast together: 8 MiB.
inline constexpr std::uint64_t kStreamBytes = std::uint64_t{4} << 20;

/// Fills `out` from a file of the catalog.
using ReadBytes = std::function<Result<void>(std::uint32_t file, std::uint64_t offset_bytes, std::span<std::byte> out)>;

/// Elements from `begin_elem` on, row-major, in the storage dtype.
struct Window {
  std::uint64_t begin_elem = 0;
  std::uint64_t elems = 0;
  std::span<const std::byte> bytes;
};

class Values {
 public:
  virtual ~Values() = default;
  /// A window that holds this element. Borrowed until the next call.
  virtual Result<Window> at(std::uint64_t elem) = 0;
  /// Memory beside a few megabytes.
  [[nodiscard]] virtual std::uint64_t memory_bytes() const { return 0; }
};

/// Where a tensor comes from. Borrowed.
struct FileValues {
  const mapping::Expression& expression;
  const Shape& shape;
  DType storage = DType::kF32;
  const checkpoint::Catalog& catalog;
  std::uint64_t window_bytes = 0;
  std::uint32_t checkpoint = 0;  ///< of the catalog: whose keys the expression names
};

/// Refuses (kMapping, kDType) what cannot be made: an expression of another shape, a cast that there is none.
Result<std::unique_ptr<Values>> values_of_files(const FileValues& what, ReadBytes read);

struct MadeValues {
  const model::Recipe& recipe;
  const Shape& shape;
  DType storage = DType::kF32;
  std::uint64_t seed = 0;
  std::string_view canonical_name;
};

/// Constants and random values. Refuses (kDType) what the dtype cannot hold.
Result<std::unique_ptr<Values>> values_of_recipe(const MadeValues& what);

}  // namespace lading::exec
