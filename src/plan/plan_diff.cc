#include "plan/plan_diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "base/json_writer.h"

namespace lading::plan {
namespace {

// Longer values are compared part by part, so that what is told can be read.
constexpr std::size_t kWholeBytes = 240;

// A rank among those of its group: the group's offsets are functions of it (rank_groups.h).
struct Place {
  std::vector<std::uint64_t> coordinate;
  std::size_t member = 0;
};

// What an offset is on the rank; nothing if the value is no such offset.
std::optional<std::uint64_t> resolve(const JsonValue& value, const Place& place) {
  if (const auto list = value.find("list"); list && list->is_array() && value.size() == 1) {
    std::size_t i = 0;
    for (const JsonMember member : *list) {
      if (i++ == place.member) return member.value.as_uint64();
    }
    return std::nullopt;
  }
  const auto base = value.find("base");
  const auto steps = value.find("steps");
  if (!base || !steps || value.size() != 2 || !steps->is_array()) return std::nullopt;
  // The file is anybody's: sums wrap, and are compared all the same.
  std::uint64_t sum = base->as_uint64().value_or(0);
  std::size_t axis = 0;
  for (const JsonMember step : *steps) {
    if (axis >= place.coordinate.size()) return std::nullopt;
    sum += step.value.as_uint64().value_or(0) * place.coordinate[axis++];
  }
  return sum;
}

void write_value(JsonWriter& json, const JsonValue& value, const Place& place) {
  switch (value.kind()) {
    case JsonKind::kObject:
      if (const auto offset = resolve(value, place)) {
        json.number(*offset);
        return;
      }
      json.begin_object(JsonWriter::Lines::kOne);
      for (const JsonMember member : value) write_value(json.key(member.key), member.value, place);
      json.end_object();
      return;
    case JsonKind::kArray:
      json.begin_array(JsonWriter::Lines::kOne);
      for (const JsonMember member : value) write_value(json, member.value, place);
      json.end_array();
      return;
    case JsonKind::kString: json.string(value.text()); return;
    case JsonKind::kTrue: json.boolean(true); return;
    case JsonKind::kFalse: json.boolean(false); return;
    case JsonKind::kNull: json.null(); return;
    case JsonKind::kNumber: json.literal(value.text()); return;
  }
}

std::string text_of(const JsonValue& value, const Place& place) {
  JsonWriter json;
  write_value(json, value, place);
  std::string text = json.take();
  text.pop_back();  // the newline
  return text;
}

using Members = std::map<std::string, JsonValue, std::less<>>;

Members members_of(const JsonValue& value) {
  Members members;
  for (const JsonMember member : value) members.emplace(member.key, member.value);
  return members;
}

bool section_has_checkpoints(std::string_view key) { return key == "files" || key == "sources"; }

class Differ {
 public:
  Result<PlanDifference, Errors> run(const JsonDocument& before, const JsonDocument& after) {
    for (const JsonDocument* document : {&before, &after}) check(document->root());
    if (!errors_.empty()) return fail(std::move(errors_));
    const Members old_fields = members_of(before.root());
    const Members new_fields = members_of(after.root());
    static const std::set<std::string, std::less<>> kApart = {"schema",   "ok",       "digest",      "files",
                                                              "sources",  "tensors",  "ranks",       "rank_groups",
                                                              "warnings", "problems", "unread_bytes"};
    fields({PlanSection::kPlan, ""}, old_fields, new_fields, kApart);
    // Known only where all ranks were worked out, so that it is compared where both have it.
    const auto unread_before = old_fields.find("unread_bytes");
    const auto unread_after = new_fields.find("unread_bytes");
    if (unread_before != old_fields.end() && unread_after != new_fields.end()) {
      values({PlanSection::kPlan, ""}, "unread_bytes", unread_before->second, unread_after->second);
    }
    const auto lists = [&](std::string_view key, PlanSection section, std::string_view id) {
      const Members a = list_of(before.root(), key, id);
      const Members b = list_of(after.root(), key, id);
      if (section == PlanSection::kRank) {
        ranks(before.root(), after.root(), a, b);
      } else {
        named(section, "", a, b);
      }
    };
    lists("files", PlanSection::kFile, "name");
    lists("sources", PlanSection::kSource, "key");
    lists("tensors", PlanSection::kTensor, "name");
    lists("ranks", PlanSection::kRank, "rank");
    if (!errors_.empty()) return fail(std::move(errors_));
    return std::move(out_);
  }

 private:
  struct Subject {
    PlanSection section;
    std::string name;
  };

  void check(const JsonValue& root) {
    const auto schema = root.find("schema");
    if (!schema || !schema->is_string() || schema->text() != "lading.plan/1") {
      errors_.add(Error(Code::kSchema, "$.schema: not a plan")
                      .at({root.offset(), root.offset() + 1})
                      .wanted("\"lading.plan/1\"")
                      .got(schema ? schema->found() : "nothing"));
      return;
    }
    const auto ok = root.find("ok");
    if (!ok || (ok->kind() != JsonKind::kTrue && ok->kind() != JsonKind::kFalse)) {
      errors_.add(Error(Code::kSchema, "$.ok: the field is missing, which says whether the plan was accepted")
                      .at({root.offset(), root.offset() + 1})
                      .wanted("true")
                      .got(ok ? ok->found() : "nothing"));
    } else if (ok->kind() == JsonKind::kFalse) {
      errors_.add(Error(Code::kSchema, "$.ok: the plan was refused, so that it cannot be compared")
                      .at({root.offset(), root.offset() + 1}));
    }
  }

  Members list_of(const JsonValue& owner, std::string_view key, std::string_view id) {
    Members members;
    const auto list = owner.find(key);
    if (!list || !list->is_array()) {
      errors_.add(Error(Code::kSchema, fmt::format("$.{}: not an array", key))
                      .at({owner.offset(), owner.offset() + 1})
                      .wanted("an array"));
      return members;
    }
    for (const JsonMember member : *list) {
      const auto name = member.value.find(id);
      if (!name || name->text().empty()) {
        errors_.add(Error(Code::kSchema, fmt::format("$.{}: an element has no {}", key, id))
                        .at({member.value.offset(), member.value.offset() + 1}));
        continue;
      }
      std::string full(name->text());
      // A tensor has one destination for each slot.
      if (const auto slot = member.value.find("slot"); slot && !slot->text().empty()) {
        full += fmt::format(", slot {}", slot->text());
      }
      // Two checkpoints may have files and keys of one name.
      const auto checkpoint = member.value.find("checkpoint");
      if (checkpoint && section_has_checkpoints(key))
        full += fmt::format(", adapter {}", checkpoint->as_uint64().value_or(0));
      members.insert_or_assign(std::move(full), member.value);
    }
    return members;
  }

  void add(const Subject& subject, std::string field, const JsonValue* before, const JsonValue* after) {
    PlanChange change{subject.section, subject.name, std::move(field), {}, {}};
    if (before != nullptr) change.before = text_of(*before, before_);
    if (after != nullptr) change.after = text_of(*after, after_);
    out_.changes.push_back(std::move(change));
  }

  // Calls `both`, or records what only one of them has. In the order of names.
  template <class Both>
  void merge(const Members& a, const Members& b, const Both& both, const auto& only) {
    std::set<std::string_view> names;
    for (const auto& [name, value] : a) names.insert(name);
    for (const auto& [name, value] : b) names.insert(name);
    for (const std::string_view name : names) {
      const auto x = a.find(name);
      const auto y = b.find(name);
      if (x != a.end() && y != b.end()) {
        both(name, x->second, y->second);
      } else {
        only(name, x != a.end() ? &x->second : nullptr, y != b.end() ? &y->second : nullptr);
      }
    }
  }

  void fields(const Subject& subject, const Members& a, const Members& b,
              const std::set<std::string, std::less<>>& apart) {
    merge(
        a, b,
        [&](std::string_view key, const JsonValue& x, const JsonValue& y) {
          if (!apart.contains(key)) values(subject, std::string(key), x, y);
        },
        [&](std::string_view key, const JsonValue* x, const JsonValue* y) {
          if (!apart.contains(key)) add(subject, std::string(key), x, y);
        });
  }

  void values(const Subject& subject, const std::string& path, const JsonValue& x, const JsonValue& y) {
    const std::string before = text_of(x, before_);
    const std::string after = text_of(y, after_);
    if (before == after) return;
    const bool objects = x.is_object() && y.is_object();
    const bool arrays = x.is_array() && y.is_array() && x.size() == y.size();
    if (std::max(before.size(), after.size()) <= kWholeBytes || !(objects || arrays)) {
      add(subject, path, &x, &y);
    } else if (objects) {
      merge(
          members_of(x), members_of(y),
          [&](std::string_view key, const JsonValue& p, const JsonValue& q) {
            values(subject, fmt::format("{}.{}", path, key), p, q);
          },
          [&](std::string_view key, const JsonValue* p, const JsonValue* q) {
            add(subject, fmt::format("{}.{}", path, key), p, q);
          });
    } else {
      auto other = y.begin();
      std::size_t i = 0;
      for (const JsonMember member : x) {
        values(subject, fmt::format("{}[{}]", path, i++), member.value, (*other).value);
        ++other;
      }
    }
  }

  void named(PlanSection section, std::string_view prefix, const Members& a, const Members& b) {
    static const std::set<std::string, std::less<>> kSentences = {"reason", "dtype_reason"};
    const auto subject = [&](std::string_view name) { return Subject{section, fmt::format("{}{}", prefix, name)}; };
    merge(
        a, b,
        [&](std::string_view name, const JsonValue& x, const JsonValue& y) {
          fields(subject(name), members_of(x), members_of(y), kSentences);
        },
        [&](std::string_view name, const JsonValue* x, const JsonValue* y) { add(subject(name), "", x, y); });
  }

  // The group of a rank, and the rank's place in it; nothing, and a problem, if the document does not say it.
  std::optional<JsonValue> group_of(const JsonValue& root, const JsonValue& rank, Place& place) {
    const auto groups = root.find("rank_groups");
    const auto wanted = rank.find("group");
    const auto number = rank.find("rank")->as_uint64();
    const auto group = wanted ? wanted->as_uint64() : std::nullopt;
    std::optional<JsonValue> found;
    if (groups && groups->is_array() && group && number) {
      std::uint64_t i = 0;
      for (const JsonMember member : *groups) {
        if (i++ == *group) found = member.value;
      }
    }
    const auto members = found ? found->find("ranks") : std::nullopt;
    if (!members || !members->is_array()) {
      errors_.add(Error(Code::kSchema, "$.ranks: a rank has no group")
                      .at({rank.offset(), rank.offset() + 1})
                      .wanted("a number of an element of rank_groups"));
      return std::nullopt;
    }
    place.member = 0;
    for (const JsonMember member : *members) {
      if (member.value.as_uint64() == number) break;
      ++place.member;
    }
    place.coordinate = coordinate_of(root, *number);
    return found;
  }

  static std::vector<std::uint64_t> coordinate_of(const JsonValue& root, std::uint64_t rank) {
    std::vector<std::uint64_t> sizes;
    if (const auto mesh = root.find("mesh"); mesh && mesh->is_array()) {
      for (const JsonMember axis : *mesh) {
        const auto size = axis.value.find("size");
        sizes.push_back(size ? std::max<std::uint64_t>(1, size->as_uint64().value_or(1)) : 1);
      }
    }
    std::vector<std::uint64_t> coordinate(sizes.size(), 0);
    for (std::size_t axis = sizes.size(); axis-- > 0;) {
      coordinate[axis] = rank % sizes[axis];
      rank /= sizes[axis];
    }
    return coordinate;
  }

  void ranks(const JsonValue& before, const JsonValue& after, const Members& a, const Members& b) {
    static const std::set<std::string, std::less<>> kApart = {"group"};
    merge(
        a, b,
        [&](std::string_view rank, const JsonValue& x, const JsonValue& y) {
          fields({PlanSection::kRank, std::string(rank)}, members_of(x), members_of(y), kApart);
          const auto mine = group_of(before, x, before_);
          const auto theirs = group_of(after, y, after_);
          if (!mine || !theirs) return;
          named(PlanSection::kDestination, fmt::format("rank {}, ", rank), list_of(*mine, "destinations", "tensor"),
                list_of(*theirs, "destinations", "tensor"));
          static const std::set<std::string, std::less<>> kOthers = {"ranks", "destinations"};
          fields({PlanSection::kRank, std::string(rank)}, members_of(*mine), members_of(*theirs), kOthers);
          before_ = after_ = {};
        },
        [&](std::string_view, const JsonValue* x, const JsonValue* y) {
          const JsonValue& rank = x != nullptr ? *x : *y;
          if (const auto number = rank.find("rank")->as_uint64()) out_.ranks_not_compared.push_back(*number);
        });
    std::sort(out_.ranks_not_compared.begin(), out_.ranks_not_compared.end());
  }

  PlanDifference out_;
  Errors errors_;
  Place before_;  // of the rank that is compared, in either document
  Place after_;
};

}  // namespace

Result<PlanDifference, Errors> diff_plans(const JsonDocument& before, const JsonDocument& after) {
  return Differ().run(before, after);
}

}  // namespace lading::plan

namespace lading {

std::string_view word(PlanSection section) {
  switch (section) {
    case PlanSection::kPlan: return "plan";
    case PlanSection::kFile: return "file";
    case PlanSection::kSource: return "source";
    case PlanSection::kTensor: return "tensor";
    case PlanSection::kRank: return "rank";
    case PlanSection::kDestination: return "destination";
  }
  return "plan";
}

}  // namespace lading
