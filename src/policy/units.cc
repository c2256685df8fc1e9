// Where FSDP2 units have to be, so that each is uniform (R27). Modules are dotted prefixes of names.
//
// A call of fully_shard takes every parameter beneath its modules that no call before it took. So units are drawn from
// the inside: within a wished unit, what is not of its dtype is taken first, by further units that are drawn in the
// same way. A unit may be a list of modules, which torch gathers together.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/text.h"
#include "policy/group_key.h"
#include "policy/policy.h"

namespace lading::policy {
namespace {

struct Member {
  const GroupMember* given = nullptr;
  std::string_view owner;  // the module whose forward reads it
  GroupKey key;
};

struct Node {
  std::set<GroupKey> keys;      // of everything beneath
  std::optional<GroupKey> own;  // of the parameters that it owns itself
  std::set<std::string_view> children;
};
using Tree = std::map<std::string_view, Node>;

// Modules that are taken out of the unit around them, by what they hold.
using Aside = std::map<GroupKey, std::vector<std::string>>;

// Wished units that are one, and the parameters that are in no unit further inside.
struct Scope {
  std::vector<std::string_view> roots;
  std::vector<Member*> members;
};

std::size_t depth_of(std::string_view module) {
  return module.empty() ? 0 : 1 + static_cast<std::size_t>(std::count(module.begin(), module.end(), '.'));
}

GroupKey heaviest(const std::vector<Member*>& members) {
  std::map<GroupKey, std::uint64_t> elems;
  for (const Member* member : members) elems[member->key] += member->given->elems;
  const auto less = [](const auto& a, const auto& b) { return a.second < b.second; };
  return std::max_element(elems.begin(), elems.end(), less)->first;
}

class Proposer {
 public:
  Proposer(const Policy& policy, const UnitWish& wish, const std::vector<GroupMember>& members)
      : policy_(policy), given_(members), containers_(wish.containers), duplicates_(wish.duplicates) {
    units_.insert(std::string_view());
    units_.insert(wish.modules.begin(), wish.modules.end());
  }

  Result<std::vector<UnitProposal>, Errors> run() {
    refuse_containers();
    collect();
    keep_ties_together();
    for (Scope& scope : scopes()) draw(scope);
    if (errors_.empty()) share_out();
    if (errors_.empty()) check();
    if (!errors_.empty()) return fail(std::move(errors_));
    return std::move(proposals_);
  }

 private:
  void refuse_containers() {
    for (const std::string_view unit : units_) {
      if (!containers_.contains(unit)) continue;
      errors_.add(Error(Code::kUsage,
                        fmt::format("the module {} has no forward method, but FSDP2 gathers a unit in its forward",
                                    quote(unit)))
                      .by_rule("R27")
                      .try_this("Name the modules inside it."));
    }
  }

  // Another name of a module would be another place of the same parameters.
  void collect() {
    members_.reserve(given_.size());
    for (const GroupMember& member : given_) {
      if (duplicates_.is_above(member.name)) continue;
      std::string_view owner = parent_of(member.name);
      while (!owner.empty() && containers_.contains(owner)) owner = parent_of(owner);
      members_.push_back({&member, owner, key_of(member)});
    }
  }

  [[nodiscard]] std::string_view unit_of(std::string_view owner) const {
    while (!units_.contains(owner)) owner = parent_of(owner);
    return owner;
  }

  // FSDP2 keeps a tie only inside one call. Of nested units the inner ones are given up; others become one unit.
  void keep_ties_together() {
    std::map<std::string_view, std::vector<std::string_view>> owners;
    for (const Member& member : members_) {
      if (!member.given->tied_to.empty()) owners[member.given->tied_to].push_back(member.owner);
    }
    for (bool is_settled = false; !is_settled;) {
      is_settled = true;
      for (const auto& [tie, modules] : owners) {
        std::set<std::string_view> units;
        for (const std::string_view module : modules) units.insert(unit_of(module));
        const std::string_view outer = *units.begin();  // the first in order is above all, if any is
        const auto is_inside = [&](std::string_view unit) { return model::is_beneath(unit, outer); };
        if (units.size() < 2 || !std::all_of(units.begin(), units.end(), is_inside)) continue;
        units.erase(outer);
        for (const std::string_view unit : units) units_.erase(unit);
        is_settled = false;
      }
    }
    for (const auto& [tie, modules] : owners) {
      const std::string_view first = joined_with(unit_of(modules.front()));
      for (const std::string_view module : modules) {
        const std::string_view other = joined_with(unit_of(module));
        if (other != first) joined_[other] = first;
      }
    }
  }

  [[nodiscard]] std::string_view joined_with(std::string_view unit) const {
    for (auto found = joined_.find(unit); found != joined_.end(); found = joined_.find(unit)) unit = found->second;
    return unit;
  }

  // Inner ones first.
  std::vector<Scope> scopes() {
    std::map<std::string_view, Scope> by_unit;
    for (const std::string_view unit : units_) by_unit[joined_with(unit)].roots.push_back(unit);
    for (Member& member : members_) by_unit[joined_with(unit_of(member.owner))].members.push_back(&member);
    std::vector<Scope> list;
    list.reserve(by_unit.size());
    for (auto& [unit, scope] : by_unit) list.push_back(std::move(scope));
    const auto depth = [](const Scope& scope) {
      std::size_t most = 0;
      for (const std::string_view root : scope.roots) most = std::max(most, depth_of(root));
      return most;
    };
    std::stable_sort(list.begin(), list.end(), [&](const Scope& a, const Scope& b) { return depth(a) > depth(b); });
    return list;
  }

  // Whether it goes with every unit: torch asks only trainable parameters for one storage dtype, and casts nothing
  // without a param_dtype, nor integers at all.
  [[nodiscard]] bool goes_anywhere(const GroupMember& member) const {
    if (member.requires_grad) return false;
    return !policy_.compute_dtype || class_of(member.storage) != DTypeClass::kFloat;
  }

  // A frozen parameter needs a unit of its compute dtype, whatever that stores: a sibling's, else the largest.
  static void adapt_frozen(const std::vector<Member*>& members) {
    std::map<DType, std::vector<Member*>> trainable;
    std::map<std::pair<std::string_view, DType>, GroupKey> of_siblings;
    for (Member* member : members) {
      if (!member->given->requires_grad) continue;
      trainable[member->key.compute].push_back(member);
      of_siblings.try_emplace({member->owner, member->key.compute}, member->key);
    }
    std::map<DType, GroupKey> of_all;
    for (const auto& [compute, list] : trainable) of_all[compute] = heaviest(list);
    for (Member* member : members) {
      if (member->given->requires_grad) continue;
      const DType compute = member->given->compute;
      member->key = {compute, compute};
      if (const auto all = of_all.find(compute); all != of_all.end()) member->key = all->second;
      const auto sibling = of_siblings.find({member->owner, compute});
      if (sibling != of_siblings.end()) member->key = sibling->second;
    }
  }

  // Parameters of one module that are of several keys: no unit can be drawn between those.
  bool refuse_inseparable(const std::vector<Member*>& members) {
    std::map<std::string_view, std::vector<Member*>> by_owner;
    for (Member* member : members) by_owner[member->owner].push_back(member);
    const std::size_t before = errors_.size();
    for (const auto& [owner, siblings] : by_owner) {
      std::set<GroupKey> keys;
      Members listed;
      for (const Member* member : siblings) {
        keys.insert(member->key);
        listed.push_back(member->given);
      }
      if (keys.size() < 2) continue;
      errors_.add(inseparable_siblings(owner, listed));
    }
    return errors_.size() > before;
  }

  static Tree tree_of(const Scope& scope) {
    Tree tree;
    for (const std::string_view root : scope.roots) tree[root];
    for (const Member* member : scope.members) {
      std::string_view module = member->owner;
      tree[module].own = member->key;
      for (;;) {
        tree[module].keys.insert(member->key);
        if (std::find(scope.roots.begin(), scope.roots.end(), module) != scope.roots.end()) break;
        tree[parent_of(module)].children.insert(module);
        module = parent_of(module);
      }
    }
    return tree;
  }

  void draw(Scope& scope) {
    std::erase_if(scope.members, [&](const Member* member) { return goes_anywhere(*member->given); });
    adapt_frozen(scope.members);
    if (refuse_inseparable(scope.members)) return;
    const Tree tree = tree_of(scope);
    std::set<GroupKey> own;
    for (const std::string_view root : scope.roots) {
      if (tree.at(root).own) own.insert(*tree.at(root).own);
    }
    if (own.size() > 1) {
      Members listed;
      for (const Member* member : scope.members) listed.push_back(member->given);
      errors_.add(Error(Code::kDType, "modules that share a parameter must be one FSDP2 unit, but differ in dtype")
                      .of_tensor(listed.front()->name)
                      .by_rule("R27")
                      .wanted("one storage and one compute dtype")
                      .got(list_by_key(listed, Listing::kSome))
                      .try_this("Request one dtype for them, or untie them."));
      return;
    }
    const GroupKey key = !own.empty()             ? *own.begin()
                         : !scope.members.empty() ? heaviest(scope.members)
                                                  : key_beneath(scope);
    Aside aside;
    for (const std::string_view root : scope.roots) set_aside_beneath(tree, root, key, aside);
    propose(std::move(aside));
    UnitProposal& unit = proposals_.emplace_back();
    unit.modules.assign(scope.roots.begin(), scope.roots.end());
    unit.storage = key.storage;
    unit.compute = key.compute;
    unit.wished = true;
  }

  // A unit whose parameters are all in units of its own passes on what those compute.
  GroupKey key_beneath(const Scope& scope) {
    std::vector<Member*> beneath;
    for (Member& member : members_) {
      const auto is_above = [&](std::string_view root) { return model::is_beneath(member.given->name, root); };
      if (std::any_of(scope.roots.begin(), scope.roots.end(), is_above)) beneath.push_back(&member);
    }
    const DType otherwise = policy_.compute_dtype.value_or(DType::kF32);
    return beneath.empty() ? GroupKey{otherwise, otherwise} : heaviest(beneath);
  }

  // What is of `key` beneath the module stays for the unit around it; the rest is put aside.
  void set_aside_beneath(const Tree& tree, std::string_view module, GroupKey key, Aside& aside) {
    for (const std::string_view child : tree.at(module).children) set_aside(tree, child, key, aside);
  }

  void set_aside(const Tree& tree, std::string_view module, GroupKey key, Aside& aside) {
    const Node& node = tree.at(module);
    if (node.keys.size() == 1 && *node.keys.begin() == key) return;
    const bool owns_another = node.own && *node.own != key;
    const bool is_another = node.keys.size() == 1 && !containers_.contains(module) && !has_units_inside(module);
    if (!owns_another && !is_another) {
      set_aside_beneath(tree, module, key, aside);
      return;
    }
    const GroupKey other = node.own.value_or(*node.keys.begin());
    Aside inside;
    set_aside_beneath(tree, module, other, inside);
    propose(std::move(inside));
    aside[other].emplace_back(module);
  }

  // Then the module is more than what is to be put aside, and its inputs and outputs are not to be cast.
  [[nodiscard]] bool has_units_inside(std::string_view module) const {
    const std::string prefix = std::string(module) + ".";
    const auto next = units_.lower_bound(prefix);
    return next != units_.end() && next->starts_with(prefix);
  }

  void propose(Aside&& aside) {
    for (auto& [key, modules] : aside) {
      proposals_.push_back({std::move(modules), key.storage, key.compute, std::nullopt, false, {}});
    }
  }

  // Which unit takes which parameter, read off the finished list as fully_shard would do it.
  void share_out() {
    for (std::size_t i = 0; i < proposals_.size(); ++i) {
      for (const std::string& module : proposals_[i].modules) taker_[module] = i;
    }
    for (const Member& member : members_) {
      proposals_[taker_above(member.owner)].parameters.emplace_back(member.given->name);
    }
    if (!policy_.compute_dtype) return;  // then torch casts nothing
    for (UnitProposal& unit : proposals_) {
      if (unit.modules.front().empty()) continue;
      const DType around = proposals_[taker_above(parent_of(unit.modules.front()))].compute;
      if (around != unit.compute) unit.output = around;
    }
  }

  [[nodiscard]] std::size_t taker_above(std::string_view module) const {
    while (!taker_.contains(module)) module = parent_of(module);
    return taker_.find(module)->second;
  }

  void check() {
    std::vector<GroupMember> grouped;
    std::vector<std::string> names;
    for (const UnitProposal& unit : proposals_)
      names.push_back(unit.modules.front().empty() ? "(root)" : unit.modules.front());
    std::map<std::string_view, std::size_t> tie_taker;
    for (const Member& member : members_) {
      const std::size_t taker = taker_above(member.owner);
      grouped.push_back(*member.given);
      grouped.back().group = names[taker];
      if (member.given->tied_to.empty()) continue;
      const auto [found, is_new] = tie_taker.try_emplace(member.given->tied_to, taker);
      if (is_new || found->second == taker) continue;
      errors_.add(Error(Code::kDType, fmt::format("the tensor shares its storage with {}, but no FSDP2 unit can hold "
                                                  "both: the dtypes around them differ",
                                                  quote(member.given->tied_to)))
                      .of_tensor(member.given->name)
                      .by_rule("R27")
                      .try_this("Request one dtype for their modules, or untie them."));
    }
    if (errors_.empty()) errors_.add(check_groups(policy_, grouped));
  }

  const Policy& policy_;
  const std::vector<GroupMember>& given_;
  const model::ModuleSet containers_;
  const model::ModuleSet duplicates_;
  std::set<std::string_view> units_;
  std::map<std::string_view, std::string_view> joined_;  // a unit that is one with another
  std::vector<Member> members_;
  std::vector<UnitProposal> proposals_;
  std::map<std::string, std::size_t, std::less<>> taker_;  // by module: the unit
  Errors errors_;
};

}  // namespace

Result<std::vector<UnitProposal>, Errors> propose_units(const Policy& policy, const UnitWish& wish,
                                                        const std::vector<GroupMember>& members) {
  return Proposer(policy, wish, members).run();
}

}  // namespace lading::policy
