#include "model/skeleton.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "base/text.h"
#include "model/skeleton_parts.h"

namespace lading::model {
namespace {

// One problem list, and where each problem stood.
class Problems {
 public:
  explicit Problems(const Locate& locate) : locate_(locate) {}

  void add(Error error, Part part, std::size_t index) {
    if (locate_) locate_(error, part, index);
    errors_.add(std::move(error));
  }
  [[nodiscard]] bool any() const { return !errors_.empty(); }
  [[nodiscard]] Errors take() { return std::move(errors_); }

 private:
  const Locate& locate_;
  Errors errors_;
};

// Sorts by name; `at[i]` is where sorted[i] stood before.
struct Sorted {
  std::vector<Tensor> tensors;
  std::vector<std::size_t> at;

  [[nodiscard]] std::optional<std::size_t> index_of(std::string_view name) const {
    const auto found = std::lower_bound(tensors.begin(), tensors.end(), name,
                                        [](const Tensor& tensor, std::string_view n) { return tensor.name < n; });
    if (found == tensors.end() || found->name != name) return std::nullopt;
    return static_cast<std::size_t>(found - tensors.begin());
  }
};

Sorted sort_by_name(std::vector<Tensor> tensors) {
  Sorted sorted;
  sorted.at.resize(tensors.size());
  std::iota(sorted.at.begin(), sorted.at.end(), std::size_t{0});
  const auto by_name = [&](std::size_t a, std::size_t b) { return tensors[a].name < tensors[b].name; };
  if (std::is_sorted(sorted.at.begin(), sorted.at.end(), by_name)) {
    sorted.tensors = std::move(tensors);
    return sorted;
  }
  std::stable_sort(sorted.at.begin(), sorted.at.end(), by_name);
  sorted.tensors.reserve(tensors.size());
  for (const std::size_t from : sorted.at) sorted.tensors.push_back(std::move(tensors[from]));
  return sorted;
}

// Names that must be there before anything else can be said about tensors together.
void check_names(const Sorted& sorted, Problems& problems) {
  for (std::size_t i = 0; i < sorted.tensors.size(); ++i) {
    const Tensor& tensor = sorted.tensors[i];
    if (i > 0 && sorted.tensors[i - 1].name == tensor.name) {
      problems.add(Error(Code::kSkeleton, "the name is listed twice").of_tensor(tensor.name).by_rule("R9"),
                   Part::kTensor, sorted.at[i]);
    }
    for (const auto* recipe : {&tensor.derivation, &tensor.init}) {
      if (!*recipe) continue;
      for (const std::string& input : (*recipe)->inputs) {
        if (sorted.index_of(input)) continue;
        problems.add(
            Error(Code::kSkeleton,
                  fmt::format("the tensor is computed from {}, which the skeleton does not have", quote(input)))
                .of_tensor(tensor.name)
                .by_rule("R66"),
            Part::kTensor, sorted.at[i]);
      }
    }
  }
}

class UnionFind {
 public:
  explicit UnionFind(std::size_t size) : parent_(size) { std::iota(parent_.begin(), parent_.end(), std::size_t{0}); }

  std::size_t root(std::size_t i) {
    while (parent_[i] != i) i = parent_[i] = parent_[parent_[i]];
    return i;
  }
  // The smaller index is the root, so that the result does not depend on the order of the unions.
  void unite(std::size_t a, std::size_t b) {
    a = root(a);
    b = root(b);
    parent_[std::max(a, b)] = std::min(a, b);
  }

 private:
  std::vector<std::size_t> parent_;
};

// Resolves one class as it was given; all members must look like the first. Likeness is transitive, so
// this also holds after classes are joined.
std::vector<std::size_t> resolve_class(const std::vector<std::string>& names, std::size_t index, const Sorted& sorted,
                                       Problems& problems) {
  std::vector<std::string_view> distinct(names.begin(), names.end());
  std::sort(distinct.begin(), distinct.end());
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  if (distinct.size() < 2) {
    problems.add(Error(Code::kSkeleton, "a tie needs at least two names")
                     .by_rule("R49")
                     .got(distinct.empty() ? "none" : quote(distinct.front())),
                 Part::kTieClass, index);
    return {};
  }
  std::vector<std::size_t> members;
  for (const std::string_view name : distinct) {
    const auto member = sorted.index_of(name);
    if (!member) {
      problems.add(
          Error(Code::kSkeleton, "a tie names a tensor that the skeleton does not have").of_tensor(name).by_rule("R49"),
          Part::kTieClass, index);
      continue;
    }
    members.push_back(*member);
    const Tensor& first = sorted.tensors[members.front()];
    const Tensor& tensor = sorted.tensors[*member];
    if (tensor.shape != first.shape) {
      problems.add(
          Error(Code::kSkeleton, fmt::format("the tensor is tied to {}, which has another shape", quote(first.name)))
              .of_tensor(name)
              .by_rule("R49")
              .wanted(first.shape.text())
              .got(tensor.shape.text()),
          Part::kTieClass, index);
    }
    if (tensor.dtype != first.dtype) {
      problems.add(
          Error(Code::kSkeleton, fmt::format("the tensor is tied to {}, which has another dtype", quote(first.name)))
              .of_tensor(name)
              .by_rule("R31")
              .wanted(std::string(lading::name(first.dtype)))
              .got(std::string(lading::name(tensor.dtype))),
          Part::kTieClass, index);
    }
  }
  return members;
}

// One storage has one value.
void check_data(const std::vector<std::size_t>& members, std::size_t index, const Sorted& sorted, Problems& problems) {
  const Tensor* first = nullptr;
  for (const std::size_t member : members) {
    const Tensor& tensor = sorted.tensors[member];
    if (!tensor.data) continue;
    if (first == nullptr) first = &tensor;
    if (tensor.data == first->data && tensor.value_dtype() == first->value_dtype()) continue;
    problems.add(
        Error(Code::kSkeleton, fmt::format("the tensor is tied to {}, which has other data", quote(first->name)))
            .of_tensor(tensor.name)
            .by_rule("R50"),
        Part::kTieClass, index);
  }
}

// A non-persistent buffer is never in a state dict and a parameter always is: one storage cannot be both.
void check_kinds(const std::vector<std::size_t>& members, std::size_t index, const Sorted& sorted, Problems& problems) {
  const auto of_kind = [&](Kind kind) {
    return std::find_if(members.begin(), members.end(), [&](std::size_t i) { return sorted.tensors[i].kind == kind; });
  };
  const auto parameter = of_kind(Kind::kParameter);
  const auto buffer = of_kind(Kind::kNonPersistentBuffer);
  if (parameter == members.end() || buffer == members.end()) return;
  problems.add(Error(Code::kSkeleton, fmt::format("the non-persistent buffer is tied to the parameter {}",
                                                  quote(sorted.tensors[*parameter].name)))
                   .of_tensor(sorted.tensors[*buffer].name)
                   .by_rule("R49"),
               Part::kTieClass, index);
}

std::vector<std::vector<std::string>> join_classes(const std::vector<std::vector<std::string>>& given, Sorted& sorted,
                                                   Problems& problems) {
  UnionFind joined(sorted.tensors.size());
  std::map<std::size_t, std::size_t> given_by_member;  // member → the first class that named it
  for (std::size_t i = 0; i < given.size(); ++i) {
    const auto members = resolve_class(given[i], i, sorted, problems);
    for (const std::size_t member : members) {
      joined.unite(members.front(), member);
      given_by_member.try_emplace(member, i);
    }
  }
  std::map<std::size_t, std::vector<std::size_t>> by_root;
  for (const auto& entry : given_by_member) by_root[joined.root(entry.first)].push_back(entry.first);

  std::vector<std::vector<std::string>> classes;
  for (const auto& [root, members] : by_root) {
    check_kinds(members, given_by_member.at(root), sorted, problems);
    check_data(members, given_by_member.at(root), sorted, problems);
    auto& names = classes.emplace_back();
    for (const std::size_t member : members) {
      names.push_back(sorted.tensors[member].name);
      sorted.tensors[member].tie_class = static_cast<std::uint32_t>(classes.size() - 1);
    }
  }
  return classes;
}

void check_pins(const std::vector<Pin>& pins, Problems& problems) {
  for (std::size_t i = 0; i < pins.size(); ++i) {
    if (is_pin_pattern(pins[i].pattern.text)) continue;
    problems.add(
        Error(Code::kSkeleton, "the pin has an empty component").by_rule("R25").got(quote(pins[i].pattern.text)),
        Part::kPin, i);
  }
}

}  // namespace

Result<Skeleton, Errors> build_skeleton(SkeletonParts parts, const Locate& locate) {
  Problems problems(locate);
  for (std::size_t i = 0; i < parts.tensors.size(); ++i) {
    parts.tensors[i].tie_class.reset();
    for (std::optional<Recipe>* recipe : {&parts.tensors[i].derivation, &parts.tensors[i].init}) {
      if (*recipe) *recipe = only_what_counts(**recipe);
    }
    for (Error& error : check_tensor(parts.tensors[i])) problems.add(std::move(error), Part::kTensor, i);
  }
  Sorted sorted = sort_by_name(std::move(parts.tensors));
  check_names(sorted, problems);
  auto classes = join_classes(parts.tie_classes, sorted, problems);
  check_pins(parts.pins, problems);
  if (problems.any()) return fail(problems.take());
  return Skeleton{std::move(sorted.tensors), std::move(classes), std::move(parts.pins)};
}

Result<Skeleton, Errors> make_skeleton(std::vector<Tensor> tensors, std::vector<std::vector<std::string>> tie_classes,
                                       std::vector<Pin> pins) {
  return build_skeleton({std::move(tensors), std::move(tie_classes), std::move(pins)}, nullptr);
}

bool is_pin_pattern(std::string_view pattern) { return !has_empty_component(pattern); }

const Tensor* Skeleton::find(std::string_view name) const {
  const auto found = std::lower_bound(tensors.begin(), tensors.end(), name,
                                      [](const Tensor& tensor, std::string_view n) { return tensor.name < n; });
  return found == tensors.end() || found->name != name ? nullptr : &*found;
}

bool is_laid_out_as_parameter(const Skeleton& skeleton, const Tensor& tensor) {
  if (tensor.kind == Kind::kParameter || !tensor.tie_class) return tensor.kind == Kind::kParameter;
  const auto& names = skeleton.tie_classes[*tensor.tie_class];
  return std::any_of(names.begin(), names.end(),
                     [&](const std::string& name) { return skeleton.find(name)->kind == Kind::kParameter; });
}

}  // namespace lading::model
