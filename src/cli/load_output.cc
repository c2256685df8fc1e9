#include "cli/load_output.h"

#include <fmt/format.h>

#include <map>

#include "base/error_json.h"
#include "base/json_writer.h"
#include "base/text.h"
#include "base/version.h"
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

std::string load_json(const LoadReport& report, std::optional<std::uint64_t> group_read_bytes) {
  JsonWriter json;
  json.begin_object();
  json.key("schema").string("lading.load/1");
  json.key("lading").string(kVersion);
  json.key("ok").boolean(true);
  json.key("path").string(report.plan.path);
  json.key("plan_digest").string(report.plan.digest);
  json.key("tensors").number(report.plan.tensors.size());
  json.key("bytes").number(loaded_bytes(report));
  json.key("read_bytes").number(report.read_bytes);
  if (group_read_bytes) json.key("group_read_bytes").number(*group_read_bytes);
  json.key("staging_bytes").number(report.staging_bytes);
  json.key("threads").number(std::uint64_t{report.threads});
  json.key("planning_seconds").number(report.planning_seconds);
  json.key("loading_seconds").number(report.loading_seconds);
  json.key("opening_seconds").number(report.opening_seconds);
  json.key("closing_seconds").number(report.closing_seconds);
  json.key("ranks").begin_array();
  for (const auto& [rank, sum] : by_rank(report)) {
    json.begin_object(JsonWriter::Lines::kOne).key("rank").number(rank);
    json.key("bytes").number(sum.bytes).key("tensors").number(sum.tensors).end_object();
  }
  json.end_array();
  json.key("notes").begin_array();
  for (const std::string& note : report.notes) json.string(note);
  json.end_array();
  write_errors(json, "warnings", report.plan.warnings);
  write_errors(json, "problems", {});
  json.end_object();
  return json.take();
}

std::string load_failure_json(const LoadFailure& failure) {
  JsonWriter json;
  json.begin_object();
  json.key("schema").string("lading.load/1");
  json.key("lading").string(kVersion);
  json.key("ok").boolean(false);
  json.key("incomplete").boolean(failure.begun);
  write_errors(json, "problems", failure.problems);
  json.end_object();
  return json.take();
}

}  // namespace lading::cli
