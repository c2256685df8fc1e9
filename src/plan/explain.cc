#include "plan/explain.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/near_names.h"
#include "base/text.h"
#include "model/skeleton_json.h"
#include "plan/source_codes.h"
#include "plan/words.h"

namespace lading::plan {
namespace {

constexpr std::size_t kListed = 12;

std::string joined(const std::vector<std::string>& parts, std::string_view between) {
  return fmt::format("{}", fmt::join(parts, between));
}

std::string elements(std::uint64_t count) {
  return fmt::format("{} element{}", with_commas(count), count == 1 ? "" : "s");
}

std::string quoted_list(const std::vector<std::string>& names) {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < std::min(names.size(), kListed); ++i) parts.push_back(quote(names[i]));
  if (names.size() > kListed) parts.push_back(fmt::format("{} more", with_commas(names.size() - kListed)));
  return joined(parts, ", ");
}

class Explainer {
 public:
  Explainer(const Plan& plan, const Statement& statement, const RankPlan* rank)
      : plan_(plan), s_(statement), rank_(rank) {
    const Statement* found = s_.provenance == Provenance::kAlias ? plan_.find(s_.alias_of) : nullptr;
    head_ = found != nullptr ? found : &s_;
  }

  std::vector<ExplainedFact> run() {
    say("tensor", fmt::format("{} {} {}", quote(s_.name), model::word(s_.kind), s_.shape.text()));
    value();
    sources();
    dtype();
    placement();
    if (rank_ != nullptr) share();
    ties();
    return std::move(facts_);
  }

 private:
  void say(std::string_view topic, std::string text) { facts_.push_back({std::string(topic), std::move(text)}); }

  void value() {
    say("value", fmt::format("{}: {} [{}]", word(s_.provenance), s_.reason, s_.rule));
    if (head_ != &s_) say("value", fmt::format("{}: {} [{}]", word(head_->provenance), head_->reason, head_->rule));
    if (head_->provenance == Provenance::kFile) {
      say("expression", shorten(head_->expression.text()));
      say("mapping", mapping_words());
    }
    if (head_->provenance == Provenance::kCall) say("inputs", quoted_list(head_->recipe.inputs));
    if (head_->provenance == Provenance::kFill) say("fill", fmt::format("every element is {}", head_->recipe.value));
    if (head_->provenance == Provenance::kRandom) {
      say("random", fmt::format("random, from seed {}, the tensor's name and each element's index", plan_.seed));
    }
    if (head_->provenance == Provenance::kKept) {
      say("kept", fmt::format("the value is on {} before the load", shorten(head_->kept_device)));
    }
  }

  [[nodiscard]] std::string mapping_words() const {
    if (head_->checkpoint > 0) return fmt::format("by the names of adapter {}", head_->checkpoint);
    if (!head_->mapping_rule.empty()) return fmt::format("rule {}", quote(head_->mapping_rule));
    const mapping::Expression* leaf = &head_->expression;  // without a rule, it is made of one key
    while (!leaf->parts.empty()) leaf = &leaf->parts.front();
    if (leaf->key == s_.name) return "no rule: the key is the tensor's own name";
    if (leaf->op != mapping::Op::kDequantize) return "no rule: the key is the name of a tensor tied to it";
    // Packed codes have another name than the weight, and the same module.
    const std::string_view module = std::string_view(s_.name).substr(0, s_.name.rfind('.') + 1);
    return leaf->key.starts_with(module) ? "no rule: the key holds the tensor's packed codes"
                                         : "no rule: the key holds the packed codes of a tensor tied to it";
  }

  void sources() {
    if (head_->provenance != Provenance::kFile) return;
    const std::vector<std::string> keys = head_->expression.keys();
    std::size_t told = 0;
    for (const Source& source : plan_.sources) {
      if (plan_.files[source.file].checkpoint != head_->checkpoint) continue;
      if (!std::binary_search(keys.begin(), keys.end(), source.key)) continue;
      if (++told > kListed) continue;
      say("source",
          fmt::format("{} {} {}, bytes {} to {} of {}", quote(source.key), name(source.dtype), key_shape(source).text(),
                      source.bytes.begin, source.bytes.end, quote(plan_.files[source.file].name)));
      for (std::string& words : scheme_words(plan_, source, s_.storage)) say("dequantized", std::move(words));
    }
    if (told > kListed) say("source", fmt::format("and {} more keys", with_commas(told - kListed)));
  }

  void dtype() {
    const std::string_view found = s_.checkpoint_dtype ? name(*s_.checkpoint_dtype) : "nothing";
    say("dtype",
        fmt::format("{} in the checkpoint, stored as {}, computed in {}", found, name(s_.storage), name(s_.compute)));
    say("dtype", s_.dtype_reason);
  }

  void placement() {
    for (const layout::Slot& slot : s_.placement.slots) {
      std::vector<std::string> cuts;
      for (const layout::Cut& cut : slot.cuts) cuts.push_back(cut_words(cut, plan_.mesh));
      const std::string text = cuts.empty() ? "whole on every rank" : joined(cuts, ", then ");
      say("placement", slot.name.empty() ? text : fmt::format("slot {}: {}", quote(slot.name), text));
    }
    if (!s_.placement.fsdp_group.empty()) say("unit", fmt::format("FSDP2 unit {}", quote(s_.placement.fsdp_group)));
  }

  // "rows 0 to 16 and 32 to 48 of 64"
  static std::string runs_words(const std::vector<layout::Run>& runs, std::uint64_t extent, std::size_t dim) {
    const std::string what = dim == 0 ? "rows" : fmt::format("indices of dim {}", dim);
    if (runs.empty()) return "no " + what;
    if (runs.size() == 1 && runs.front().size == extent) return "all " + what;
    std::vector<std::string> parts;
    for (std::size_t i = 0; i < std::min(runs.size(), kListed); ++i) {
      parts.push_back(fmt::format("{} to {}", runs[i].begin, runs[i].begin + runs[i].size));
    }
    if (runs.size() > kListed) parts.push_back(fmt::format("{} more runs", runs.size() - kListed));
    return fmt::format("{} {} of {}", what, joined(parts, ", "), extent);
  }

  void share() {
    const auto self = plan_.statements.id_of(s_);
    bool present = false;
    for (const Destination& d : rank_->destinations) {
      const bool mine = d.statement == self || std::find(d.aliases.begin(), d.aliases.end(), self) != d.aliases.end();
      if (!mine) continue;
      present = true;
      share_of(d);
    }
    if (!present) say("share", fmt::format("rank {} does not have it", rank_->rank));
  }

  void share_of(const Destination& d) {
    const Statement& held = plan_.statements[d.statement];
    std::vector<std::string> parts;
    const layout::Region& region = rank_->regions[d.region];
    for (std::size_t dim = 0; dim < region.runs.size(); ++dim) {
      parts.push_back(runs_words(region.runs[dim], held.shape[dim], dim));
    }
    if (region.flat) {
      parts.push_back(fmt::format("of these, row-major, elements {} to {}", region.flat->begin, region.flat->end));
    }
    if (parts.empty()) parts.emplace_back("its only element");
    say("share", fmt::format("rank {}{}: {}; {} in a buffer of {} bytes", rank_->rank,
                             d.slot.empty() ? "" : fmt::format(", slot {}", quote(d.slot)), joined(parts, ", "),
                             elements(d.owned_elems), with_commas(d.buffer_bytes)));
    say("device", fmt::format("{}{}", shorten(d.device),
                              held.placement.device == layout::DeviceRule::kCpu ? " (offloaded, R36)" : ""));
    if (!d.flat_parameter.empty()) {
      say("padding", fmt::format("lading does not write the gaps and the padding of the shared buffer {}: they belong "
                                 "to its framework [R56]",
                                 quote(d.flat_parameter)));
    }
    transfers(d);
    for (const auto& comparison : d.comparisons) {
      std::uint64_t elems = 0;
      for (const Transfer& t : comparison) elems += t.elems();
      say("compare", fmt::format("compared with another key during the load: {} [R50]", elements(elems)));
    }
  }

  void transfers(const Destination& d) {
    for (std::size_t i = 0; i < std::min(d.transfers.size(), kListed); ++i) {
      const Transfer& t = d.transfers[i];
      if (t.is_fill()) {
        say("transfer",
            fmt::format("{} of {} at byte {} of the buffer", elements(t.elems()), t.fill, t.target_begin_bytes));
        continue;
      }
      std::vector<std::string> loops;
      for (const ByteLoop& loop : t.loops) loops.push_back(with_commas(loop.count));
      const std::string runs = loops.empty() ? "a run" : joined(loops, " × ") + " runs";
      const std::string first = t.first_code == 0 ? "" : fmt::format(" (code {} of it)", t.first_code);
      say("transfer", fmt::format("{} of {} from byte {}{} of {} to byte {} of the buffer", runs, elements(t.run_elems),
                                  t.source_begin_bytes, first, quote(plan_.files[plan_.sources[t.source].file].name),
                                  t.target_begin_bytes));
    }
    if (d.transfers.size() > kListed) {
      say("transfer", fmt::format("and {} more transfers", with_commas(d.transfers.size() - kListed)));
    }
  }

  void ties() {
    std::vector<std::string> others;
    for (const Statement& other : plan_.statements) {
      const bool same =
          other.name == head_->name || (other.provenance == Provenance::kAlias && other.alias_of == head_->name);
      if (same && other.name != s_.name) others.push_back(other.name);
    }
    say("ties", others.empty() ? "none" : fmt::format("one storage with {}", quoted_list(others)));
    for (const mapping::Expression& other : head_->must_equal) {
      say("ties", fmt::format("{} must have the same values; compared during the load [R50]", shorten(other.text())));
    }
  }

  const Plan& plan_;
  const Statement& s_;
  const Statement* head_ = nullptr;  // whose value it has
  const RankPlan* rank_;
  std::vector<ExplainedFact> facts_;
};

}  // namespace

std::vector<ExplainedFact> explain(const Plan& plan, const Statement& statement, const RankPlan* rank) {
  return Explainer(plan, statement, rank).run();
}

std::vector<std::string> near_names(const Plan& plan, std::string_view name) {
  std::vector<std::string_view> names;
  names.reserve(plan.statements.size());
  for (const Statement& s : plan.statements) names.push_back(s.name);
  return lading::near_names(names, name);
}

}  // namespace lading::plan
