// Plans a load of a checkpoint for 512 ranks, FSDP2 over tensor parallelism, and names the rank that needs most memory.
// Nothing is loaded, and no GPU is needed.
//
//   plan_512_ranks CHECKPOINT
#include <lading/plan.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <optional>

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: plan_512_ranks CHECKPOINT\n");
    return 2;
  }
  using namespace lading::layout;
  ByStrategy strategy;
  strategy.strategy = Strategy::kFsdp2Tp;
  strategy.mesh = Mesh({{"dp", 64}, {"tp", 8}});
  strategy.tp_plan = {{"*o_proj.weight", TpStyle::kRowwise},
                      {"*down_proj.weight", TpStyle::kRowwise},
                      {"*_proj.weight", TpStyle::kColwise}};
  strategy.device = {.type = DeviceType::kCuda, .index = {}, .per_node = 8};

  lading::PlanRequest request;
  request.checkpoint.path = argv[1];
  request.layout = strategy;
  request.ranks = std::nullopt;  // all of them
  const auto plan = lading::make_plan(request);
  if (!plan) {
    for (const lading::Error& error : plan.error().problems) std::fprintf(stderr, "%s\n", error.text().c_str());
    return static_cast<int>(plan.error().exit_code());
  }
  const auto largest = std::max_element(
      plan->ranks.begin(), plan->ranks.end(),
      [](const lading::RankTotals& a, const lading::RankTotals& b) { return a.owned_bytes < b.owned_bytes; });
  std::printf("%zu ranks, %zu tensors, %" PRIu64 " bytes proved\n", plan->ranks.size(), plan->tensors.size(),
              plan->bytes_proved);
  std::printf("the largest is rank %" PRIu64 ": it holds %" PRIu64 " bytes and reads %" PRIu64 "\n", largest->rank,
              largest->owned_bytes, largest->read_bytes);
  for (const auto& [device, bytes] : largest->device_bytes) {
    std::printf("  %s: %" PRIu64 " bytes\n", device.text().c_str(), bytes);
  }
  return 0;
}
