// For tests: ledgers of small plans as if they had been carried out, and what regions mean, one element at a time.
#pragma once

#include <cstdio>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ledger/ledger.h"
#include "support/planner_support.h"

namespace lading::ledger::test {

/// The elements of a region, row-major in the whole tensor, by looking at every one.
inline std::vector<std::uint64_t> elements_of(const RecordedRegion& region, const Shape& shape) {
  std::vector<std::uint64_t> held;
  for (std::uint64_t i = 0; i < *shape.num_elems(); ++i) {
    bool inside = true;
    std::uint64_t rest = i;
    for (std::size_t d = shape.rank(); d-- > 0; rest /= shape[d]) {
      const std::uint64_t index = rest % shape[d];
      bool in_dim = false;
      for (const RecordedRun& run : region.runs[d])
        in_dim = in_dim || (index >= run.begin && index < run.begin + run.size);
      inside = inside && in_dim;
    }
    if (inside) held.push_back(i);
  }
  if (!region.flat) return held;
  return {held.begin() + static_cast<std::ptrdiff_t>(region.flat->begin),
          held.begin() + static_cast<std::ptrdiff_t>(region.flat->end)};
}

/// As if element i of every tensor were 1000 + i.
inline device::Digest digest_of_elements(const std::vector<std::uint64_t>& elements, DType storage) {
  device::Digest digest;
  const std::uint64_t width = bits(storage) / 8;
  for (const std::uint64_t i : elements) {
    const std::uint64_t value = 1000 + i;
    std::vector<std::byte> bytes(width);
    std::memcpy(bytes.data(), &value, std::min<std::size_t>(width, sizeof(value)));
    digest += device::digest_of(bytes, i * width);
  }
  return digest;
}

/// What a load that went well finds.
inline LedgerFacts good_facts(const plan::Plan& plan) {
  LedgerFacts facts;
  facts.checkpoint = "models/a";
  for (std::size_t f = 0; f < plan.files.size(); ++f) facts.files.push_back(FileIdentity{70 + f, 1'700'000'000, 5});
  for (std::uint32_t r = 0; r < plan.ranks.size(); ++r) {
    for (const plan::DestinationId i : plan.ranks[r].destinations.ids()) {
      const plan::Destination& d = plan.ranks[r].destinations[i];
      const plan::Statement& s = plan.statements[d.statement];
      DestinationFacts& found = facts.destinations.emplace_back();
      found.rank = r;
      found.destination = i;
      found.expected_bytes = s.provenance == Provenance::kKept ? 0 : *Shape{d.owned_elems}.size_bytes(s.storage);
      found.written_bytes = found.expected_bytes;
      if (s.provenance == Provenance::kKept) continue;
      found.digest =
          digest_of_elements(elements_of(RecordedRegion::of(plan.ranks[r].regions[d.region]), s.shape), s.storage);
    }
  }
  return facts;
}

inline Ledger ledger_of(const planner::world::World& world, const planner::world::Ranks& ranks) {
  const auto plan = world.plan(ranks);
  if (!plan) std::fputs(planner::world::verdict(plan).c_str(), stderr);
  LADING_CHECK(plan.has_value());
  return make_ledger(*plan, good_facts(*plan));
}
inline Ledger ledger_of(const planner::world::World& world) { return ledger_of(world, world.all_ranks()); }

inline Result<Ledger, Errors> parse(const std::string& text) {
  auto document = JsonDocument::parse(JsonBuffer::copy_of(text));
  if (!document) return fail(std::move(document).error());
  return parse_ledger(*document);
}

inline std::string all_text(const Errors& errors) {
  std::string text;
  for (const Error& error : errors) text += error.text() + "\n";
  return text;
}

/// Something of everything: ties, casts, built, constant, random, handed-in and kept tensors, two slots.
inline planner::world::World world_of_everything() {
  using namespace planner::world;
  using mapping::Expression;
  World world;
  world.keys = {{"a", {4, 6}, DType::kBF16},      {"b", {4, 6}, DType::kBF16},     {"plain", {8, 6}, DType::kF16, 1},
                {"tied", {6, 4}, DType::kF32, 1}, {"odd {key}", {4}, DType::kF32}, {"old", {2}, DType::kF32}};
  world.tensors = {param("built", {10, 6}, DType::kF32),
                   param("plain", {8, 6}, DType::kF32),
                   param("tied", {6, 4}),
                   param("twin", {6, 4}),
                   param("odd {key}", {4}),
                   init(param("random", {5, 3}), normal(0.5)),
                   init(buffer("scale", {3}), fill(-1.5)),
                   derived(table("rope", {4})),
                   real(table("kept", {2}))};
  world.tensors[5].init->zero_row = 2;
  world.ties = {{"tied", "twin"}};
  world.policy.dtype = DType::kF32;
  world.policy.allow_missing = {"random", "scale"};
  world.mesh({{"dp", 2}, {"tp", 2}});
  world.place("built", {shard(1, 0)}).place("plain", {shard(1, 1), flat({0})}).place("random", {shard(0, 0)});
  world.place("t*", {shard(1, 1)});
  layout::Slot second{"secondary", {flat({0, 1})}};
  world.layout.rules[0].placement.slots.push_back(second);
  world.build("built",
              Expression::pad(Expression::concat(0, {Expression::source("a"), Expression::source("b")}), 0, 10, -1.5));
  world.mapping.rules.push_back(mapping::Rule::ignore("legacy", "old"));
  return world;
}

}  // namespace lading::ledger::test
