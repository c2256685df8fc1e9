#include "plan/exchange_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/checked.h"

namespace lading::plan {
namespace {

using Verdict = ExchangeChoice::Verdict;

// Of the time that reading takes: what is received is digested once more, and a group has other costs.
constexpr double kClearlyFaster = 0.7;

// "cpu", "cuda", …: what the ranks' devices are, each kind once.
std::set<std::string> device_kinds(const Plan& plan) {
  std::set<std::string> kinds;
  for (const layout::Device& device : plan.devices.list) {
    const std::string text = device.text();
    kinds.insert(text.substr(0, text.find(':')));
  }
  return kinds;
}

std::uint64_t bytes_of_sources(const Plan& plan) {
  std::uint64_t bytes = 0;
  for (const Source& source : plan.sources) bytes += source.bytes.size_bytes();
  return bytes;
}

double median_of(std::vector<double> speeds) {
  std::sort(speeds.begin(), speeds.end());
  const std::size_t middle = speeds.size() / 2;
  return speeds.size() % 2 == 1 ? speeds[middle] : (speeds[middle - 1] + speeds[middle]) / 2;
}

// N ranks that read once and exchange need 1/(N r) + 1/s seconds for a byte that takes 1/r to read.
ExchangeChoice by_speed(const ExchangeFacts& facts) {
  const auto ranks = static_cast<double>(facts.nodes.size());
  const double read = median_of(facts.read_speeds);
  const double sent = *std::min_element(facts.sent_speeds.begin(), facts.sent_speeds.end());
  const bool is_faster = 1 / (read * ranks) + 1 / sent < kClearlyFaster / read;
  ExchangeChoice choice;
  choice.note =
      fmt::format("exchange: {}, by measurement: {:.2f} GB/s from files on each rank, {:.2f} GB/s between ranks",
                  is_faster ? "yes" : "no", read / 1e9, sent / 1e9);
  if (is_faster) {
    choice.verdict = Verdict::kYes;
    choice.nodes.assign(facts.nodes.size(), "");
  }
  return choice;
}

}  // namespace

ExchangeChoice choose_exchange(const Plan& plan, const ExchangeFacts& facts) {
  LADING_CHECK(facts.nodes.size() == plan.mesh.ranks());
  if (facts.scope == ExchangeScope::kNever || facts.nodes.size() == 1) return {};
  if (const auto kinds = device_kinds(plan); kinds.size() > 1) {
    return {Verdict::kNo, {}, fmt::format("exchange: no, ranks have different devices ({})", fmt::join(kinds, ", "))};
  }
  if (facts.scope == ExchangeScope::kNode) return {Verdict::kYes, facts.nodes, ""};
  if (facts.scope == ExchangeScope::kJob) return {Verdict::kYes, std::vector<std::string>(facts.nodes.size()), ""};
  if (bytes_of_sources(plan) < facts.least_bytes) {
    return {Verdict::kNo, {}, "exchange: no, there is too little to read for a measurement"};
  }
  if (facts.read_speeds.empty() || facts.sent_speeds.empty()) return {Verdict::kMeasure, {}, ""};
  return by_speed(facts);
}

}  // namespace lading::plan
