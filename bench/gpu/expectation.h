// What memory must hold after a load, worked out from a list that the bench's Python side writes, and from the files.
// No part of lading reads, cuts or casts here.
//
// The list has one line per check: name, file, offset of the tensor's first byte, dtype in the file, extents
// ("4096,128";
// "-" for none), dtype in memory, dim that is cut (-1: none), first and last index of it, and "bits", or "nan" where
// any NaN passes for any other. Tabs between. A tensor may have several lines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "gpu/cuda_memory.h"

namespace lading::bench {

struct Expected {
  std::string name;
  std::string file;
  std::uint64_t offset_bytes = 0;
  std::string source_dtype;  ///< "BF16", "F32"
  std::string dtype;
  std::uint64_t outer_runs = 1;    ///< stretches that lie apart in the file
  std::uint64_t run_elems = 1;     ///< of one of them, taken
  std::uint64_t stride_elems = 1;  ///< from one to the next
  std::uint64_t skip_elems = 0;    ///< before the first
  bool any_nan = false;

  [[nodiscard]] std::uint64_t elems() const { return outer_runs * run_elems; }
};

/// An error names the line.
Result<std::vector<Expected>, std::string> read_expectations(const std::string& path);

struct Comparison {
  std::uint64_t checks = 0;
  std::uint64_t bytes = 0;
  std::uint64_t wrong_elems = 0;
  std::string first_wrong;  ///< for people; empty: all is right
};

/// `memory_of`: a name's memory, empty if there is none. `cuda` null: it is the host's.
Comparison compare(const std::vector<Expected>& expected,
                   const std::function<std::span<std::byte>(const std::string&)>& memory_of, const Cuda* cuda);

}  // namespace lading::bench
