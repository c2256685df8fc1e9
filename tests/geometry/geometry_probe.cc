// Answers, line by line, which global elements a rank's memory holds. For tests/geometry.
//
// In:  {"mesh": [{"name": "dp", "size": 4}], "shape": [25], "cuts": [{"shard": 0, "axes": ["dp"]}], "ranks": [3]}
// Out: {"ranks": [{"present": true, "shape": [4], "buffer": 4, "runs": [[21, 0, 4]]}]}
//      each run is [first global row-major index, place in the buffer, length]
//  or: {"errors": ["…"]}
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iostream>
#include <string>

#include "base/json_fields.h"
#include "layout/layout.h"
#include "layout/layout_json.h"
#include "layout/region.h"

namespace lading::layout {
namespace {

using GlobalRun = std::array<std::uint64_t, 3>;

/// The global row-major index of every element of the local product, in local order.
std::vector<std::uint64_t> expand(const Region& region, const Shape& global) {
  std::vector<std::uint64_t> flat = {0};
  for (std::size_t d = 0; d < global.rank(); ++d) {
    std::vector<std::uint64_t> next;
    for (const std::uint64_t prefix : flat) {
      for (const Run& run : region.runs[d]) {
        for (std::uint64_t i = 0; i < run.size; ++i) next.push_back(prefix * global[d] + run.begin + i);
      }
    }
    flat = std::move(next);
  }
  return flat;
}

std::vector<GlobalRun> runs_of(const Region& region, const Shape& global) {
  std::vector<GlobalRun> runs;
  if (!region.present) return runs;
  const std::vector<std::uint64_t> all = expand(region, global);
  const Region::Flat held = region.flat.value_or(Region::Flat{0, all.size(), 0});
  for (std::uint64_t i = held.begin; i < held.end; ++i) {
    const std::uint64_t place = held.buffer_begin + (i - held.begin);
    if (!runs.empty() && runs.back()[0] + runs.back()[2] == all[i]) {
      ++runs.back()[2];
    } else {
      runs.push_back({all[i], place, 1});
    }
  }
  return runs;
}

std::string refusal(const Errors& errors) {
  std::string out;
  for (const Error& error : errors) {
    std::string text = error.text();
    for (char& c : text) {
      if (c == '"' || c == '\\') c = '\'';
    }
    out += fmt::format("{}\"{}\"", out.empty() ? "" : ", ", text);
  }
  return fmt::format("{{\"errors\": [{}]}}", out);
}

std::string answer(const std::string& line) {
  const auto document = JsonDocument::parse(JsonBuffer::copy_of(line));
  if (!document) return refusal(document.error());
  Errors errors;
  JsonFields fields(document->root(), "$", errors);
  const MeshReading mesh = read_mesh(fields, errors);
  Shape shape;
  fields.shape("shape", shape);
  std::vector<Cut> cuts;
  if (const auto value = fields.require("cuts")) cuts = read_cuts(*value, fields.path_of("cuts"), mesh, errors);
  std::vector<std::uint64_t> ranks;
  fields.each("ranks",
              [&](const JsonValue& value, const std::string&) { ranks.push_back(value.as_uint64().value_or(0)); });
  fields.finish();
  if (errors.empty()) errors.add(check_cuts(shape, cuts, mesh.mesh));
  if (!errors.empty()) return refusal(errors);

  std::vector<std::string> out;
  for (const std::uint64_t rank : ranks) {
    const Region region = region_of(shape, cuts, mesh.mesh, rank);
    out.push_back(fmt::format("{{\"present\": {}, \"shape\": {}, \"buffer\": {}, \"runs\": {}}}", region.present,
                              region.local_shape.text(), region.buffer_elems, runs_of(region, shape)));
  }
  return fmt::format("{{\"ranks\": [{}]}}", fmt::join(out, ", "));
}

}  // namespace
}  // namespace lading::layout

int main() {
  std::ios::sync_with_stdio(false);
  for (std::string line; std::getline(std::cin, line);) std::cout << lading::layout::answer(line) << '\n';
  return std::cout.flush() ? 0 : 1;
}
