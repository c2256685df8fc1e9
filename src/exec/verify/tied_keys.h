// Whether keys of one tie class hold the same values, read from the files before anything is written.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>

#include "checkpoint/catalog.h"
#include "io/file.h"
#include "lading/result.h"
#include "plan/plan.h"

namespace lading::exec {

class KeyComparer {
 public:
  using Open = std::function<Result<io::File>(std::uint32_t file)>;

  /// Borrows the catalog. `open` takes an index into its files.
  KeyComparer(const checkpoint::Catalog& catalog, Open open) : catalog_(catalog), open_(std::move(open)) {}

  /// The first element of a tensor in which one key's values are not another's, both in the tensor's storage dtype.
  Result<std::optional<std::uint64_t>> first_difference(const plan::Statement& tensor, const mapping::Expression& one,
                                                        const mapping::Expression& other);

 private:
  Result<void> read(std::uint32_t file, std::uint64_t offset_bytes, std::span<std::byte> out);

  const checkpoint::Catalog& catalog_;
  Open open_;
  std::map<std::uint32_t, io::File> files_;
};

}  // namespace lading::exec
