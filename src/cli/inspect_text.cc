#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "base/text.h"
#include "cli/columns.h"
#include "cli/inspect_output.h"
#include "cli/module_tree.h"
#include "cli/style.h"

namespace lading::cli {
namespace {

constexpr std::size_t kLargestShown = 5;
constexpr std::size_t kTreeLinesShown = 60;
constexpr std::size_t kMetadataShown = 10;

class InspectPage {
 public:
  InspectPage(const Inspection& inspection, Colour colour) : inspection_(inspection), style_(colour) {}

  std::string render(ListTensors list) {
    summary();
    dtypes();
    shards();
    metadata();
    largest();
    if (list == ListTensors::kYes) {
      tensors();
    } else {
      tree();
    }
    return std::move(out_);
  }

 private:
  void line(const std::string& text) { out_ += text + "\n"; }
  void heading(std::string_view text) { line("\n" + style_.bold(text)); }

  void summary() {
    line(style_.bold(shorten(inspection_.path)));
    line(fmt::format("{} in {}, {}", plural(inspection_.tensors.size(), "tensor"),
                     plural(inspection_.shards.size(), "file"), human_bytes(inspection_.tensor_bytes)));
  }

  void dtypes() {
    std::map<std::string, std::pair<std::uint64_t, std::uint64_t>> sums;
    for (const TensorInfo& tensor : inspection_.tensors) {
      auto& [count, bytes] = sums[tensor.dtype_name];
      count += 1;
      bytes += tensor.bytes.size_bytes();
    }
    if (sums.empty()) return;
    heading("Dtypes");
    for (const auto& [name, sum] : sums) {
      line(fmt::format("  {} {:>9}  {:>16}", pad(shorten(name), 12), human_bytes(sum.second),
                       plural(sum.first, "tensor")));
    }
  }

  void shards() {
    heading("Files");
    std::size_t width = 0;
    for (const ShardInfo& shard : inspection_.shards) width = std::max(width, width_of(shorten(shard.name)));
    for (const ShardInfo& shard : inspection_.shards) {
      std::string hash;
      if (shard.hash == HashState::kVerified) hash = "  " + style_.green("hash verified");
      if (shard.hash == HashState::kUnknown) hash = "  " + style_.yellow("unverified: its hash is not known");
      line(fmt::format("  {}  {:>9}  {:>16}{}", pad(shorten(shard.name), width), human_bytes(shard.size_bytes),
                       plural(shard.tensors, "tensor"), hash));
    }
  }

  // The same pairs usually stand in every shard: each is told once.
  void metadata() {
    std::vector<std::pair<std::string, std::string>> pairs;
    for (const ShardInfo& shard : inspection_.shards) {
      for (const auto& pair : shard.metadata) {
        if (std::find(pairs.begin(), pairs.end(), pair) == pairs.end() && pairs.size() <= kMetadataShown)
          pairs.push_back(pair);
      }
    }
    if (pairs.empty()) return;
    heading("Metadata");
    for (std::size_t i = 0; i < std::min(pairs.size(), kMetadataShown); ++i) {
      line(fmt::format("  {} = {}", quote(pairs[i].first), quote(pairs[i].second)));
    }
    if (pairs.size() > kMetadataShown) line(style_.dim("  … and more; --json shows all"));
  }

  void largest() {
    std::vector<const TensorInfo*> order;
    for (const TensorInfo& tensor : inspection_.tensors) order.push_back(&tensor);
    const std::size_t shown = std::min(kLargestShown, order.size());
    if (shown == 0) return;
    std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(shown), order.end(),
                      [](const TensorInfo* a, const TensorInfo* b) {
                        const auto x = a->bytes.size_bytes();
                        const auto y = b->bytes.size_bytes();
                        return x != y ? x > y : a->name < b->name;
                      });
    heading("Largest");
    order.resize(shown);
    rows(order);
  }

  void tensors() {
    std::vector<const TensorInfo*> order;
    for (const TensorInfo& tensor : inspection_.tensors) order.push_back(&tensor);
    heading("Tensors");
    rows(order);
  }

  void rows(const std::vector<const TensorInfo*>& order) {
    for (const TensorInfo* tensor : order) {
      line(fmt::format("  {:>9}  {} {}  {}", human_bytes(tensor->bytes.size_bytes()),
                       pad(shorten(tensor->dtype_name), 8), pad(tensor->shape.text(), 20), shown_name(tensor->name)));
    }
  }

  void tree() {
    const std::vector<TreeLine> lines = module_tree(inspection_.tensors);
    if (lines.empty()) return;
    heading("Modules");
    for (std::size_t i = 0; i < std::min(lines.size(), kTreeLinesShown); ++i) {
      const TreeLine& tree_line = lines[i];
      const std::string indent(static_cast<std::size_t>(2 + 2 * tree_line.depth), ' ');
      const std::string label = pad(indent + shortened(tree_line.label), 48);
      const std::string size = fmt::format("{:>9}", human_bytes(tree_line.bytes));
      std::string detail;
      if (!tree_line.leaf.empty()) {
        detail = tree_line.leaf;
        if (tree_line.copies > 1) detail += fmt::format("  × {}", with_commas(tree_line.copies));
      } else {
        detail = plural(tree_line.tensors, "tensor");
      }
      line(fmt::format("{}  {}  {}", label, size, style_.dim(detail)));
    }
    if (lines.size() > kTreeLinesShown) {
      line(style_.dim(
          fmt::format("  … {} more lines; --tensors lists every tensor", with_commas(lines.size() - kTreeLinesShown))));
    }
  }

  static std::string shortened(const std::string& label) {
    constexpr std::size_t kLongest = 100;
    return label.size() <= kLongest ? label : std::string(cut_to(label, kLongest)) + "…";
  }

  const Inspection& inspection_;
  Style style_;
  std::string out_;
};

}  // namespace

std::string inspection_text(const Inspection& inspection, ListTensors list, Colour colour) {
  return InspectPage(inspection, colour).render(list);
}

}  // namespace lading::cli
