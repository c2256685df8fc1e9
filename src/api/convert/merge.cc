#include "api/convert/merge.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "api/convert/beside_files.h"
#include "api/open_checkpoint.h"
#include "base/json_reader.h"
#include "device/low_rank.h"

namespace lading {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kWeights = "adapter_model.safetensors";
constexpr std::string_view kAdapterConfig = "adapter_config.json";

Result<planner::AdapterConfig, Errors> config_beside(const source::CheckpointSource& adapter) {
  const source::SourceFile& main = adapter.index() ? *adapter.index() : adapter.shards().front();
  const fs::path folder = fs::path(main.relative).parent_path();
  const std::string path = adapter.anchor().display((folder / kAdapterConfig).string());
  auto text = BesideFiles(adapter.anchor(), folder.string()).config(kAdapterConfig);
  if (!text) return fail(Errors(std::move(text).error()));
  if (!*text) {
    return fail(Errors(Error(Code::kNotFound, "the adapter has no adapter_config.json, which says how it is scaled")
                           .in_file(path)
                           .try_this("Pass the directory that PEFT saved.")));
  }
  Errors problems;
  const auto document = JsonDocument::parse(JsonBuffer::copy_of(**text));
  if (!document) {
    problems = document.error();
  } else {
    auto config = planner::parse_adapter_config(*document);
    if (config) return *std::move(config);
    problems = std::move(config).error();
  }
  problems.relocate(path, 0);
  return fail(std::move(problems));
}

class PartMerger {
 public:
  PartMerger(const plan::Plan& load, const std::vector<std::span<std::byte>>& memory)
      : load_(load), rank_(load.ranks.front()), memory_(memory) {
    for (const plan::DestinationId d : rank_.destinations.ids()) {
      by_name_.emplace(load.statements[rank_.destinations[d].statement].name, d);
    }
  }

  Result<std::uint64_t> run(const std::vector<planner::Merge>& merges) {
    std::uint64_t elems = 0;
    for (const planner::Merge& merge : merges) {
      const auto weight = by_name_.find(merge.tensor);
      if (weight == by_name_.end()) continue;
      const auto a = by_name_.find(merge.a);
      const auto b = by_name_.find(merge.b);
      if (a == by_name_.end() || b == by_name_.end()) {
        return fail(Error(Code::kInternal, "a part has a weight without the matrices that are added to it")
                        .of_tensor(merge.tensor)
                        .try_this("Report this bug."));
      }
      elems += add(merge, weight->second, floats(a->second), floats(b->second));
    }
    return elems;
  }

 private:
  [[nodiscard]] std::span<float> floats(plan::DestinationId d) const {
    const std::span<std::byte> bytes = memory_[d.number()];
    return {reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)};
  }

  std::uint64_t add(const planner::Merge& merge, plan::DestinationId d, std::span<const float> a,
                    std::span<const float> b) {
    const layout::Region& region = rank_.regions[rank_.destinations[d].region];
    const Shape& shape = load_.statements[rank_.destinations[d].statement].shape;
    std::uint64_t first = 0;
    std::uint64_t elems = region.owned_elems();
    std::span<float> weight = floats(d);
    if (region.flat) {
      first = region.flat->begin;
      weight = weight.subspan(static_cast<std::size_t>(region.flat->buffer_begin));
    }
    weight = weight.first(static_cast<std::size_t>(elems));
    if (weight.empty()) return 0;
    const auto width = static_cast<std::size_t>(shape[1]);
    const std::size_t rank = merge.is_transposed ? a.size() / static_cast<std::size_t>(shape[0]) : a.size() / width;
    device::LowRank factors{b.data(), rank, 1, a.data(), rank, width, static_cast<float>(merge.scale)};
    std::vector<float> turned;
    if (merge
            .is_transposed) {  // the weight is the transpose of b * a: its rows are columns of a, its columns rows of b
      turned.resize(b.size());
      for (std::size_t j = 0; j < width; ++j) {
        for (std::size_t k = 0; k < rank; ++k) turned[k * width + j] = b[j * rank + k];
      }
      factors.rows = a.data();
      factors.row_step = 1;
      factors.rank_step = static_cast<std::size_t>(shape[0]);
      factors.columns = turned.data();
    }
    device::add_low_rank(factors, first, weight);
    return elems;
  }

  const plan::Plan& load_;
  const plan::RankPlan& rank_;
  const std::vector<std::span<std::byte>>& memory_;
  std::map<std::string_view, plan::DestinationId> by_name_;
};

}  // namespace

Result<OpenedAdapter, Errors> open_adapter(const CheckpointRef& adapter) {
  CheckpointRef named = adapter;
  std::error_code ignored;  // of a path that cannot be looked at, which is told when it is opened
  const fs::path weights = fs::path(adapter.path) / kWeights;
  if (fs::is_regular_file(weights, ignored)) named.path = weights.string();  // as PEFT chooses in a directory
  LADING_ASSIGN_OR_RETURN(source::CheckpointSource source, open_checkpoint(named));
  LADING_ASSIGN_OR_RETURN(planner::AdapterConfig config, config_beside(source));
  return OpenedAdapter{std::move(source), std::move(config)};
}

Result<std::uint64_t> merge_part(const plan::Plan& load, const std::vector<std::span<std::byte>>& memory,
                                 const std::vector<planner::Merge>& merges) {
  return PartMerger(load, memory).run(merges);
}

}  // namespace lading
