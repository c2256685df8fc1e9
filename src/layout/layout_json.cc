#include "layout/layout_json.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>

#include "base/text.h"
#include "layout/cut_checks.h"

namespace lading::layout {
namespace {

constexpr std::string_view kSchema = "lading.layout/1";

void add_problem(Errors& errors, const JsonValue& value, const std::string& path, Error error) {
  error.code = Code::kSchema;
  error.message = fmt::format("{}: {}", path, error.message);
  if (error.found.empty()) error.found = value.found();
  errors.add(std::move(error).at({value.offset(), value.offset() + 1}));
}

std::uint64_t count(const Errors& errors) { return errors.size() + errors.not_listed(); }

std::uint64_t read_number(const JsonValue& value, const std::string& path, Errors& errors) {
  const auto number = value.as_uint64();
  if (!number) {
    add_problem(errors, value, path,
                Error(Code::kSchema, "not a whole number").wanted("a whole number from 0 to 2^64 - 1"));
  }
  return number.value_or(0);
}

/// For values that are already found; JsonFields::each() is for those that are not.
template <class Read>
void each_of(const JsonValue& value, const std::string& path, Errors& errors, const Read& read) {
  if (!value.is_array()) {
    add_problem(errors, value, path, Error(Code::kSchema, "not an array").wanted("an array"));
    return;
  }
  std::size_t i = 0;
  for (const JsonMember element : value) read(element.value, fmt::format("{}[{}]", path, i++));
}

void read_axes(JsonFields& fields, const Mesh& mesh, Errors& errors, Cut& cut) {
  fields.each("axes", [&](const JsonValue& value, const std::string& path) {
    const auto axis = value.is_string() ? mesh.find(value.text()) : std::nullopt;
    if (axis) {
      cut.axes.push_back(*axis);
      return;
    }
    std::vector<std::string> names;
    for (const Axis& known : mesh.axes()) names.push_back(known.name);
    add_problem(errors, value, path,
                Error(Code::kSchema, "not an axis of the mesh").wanted(fmt::format("{}", fmt::join(names, ", "))));
  });
}

void read_flat(const JsonValue& value, const std::string& path, Errors& errors, Cut& cut) {
  JsonFields fields(value, path, errors);
  fields.optional_uint64("pad_multiple", cut.pad_multiple);
  fields.finish();
}

void read_flat_group(const JsonValue& value, const std::string& path, Errors& errors, Cut& cut) {
  JsonFields fields(value, path, errors);
  fields.string("unit", cut.flat_parameter);
  fields.uint64("offset", cut.group_offset_elems);
  fields.uint64("elems", cut.group_elems);
  fields.finish();
}

struct KindWord {
  std::string_view word;
  CutKind kind = CutKind::kShard;
};
constexpr std::array<KindWord, 5> kKinds = {{{"shard", CutKind::kShard},
                                             {"strided_shard", CutKind::kStridedShard},
                                             {"flat", CutKind::kFlat},
                                             {"flat_group", CutKind::kFlatGroup},
                                             {"owner", CutKind::kOwner}}};

std::string kind_words() {
  std::string words;
  for (const KindWord& one : kKinds) words += (words.empty() ? "" : ", ") + std::string(one.word);
  return words;
}

Cut read_cut(const JsonValue& value, const std::string& path, const Mesh& mesh, Errors& errors) {
  Cut cut;
  JsonFields fields(value, path, errors);
  if (!value.is_object()) return cut;
  std::vector<std::pair<KindWord, JsonValue>> kinds;
  for (const KindWord& one : kKinds) {
    if (const auto found = fields.find(one.word)) kinds.emplace_back(one, *found);
  }
  if (kinds.size() != 1) {
    add_problem(errors, value, path,
                Error(Code::kSchema, "a cut needs exactly one kind")
                    .wanted(fmt::format("exactly one of {}", kind_words()))
                    .got(fmt::format("{} of them", kinds.size())));
    return cut;
  }
  const auto& [found, content] = kinds.front();
  const std::string content_path = fields.path_of(found.word);
  cut.kind = found.kind;
  switch (cut.kind) {
    case CutKind::kShard:
      cut.dim = read_number(content, content_path, errors);
      fields.optional_boolean("even", cut.even);
      fields.optional_boolean("gathered", cut.gathered);
      break;
    case CutKind::kStridedShard:
      cut.dim = read_number(content, content_path, errors);
      fields.uint64("split_factor", cut.split_factor);
      break;
    case CutKind::kFlat: read_flat(content, content_path, errors, cut); break;
    case CutKind::kFlatGroup: read_flat_group(content, content_path, errors, cut); break;
    case CutKind::kOwner:
      each_of(content, content_path, errors, [&](const JsonValue& owner, const std::string& owner_path) {
        cut.owners.push_back(read_number(owner, owner_path, errors));
      });
      break;
  }
  read_axes(fields, mesh, errors, cut);
  fields.finish();
  return cut;
}

void read_slots(JsonFields& fields, const MeshReading& mesh, Errors& errors, Placement& placement) {
  const auto slots = fields.find("slots");
  if (!slots) return;
  if (!slots->is_object()) {
    fields.problem(*slots, "slots", "not an object", "an object of lists of cuts");
    return;
  }
  for (const JsonMember member : *slots) {
    const std::string path = fmt::format("{}.{}", fields.path_of("slots"), escape(member.key));
    if (member.key.empty()) {
      add_problem(errors, member.value, path,
                  Error(Code::kSchema, "the slot has no name").wanted("a name; the ordinary slot is the field cuts"));
      continue;
    }
    placement.slots.push_back({std::string(member.key), read_cuts(member.value, path, mesh, errors)});
  }
}

PlacementRule read_rule(const JsonValue& value, const std::string& path, const MeshReading& mesh, Errors& errors) {
  constexpr std::array<std::pair<std::string_view, DeviceRule>, 2> kDeviceWords = {
      {{"rank", DeviceRule::kRankDevice}, {"cpu", DeviceRule::kCpu}}};
  PlacementRule rule;
  JsonFields fields(value, path, errors);
  read_name_fields(fields, rule.pattern);
  if (const auto cuts = fields.find("cuts")) {
    rule.placement.slots.front().cuts = read_cuts(*cuts, fields.path_of("cuts"), mesh, errors);
  }
  read_slots(fields, mesh, errors, rule.placement);
  fields.optional_word("device", kDeviceWords, rule.placement.device);
  fields.optional_string("fsdp_group", rule.placement.fsdp_group);
  fields.finish();
  return rule;
}

void read_device_list(const JsonValue& list, const std::string& list_path, const Mesh& mesh, Errors& errors,
                      DeviceMap& devices) {
  each_of(list, list_path, errors, [&](const JsonValue& value, const std::string& path) {
    auto device = parse_device(value.is_string() ? value.text() : "");
    if (device) {
      devices.list.push_back(*std::move(device));
    } else {
      device.error().found.clear();
      add_problem(errors, value, path, std::move(device).error());
    }
  });
  if (list.size() == mesh.ranks()) return;
  add_problem(errors, list, list_path,
              Error(Code::kSchema, "the number of devices is not the number of ranks")
                  .by_rule("R34")
                  .wanted(std::to_string(mesh.ranks()))
                  .got(std::to_string(list.size())));
}

void read_device_rule(const JsonValue& value, const std::string& path, Errors& errors, DeviceMap& devices) {
  JsonFields fields(value, path, errors);
  std::string type;
  fields.string("type", type);
  fields.uint64("per_node", devices.per_node);
  fields.finish();
  const auto last = parse_device(fmt::format("{}:{}", type, devices.per_node - 1));
  if (devices.per_node == 0 || !last) {
    add_problem(errors, value, path,
                Error(Code::kSchema, "not a device type with a number per node")
                    .by_rule("R34")
                    .wanted("type cuda and per_node from 1 to 128")
                    .got(fmt::format("{} and {}", quote(type), devices.per_node)));
    devices = DeviceMap{};
    return;
  }
  devices.type = last->type;
}

void read_devices(JsonFields& fields, const Mesh& mesh, Errors& errors, DeviceMap& devices) {
  const auto value = fields.require("devices");
  if (!value) return;
  if (value->is_array()) {
    read_device_list(*value, fields.path_of("devices"), mesh, errors, devices);
  } else if (value->is_object()) {
    read_device_rule(*value, fields.path_of("devices"), errors, devices);
  } else if (!value->is_string() || value->text() != "cpu") {
    add_problem(errors, *value, fields.path_of("devices"),
                Error(Code::kSchema, "the device of each rank is not given")
                    .by_rule("R34")
                    .wanted("\"cpu\", a list of one device per rank, or {\"type\": \"cuda\", \"per_node\": 8}"));
  }
}

}  // namespace

MeshReading read_mesh(JsonFields& fields, Errors& errors) {
  const auto value = fields.require("mesh");
  if (!value) return {Mesh(), false};
  const std::uint64_t before = count(errors);
  std::vector<Axis> axes;
  each_of(*value, fields.path_of("mesh"), errors, [&](const JsonValue& element, const std::string& path) {
    Axis axis;
    JsonFields axis_fields(element, path, errors);
    axis_fields.string("name", axis.name);
    axis_fields.uint64("size", axis.size);
    axis_fields.finish();
    axes.push_back(std::move(axis));
  });
  Mesh mesh(std::move(axes));
  if (count(errors) == before) {
    for (Error problem : check_mesh(mesh)) add_problem(errors, *value, fields.path_of("mesh"), std::move(problem));
  }
  return {std::move(mesh), count(errors) == before};
}

std::vector<Cut> read_cuts(const JsonValue& value, const std::string& path, const MeshReading& mesh, Errors& errors) {
  const std::uint64_t before = count(errors);
  std::vector<Cut> cuts;
  std::vector<JsonValue> elements;
  each_of(value, path, errors, [&](const JsonValue& element, const std::string& element_path) {
    cuts.push_back(read_cut(element, element_path, mesh.mesh, errors));
    elements.push_back(element);
  });
  // After a problem of form the rest would be about what was guessed.
  if (count(errors) != before || !mesh.good) return cuts;
  for (CutProblem& problem : cut_list_problems(cuts, mesh.mesh)) {
    add_problem(errors, elements[problem.cut], fmt::format("{}[{}]", path, problem.cut), std::move(problem.error));
  }
  return cuts;
}

Result<Layout, Errors> parse_layout(const JsonDocument& document) {
  Errors errors;
  Layout layout;
  JsonFields fields = begin_document(document, kSchema, errors);
  MeshReading mesh = read_mesh(fields, errors);
  if (mesh.good) {
    read_devices(fields, mesh.mesh, errors, layout.devices);
  } else {
    (void)fields.find("devices");  // how many there must be is not known
  }
  fields.each("rules", [&](const JsonValue& value, const std::string& path) {
    layout.rules.push_back(read_rule(value, path, mesh, errors));
  });
  fields.finish();
  if (!errors.empty()) return fail(std::move(errors));
  layout.mesh = std::move(mesh.mesh);
  return layout;
}

}  // namespace lading::layout
