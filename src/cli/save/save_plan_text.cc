#include "cli/save/save_plan_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "cli/columns.h"
#include "cli/style.h"

namespace lading::cli {

std::string save_plan_text(const SavePlanReport& report, Colour colour) {
  const Style style(colour);
  std::string out =
      fmt::format("{}: {} from {}{} to {}, one writer for each byte, proved: {}\n", style.green("accepted"),
                  plural(report.keys.size(), "key"), plural(report.mesh.ranks(), "rank"),
                  report.mesh.axes().empty() ? "" : fmt::format(" ({})", escape(report.mesh.text())),
                  plural(report.files.size(), "file"), human_bytes(report.bytes_proved));
  out += style.dim(fmt::format("digest {}\n", report.digest));
  std::size_t width = 4;
  for (const SavedFile& file : report.files) width = std::max(width, width_of(shown_name(file.name)));
  out +=
      "\n" + style.bold(fmt::format("  rank  {}       bytes      runs  from byte to byte", pad("file", width))) + "\n";
  for (const FileShare& share : report.shares) {
    out += fmt::format("  {:>4}  {} {:>11} {:>9}  {} to {}\n", share.rank,
                       pad(shown_name(report.files[share.file].name), width), human_bytes(share.bytes),
                       with_commas(share.runs), share.span.begin, share.span.end);
  }
  return out;
}

}  // namespace lading::cli
