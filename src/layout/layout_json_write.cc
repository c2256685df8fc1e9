#include "layout/layout_json_write.h"

namespace lading::layout {
namespace {

void write_cut(JsonWriter& json, const Cut& cut, const Mesh& mesh) {
  json.begin_object();
  switch (cut.kind) {
    case CutKind::kShard:
      json.key("shard").number(cut.dim);
      if (cut.even) json.key("even").boolean(true);
      if (cut.gathered) json.key("gathered").boolean(true);
      break;
    case CutKind::kStridedShard:
      json.key("strided_shard").number(cut.dim);
      json.key("split_factor").number(cut.split_factor);
      break;
    case CutKind::kFlat:
      json.key("flat").begin_object();
      if (cut.pad_multiple != 0) json.key("pad_multiple").number(cut.pad_multiple);
      json.end_object();
      break;
    case CutKind::kFlatGroup:
      json.key("flat_group").begin_object();
      json.key("unit").string(cut.flat_parameter);
      json.key("offset").number(cut.group_offset_elems);
      json.key("elems").number(cut.group_elems);
      json.end_object();
      break;
    case CutKind::kOwner:
      json.key("owner").begin_array();
      for (const std::uint64_t owner : cut.owners) json.number(owner);
      json.end_array();
      break;
  }
  json.key("axes").begin_array();
  for (const std::size_t axis : cut.axes) json.string(mesh.axes().at(axis).name);
  json.end_array();
  json.end_object();
}

void write_rule(JsonWriter& json, const PlacementRule& rule, const Mesh& mesh) {
  const Placement& placement = rule.placement;
  LADING_CHECK(!placement.slots.empty() && placement.slots.front().name.empty());
  json.begin_object();
  write_name_fields(json, rule.pattern);
  write_cuts(json.key("cuts"), placement.slots.front().cuts, mesh);
  if (placement.slots.size() > 1) {
    json.key("slots").begin_object();
    for (std::size_t i = 1; i < placement.slots.size(); ++i) {
      write_cuts(json.key(placement.slots[i].name), placement.slots[i].cuts, mesh);
    }
    json.end_object();
  }
  if (placement.device == DeviceRule::kCpu) json.key("device").string("cpu");
  if (!placement.fsdp_group.empty()) json.key("fsdp_group").string(placement.fsdp_group);
  json.end_object();
}

}  // namespace

void write_mesh(JsonWriter& json, const Mesh& mesh) {
  json.begin_array();
  for (const Axis& axis : mesh.axes()) {
    json.begin_object().key("name").string(axis.name).key("size").number(axis.size).end_object();
  }
  json.end_array();
}

void write_cuts(JsonWriter& json, const std::vector<Cut>& cuts, const Mesh& mesh) {
  json.begin_array();
  for (const Cut& cut : cuts) write_cut(json, cut, mesh);
  json.end_array();
}

void write_devices(JsonWriter& json, const DeviceMap& devices) {
  if (!devices.list.empty()) {
    json.begin_array();
    for (const Device& device : devices.list) json.string(device.text());
    json.end_array();
  } else if (devices.type == DeviceType::kCpu) {
    json.string("cpu");
  } else {
    json.begin_object();
    json.key("type").string(word(devices.type));
    json.key("per_node").number(devices.per_node);
    json.end_object();
  }
}

std::string layout_json(const Layout& layout) {
  JsonWriter json;
  json.begin_object();
  json.key("schema").string("lading.layout/1");
  write_mesh(json.key("mesh"), layout.mesh);
  write_devices(json.key("devices"), layout.devices);
  json.key("rules").begin_array();
  for (const PlacementRule& rule : layout.rules) write_rule(json, rule, layout.mesh);
  json.end_array();
  json.end_object();
  return json.take();
}

}  // namespace lading::layout
