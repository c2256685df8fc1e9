// A layout as the command line and the C ABI say it: in words.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lading/plan.h"

namespace lading {

struct LayoutWords {
  std::optional<Document> layout;
  std::string mesh;                                          ///< "dp=4,tp=2"; "" is one rank
  std::string strategy;                                      ///< "fsdp2"; "" is "single"
  std::vector<std::pair<std::string, std::string>> tp_plan;  ///< pattern and style
  std::string device;                                        ///< "cpu", "cuda", "cuda:1"; "" is "cpu"
  std::optional<std::uint64_t> devices_per_node;
};

using LayoutChoice = decltype(PlanRequest::layout);

/// Refuses words that are unknown, or that contradict each other.
Result<LayoutChoice, Errors> layout_of(const LayoutWords& words);

}  // namespace lading
