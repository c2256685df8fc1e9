#include "api/layout_words.h"

#include <utility>

#include "api/refuse.h"

namespace lading {
namespace {

class WordReader {
 public:
  explicit WordReader(const LayoutWords& words) : words_(words) {}

  Result<LayoutChoice, Errors> run() {
    const bool names_strategy = !words_.mesh.empty() || !words_.strategy.empty() || !words_.tp_plan.empty() ||
                                !words_.device.empty() || words_.devices_per_node;
    if (words_.layout && names_strategy) {
      return fail(
          Errors(usage("a layout cannot be combined with a mesh, a strategy, a tensor-parallel plan or a device, "
                       "because it contains them")
                     .try_this("Omit them, or the layout.")));
    }
    if (words_.layout) return LayoutChoice(*words_.layout);
    layout::ByStrategy made;
    if (!words_.mesh.empty() && words_.strategy.empty()) {
      errors_.add(usage("a mesh needs a strategy")
                      .wanted("single, ddp, fsdp2, hsdp, tp, fsdp2+tp or zero3")
                      .try_this("Add a strategy."));
    }
    if (!words_.mesh.empty()) take(layout::parse_mesh(words_.mesh), made.mesh, errors_);
    if (!words_.strategy.empty()) take(layout::parse_strategy(words_.strategy), made.strategy, errors_);
    if (!words_.device.empty()) take(layout::parse_device_choice(words_.device), made.device, errors_);
    made.device.per_node = words_.devices_per_node;
    for (const auto& [pattern, style] : words_.tp_plan) {
      layout::TpRule& rule = made.tp_plan.emplace_back();
      rule.pattern = pattern;
      take(layout::parse_tp_style(style), rule.style, errors_);
    }
    if (!errors_.empty()) return fail(std::move(errors_));
    return LayoutChoice(std::move(made));
  }

 private:
  const LayoutWords& words_;
  Errors errors_;
};

}  // namespace

Result<LayoutChoice, Errors> layout_of(const LayoutWords& words) { return WordReader(words).run(); }

}  // namespace lading
