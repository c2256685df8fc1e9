#include "cli/load_output.h"

#include <fmt/format.h>

#include <map>

#include "base/text.h"
#include "cli/columns.h"
#include "cli/style.h"

namespace lading::cli {
namespace {

constexpr std::size_t kRanksShown = 16;

struct RankSum {
  std::uint64_t tensors = 0;
  std::uint64_t bytes = 0;
};

std::map<std::uint64_t, RankSum> by_rank(const LoadReport& report) {
  std::map<std::uint64_t, RankSum> sums;
  for (const RankTotals& rank : report.plan.ranks) sums[rank.rank].bytes = rank.owned_bytes;
  for (const LoadedTensor& tensor : report.tensors)
    sums[tensor.destination.rank].tensors += 1 + tensor.destination.aliases.size();
  return sums;
}

std::uint64_t loaded_bytes(const LoadReport& report) {
  std::uint64_t bytes = 0;
  for (const RankTotals& rank : report.plan.ranks) bytes += rank.owned_bytes;
  return bytes;
}

}  // namespace

std::string load_text(const LoadReport& report, Colour colour, std::optional<std::uint64_t> group_read_bytes) {
  const Style style(colour);
  const std::uint64_t bytes = loaded_bytes(report);
  std::string out = style.bold(shorten(report.plan.path)) + "\n";
  const std::string mesh =
      report.plan.mesh.axes().empty() ? "" : fmt::format(" of {}", escape(report.plan.mesh.text()));
  out +=
      fmt::format("{}: {} on {}{}, {} in {:.2f} s ({:.2f} GB/s), planned in {:.2f} s\n", style.green("loaded"),
                  plural(report.plan.tensors.size(), "tensor"), plural(report.plan.ranks.size(), "rank"), mesh,
                  human_bytes(bytes), report.loading_seconds,
                  static_cast<double>(bytes) / std::max(report.loading_seconds, 1e-9) / 1e9, report.planning_seconds);
  out +=
      style.dim(fmt::format("read {} with {}, {} of staging; every byte written once\n", human_bytes(report.read_bytes),
                            plural(report.threads, "thread"), human_bytes(report.staging_bytes)));
  if (report.plan.dequantized > 0)
    out += style.dim(fmt::format("dequantized {}\n", plural(report.plan.dequantized, "quantized tensor")));
  if (group_read_bytes) {
    out += style.dim(
        fmt::format("all {} read {}\n", plural(report.plan.rank_count, "rank"), human_bytes(*group_read_bytes)));
  }
  out += "\n" + style.bold("Rank        memory    tensors") + "\n";
  std::size_t shown = 0;
  const auto sums = by_rank(report);
  for (const auto& [rank, sum] : sums) {
    if (shown++ == kRanksShown) break;
    out += fmt::format("{:>4}  {:>12}  {:>9}\n", rank, human_bytes(sum.bytes), with_commas(sum.tensors));
  }
  if (sums.size() > kRanksShown)
    out += style.dim(fmt::format("… {} more; --json has all\n", plural(sums.size() - kRanksShown, "rank")));
  return out;
}

}  // namespace lading::cli
