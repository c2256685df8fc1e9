#include "cli/module_tree.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/text.h"

namespace lading::cli {
namespace {

// Deeper names keep the rest as one component: a name of a million dots must not cost a million frames.
constexpr int kMaxDepth = 24;

// Names of strangers can have 24 components each, none of them alike: tensors past this much memory are counted. A node
// takes about as much as this, and its name stands in the tree, in its kind and in the lines.
constexpr std::uint64_t kMaxTreeBytes = 100'000'000;
constexpr std::uint64_t kNodeBytes = 200;
constexpr std::uint64_t kCopiesOfName = 4;

struct Node {
  std::map<std::string, Node, std::less<>> children;
  const TensorInfo* tensor = nullptr;
  std::uint64_t tensors = 0;
  std::uint64_t bytes = 0;
  std::uint64_t own_bytes = 0;  // of the tensor itself: a name may be a tensor's and a prefix of others
  std::uint32_t kind = 0;       // equal for equal subtrees
};

std::string leaf_text(const TensorInfo& tensor) {
  return fmt::format("{} {}", shorten(tensor.dtype_name), tensor.shape.text());
}

// Returns how many bytes that took.
std::uint64_t insert(Node& root, const TensorInfo& tensor) {
  Node* node = &root;
  std::uint64_t added_bytes = 0;
  std::string_view rest = tensor.name;
  for (int depth = 1;; ++depth) {
    node->tensors += 1;
    node->bytes += tensor.bytes.size_bytes();
    const std::size_t dot = depth < kMaxDepth ? rest.find('.') : std::string_view::npos;
    const std::string_view component = rest.substr(0, dot);
    auto child = node->children.find(component);
    if (child == node->children.end()) {
      child = node->children.try_emplace(std::string(component)).first;
      added_bytes += kNodeBytes + kCopiesOfName * component.size();
    }
    node = &child->second;
    if (dot == std::string_view::npos) break;
    rest.remove_prefix(dot + 1);
  }
  node->tensors += 1;
  node->bytes += tensor.bytes.size_bytes();
  node->tensor = &tensor;
  node->own_bytes = tensor.bytes.size_bytes();
  return added_bytes;
}

// Numbers the distinct subtrees, so that equality is one comparison.
class Kinds {
 public:
  void assign(Node& node) {
    // The size too: of an unknown dtype it does not follow from dtype and shape.
    std::string key =
        node.tensor == nullptr ? std::string() : fmt::format("{}/{}", leaf_text(*node.tensor), node.own_bytes);
    for (auto& [name, child] : node.children) {
      assign(child);
      key += fmt::format("|{}:{}={}", name.size(), name, child.kind);
    }
    node.kind = ids_.try_emplace(std::move(key), static_cast<std::uint32_t>(ids_.size())).first->second;
  }

 private:
  std::unordered_map<std::string, std::uint32_t> ids_;
};

// Plain decimal numbers only: "01" is a name, not a layer.
std::optional<std::uint64_t> layer_number(std::string_view name) {
  if (name.empty() || name.size() > 9 || (name.size() > 1 && name.front() == '0')) return std::nullopt;
  std::uint64_t number = 0;
  for (const char c : name) {
    if (c < '0' || c > '9') return std::nullopt;
    number = number * 10 + static_cast<std::uint64_t>(c - '0');
  }
  return number;
}

// {0, 1, 2, 5} -> "{0..2,5}"
std::string ranges(const std::vector<std::uint64_t>& sorted) {
  if (sorted.size() == 1) return std::to_string(sorted.front());
  std::string out = "{";
  for (std::size_t i = 0; i < sorted.size();) {
    std::size_t last = i;
    while (last + 1 < sorted.size() && sorted[last + 1] == sorted[last] + 1) ++last;
    if (i > 0) out += ',';
    out += last == i ? std::to_string(sorted[i]) : fmt::format("{}..{}", sorted[i], sorted[last]);
    i = last + 1;
  }
  return out + "}";
}

struct Group {
  std::string label;
  const Node* node = nullptr;
  std::vector<std::uint64_t> numbers;
};

// Children in natural order, equal numbered ones together.
std::vector<Group> grouped(const Node& node) {
  std::vector<Group> named;
  std::map<std::uint64_t, const Node*> numbered;
  for (const auto& [name, child] : node.children) {
    if (const auto number = layer_number(name)) {
      numbered.emplace(*number, &child);
    } else {
      named.push_back({escape(name), &child, {}});
    }
  }
  std::vector<Group> groups;
  std::map<std::uint32_t, std::size_t> group_of_kind;
  for (const auto& [number, child] : numbered) {
    const auto [found, is_new] = group_of_kind.try_emplace(child->kind, groups.size());
    if (is_new) groups.push_back({{}, child, {}});
    groups[found->second].numbers.push_back(number);
  }
  for (Group& group : groups) group.label = ranges(group.numbers);
  groups.insert(groups.end(), std::make_move_iterator(named.begin()), std::make_move_iterator(named.end()));
  return groups;
}

void render(const Node& node, int depth, std::uint64_t copies, std::vector<TreeLine>& lines) {
  for (Group& group : grouped(node)) {
    std::uint64_t group_copies = copies * std::max<std::size_t>(1, group.numbers.size());
    const Node* end = group.node;
    // A chain without a fork reads better as one dotted label.
    while (end->tensor == nullptr) {
      const std::vector<Group> inner = grouped(*end);
      if (inner.size() != 1) break;
      group.label += "." + inner.front().label;
      group_copies *= std::max<std::size_t>(1, inner.front().numbers.size());
      end = inner.front().node;
    }
    const bool is_tensor = end->tensor != nullptr;
    const std::uint64_t bytes = is_tensor ? end->own_bytes : end->bytes;
    const std::uint64_t tensors = is_tensor ? 1 : end->tensors;
    lines.push_back({depth, group.label, group_copies, tensors * group_copies, bytes * group_copies,
                     is_tensor ? leaf_text(*end->tensor) : std::string()});
    render(*end, depth + 1, group_copies, lines);
  }
}

}  // namespace

std::vector<TreeLine> module_tree(const std::vector<TensorInfo>& tensors) {
  Node root;
  std::uint64_t tree_bytes = 0;
  TreeLine rest{0, "… (--tensors lists all)", 1, 0, 0, ""};
  for (const TensorInfo& tensor : tensors) {
    if (tree_bytes < kMaxTreeBytes) {
      tree_bytes += insert(root, tensor);
    } else {
      rest.tensors += 1;
      rest.bytes += tensor.bytes.size_bytes();
    }
  }
  Kinds().assign(root);
  std::vector<TreeLine> lines;
  render(root, 0, 1, lines);
  if (rest.tensors > 0) lines.push_back(std::move(rest));
  return lines;
}

}  // namespace lading::cli
