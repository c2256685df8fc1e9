#include "api/compare_ties.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "exec/verify/tied_keys.h"

namespace lading {
namespace {

exec::KeyComparer keys_of(const source::CheckpointSource& source) {
  return {source.catalog(), [&](std::uint32_t file) { return source.open_file(source.shards()[file]); }};
}

const plan::Statement& root_of(const plan::Plan& plan, const std::string& name) {
  const plan::Statement& own = *plan.find(name);
  return own.provenance == Provenance::kAlias ? *plan.find(own.alias_of) : own;
}

}  // namespace

Result<Leaving> compare_leaving(const plan::Plan& plan, const model::Skeleton& skeleton, const policy::Policy& policy,
                                const source::CheckpointSource& source) {
  const auto may_leave = [&](const std::string& name) {
    return std::any_of(policy.may_untie.begin(), policy.may_untie.end(),
                       [&](const NamePattern& pattern) { return pattern.matches(name); });
  };
  exec::KeyComparer keys = keys_of(source);
  Leaving leaving;
  for (const auto& names : skeleton.tie_classes) {
    const auto stays = std::find_if_not(names.begin(), names.end(), may_leave);
    if (stays == names.end()) continue;
    const plan::Statement& of_class = root_of(plan, *stays);
    for (const std::string& name : names) {
      const plan::Statement& own = root_of(plan, name);
      if (&own == &of_class || own.name != name) continue;
      std::optional<std::uint64_t> elem;
      if (own.provenance == Provenance::kFile) {
        elem = 0;
        if (own.storage == of_class.storage && of_class.provenance == Provenance::kFile &&
            own.checkpoint == of_class.checkpoint) {
          LADING_ASSIGN_OR_RETURN(elem, keys.first_difference(own, own.expression, of_class.expression));
        }
      }
      if (elem) {
        leaving.different.push_back(name);
      } else {
        leaving.others_stay = true;
      }
    }
  }
  return leaving;
}

Errors compare_ties(const plan::Plan& plan, const source::CheckpointSource& source) {
  exec::KeyComparer keys = keys_of(source);
  Errors errors;
  for (const plan::Statement& tensor : plan.statements) {
    for (const mapping::Expression& other : tensor.must_equal) {
      if (errors.is_full()) return errors;
      const auto elem = keys.first_difference(tensor, tensor.expression, other);
      if (!elem) {
        errors.add(Error(elem.error()).of_tensor(tensor.name));
      } else if (*elem) {
        errors.add(Error(Code::kValuesDiffer, "two keys of one tie have different values")
                       .of_tensor(tensor.name)
                       .by_rule("R50")
                       .wanted(fmt::format("the values of {}", tensor.expression.text()))
                       .got(fmt::format("{} differs, first at element {}", other.text(), **elem))
                       .try_this("Set \"ties\": \"untie\" to load both, or remove the wrong key from the checkpoint."));
      }
    }
  }
  return errors;
}

}  // namespace lading
