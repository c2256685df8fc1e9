// The pages of docs that `lading help` shows, as texts in the library. Pure.
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "lading/help.h"

namespace lading::manual {

// Defined in manual_pages.cc, which the build writes (cmake/manual_pages.cmake).
extern const std::string_view kContractPage;
extern const std::string_view kErrorCodesPage;
extern const std::string_view kExitCodesPage;
extern const std::string_view kPolicyWordsPage;

struct Page {
  std::string_view file;  // "docs/contract.md"
  TopicKind kind = TopicKind::kErrorCode;
  std::string_view text;
};

/// The topics of a page: its sections of the third level. "### budget, budget_bytes" is two topics.
[[nodiscard]] std::vector<HelpTopic> read_page(const Page& page);

}  // namespace lading::manual
