#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>

#include "base/text.h"
#include "cli/columns.h"
#include "cli/plan_output.h"
#include "cli/style.h"

namespace lading::cli {
namespace {

constexpr std::size_t kKeysShown = 10;
constexpr std::size_t kChangesShown = 200;

class PlanPage {
 public:
  PlanPage(const PlanReport& report, Colour colour) : report_(report), style_(colour) {}

  std::string render(ListTensors list) {
    summary();
    provenances();
    if (report_.ranks.size() == 1) {
      one_rank(report_.ranks.front());
    } else {
      all_ranks();
    }
    keys();
    if (list == ListTensors::kYes) tensors();
    return std::move(out_);
  }

 private:
  void line(const std::string& text) { out_ += text + "\n"; }
  void heading(std::string_view text) { line("\n" + style_.bold(text)); }

  void summary() {
    line(style_.bold(shorten(report_.path)));
    const std::string mesh = report_.mesh.axes().empty() ? "" : fmt::format(" ({})", escape(report_.mesh.text()));
    const std::string proved = report_.ranks.size() == 1 ? fmt::format("rank {}", report_.ranks.front().rank)
                                                         : plural(report_.ranks.size(), "rank");
    line(fmt::format("{}: {} on {}{}, proved byte by byte for {}: {}", style_.green("accepted"),
                     plural(report_.tensors.size(), "tensor"), plural(report_.rank_count, "rank"), mesh, proved,
                     human_bytes(report_.bytes_proved)));
    line(style_.dim(fmt::format("digest {}", report_.digest)));
    if (report_.unread_bytes.value_or(0) > 0) {
      line(style_.yellow(
          fmt::format("no requested rank reads {} bytes of the checkpoint", with_commas(*report_.unread_bytes))));
    }
  }

  void provenances() {
    std::map<std::string, std::uint64_t> counts;
    for (const PlannedTensor& tensor : report_.tensors) counts[std::string(word(tensor.provenance))] += 1;
    if (counts.empty()) return;
    heading("Sources");
    for (const auto& [word, count] : counts) line(fmt::format("  {} {:>16}", pad(word, 8), plural(count, "tensor")));
    if (report_.dequantized > 0) line(fmt::format("  {} dequantized", plural(report_.dequantized, "quantized tensor")));
  }

  // The host holds its buffers and the staging memory; a device only its buffers.
  static std::map<layout::Device, std::uint64_t> peaks(const RankTotals& rank) {
    std::map<layout::Device, std::uint64_t> peak(rank.device_bytes.begin(), rank.device_bytes.end());
    if (rank.staging_bytes > 0) peak[layout::Device{}] += rank.staging_bytes;
    return peak;
  }

  void one_rank(const RankTotals& rank) {
    heading(fmt::format("Rank {}", rank.rank));
    const auto row = [&](std::string_view label, std::uint64_t bytes) {
      line(fmt::format("  {} {:>10}", pad(label, 14), human_bytes(bytes)));
    };
    row("read", rank.read_bytes);
    row("owned", rank.owned_bytes);
    row("staging", rank.staging_bytes);
    if (rank.flat_parameter_gap_bytes > 0) row("left as it is", rank.flat_parameter_gap_bytes);
    for (const auto& [device, bytes] : peaks(rank)) row(fmt::format("peak {}", device.text()), bytes);
  }

  void all_ranks() {
    if (report_.ranks.empty()) return;
    heading("Ranks                  least       most       mean  most on");
    const auto row = [&](std::string_view label, const std::function<std::uint64_t(const RankTotals&)>& of) {
      std::uint64_t least = of(report_.ranks.front());
      std::uint64_t most = 0;
      std::uint64_t most_on = report_.ranks.front().rank;
      double sum = 0;
      for (const RankTotals& rank : report_.ranks) {
        const std::uint64_t bytes = of(rank);
        least = std::min(least, bytes);
        sum += static_cast<double>(bytes);
        if (bytes > most) {
          most = bytes;
          most_on = rank.rank;
        }
      }
      const auto mean = static_cast<std::uint64_t>(sum / static_cast<double>(report_.ranks.size()));
      line(fmt::format("  {} {:>10} {:>10} {:>10}  {}", pad(label, 14), human_bytes(least), human_bytes(most),
                       human_bytes(mean), least == most ? "all alike" : fmt::format("rank {}", most_on)));
    };
    row("read", [](const RankTotals& rank) { return rank.read_bytes; });
    row("owned", [](const RankTotals& rank) { return rank.owned_bytes; });
    row("staging", [](const RankTotals& rank) { return rank.staging_bytes; });
    row("peak host", [](const RankTotals& rank) {
      const auto peak = peaks(rank);
      const auto host = peak.find(layout::Device{});
      return host == peak.end() ? 0 : host->second;
    });
    const auto on_devices = [](const RankTotals& rank) {
      std::uint64_t bytes = 0;
      for (const auto& [device, device_bytes] : rank.device_bytes)
        bytes += device == layout::Device{} ? 0 : device_bytes;
      return bytes;
    };
    const bool any = std::any_of(report_.ranks.begin(), report_.ranks.end(),
                                 [&](const RankTotals& rank) { return on_devices(rank) > 0; });
    if (any) row("peak device", on_devices);
  }

  void keys() {
    if (!report_.ignored_keys.empty()) {
      heading(fmt::format("Ignored: {}", plural(report_.ignored_keys.size(), "key")));
      for (std::size_t i = 0; i < std::min(kKeysShown, report_.ignored_keys.size()); ++i) {
        const auto& [key, rule] = report_.ignored_keys[i];
        line(fmt::format("  {}  {}", shown_name(key), style_.dim(shorten(rule))));
      }
      more(report_.ignored_keys.size());
    }
    if (!report_.unexpected_keys.empty()) {
      heading(fmt::format("Unexpected, allowed, not read: {}", plural(report_.unexpected_keys.size(), "key")));
      for (std::size_t i = 0; i < std::min(kKeysShown, report_.unexpected_keys.size()); ++i) {
        line("  " + shown_name(report_.unexpected_keys[i]));
      }
      more(report_.unexpected_keys.size());
    }
  }

  void more(std::size_t count) {
    if (count > kKeysShown)
      line(style_.dim(fmt::format("  … {} more; --json has all", with_commas(count - kKeysShown))));
  }

  void tensors() {
    heading(report_.ranks.empty() ? "Tensors" : fmt::format("Tensors, on rank {}", report_.ranks.front().rank));
    for (const PlannedTensor& tensor : report_.tensors) {
      line(fmt::format("  {:>9}  {} {} {}  {}", human_bytes(tensor.local_bytes), pad(name(tensor.storage), 8),
                       pad(std::string(word(tensor.provenance)), 6), pad(tensor.shape.text(), 20),
                       shown_name(tensor.name)));
    }
  }

  const PlanReport& report_;
  Style style_;
  std::string out_;
};

std::string change_line(const PlanChange& change, const Style& style) {
  const std::string name = change.name.empty() ? "" : " " + shown_name(change.name);
  const std::string subject = std::string(word(change.section)) + name;
  if (change.field.empty()) {
    return change.after ? style.green("+ " + subject) : style.red("- " + subject);
  }
  return fmt::format("~ {}: {}: {} -> {}", subject, shorten(change.field),
                     change.before ? shown_json(*change.before) : "nothing",
                     change.after ? shown_json(*change.after) : "nothing");
}

}  // namespace

std::string plan_text(const PlanReport& report, ListTensors list, Colour colour) {
  return PlanPage(report, colour).render(list);
}

std::string explanation_text(const std::vector<ExplainedFact>& facts, Colour colour) {
  const Style style(colour);
  std::string out;
  std::string_view topic;
  for (const ExplainedFact& fact : facts) {
    const std::string label = fact.topic == topic ? std::string(11, ' ') : style.bold(pad(fact.topic, 11));
    topic = fact.topic;
    out += fmt::format("{} {}\n", label, fact.text);
  }
  return out;
}

std::string difference_text(const PlanDifference& difference, Colour colour) {
  const Style style(colour);
  std::string out;
  const std::size_t shown = std::min(kChangesShown, difference.changes.size());
  for (std::size_t i = 0; i < shown; ++i) out += change_line(difference.changes[i], style) + "\n";
  if (difference.changes.size() > shown) {
    out += style.dim(fmt::format("… {} more; --json has all\n", with_commas(difference.changes.size() - shown)));
  }
  if (difference.changes.empty()) out += "the plans are equal\n";
  if (!difference.ranks_not_compared.empty()) {
    out += style.dim(fmt::format("{} in one of the plans only: not compared\n",
                                 plural(difference.ranks_not_compared.size(), "rank")));
  }
  return out;
}

}  // namespace lading::cli
