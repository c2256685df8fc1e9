#include "lading/help.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "base/near_names.h"
#include "base/text.h"
#include "lading/error.h"
#include "manual/pages.h"

namespace lading {
namespace {

constexpr std::size_t kWidth = 80;

constexpr std::array kCodeWords = {
#define LADING_ROW(enumerator, word, exit_code) std::pair<std::string_view, Exit>{word, Exit::exit_code},
    LADING_ERROR_CODES(LADING_ROW)
#undef LADING_ROW
};

std::array<manual::Page, 4> manual_pages() {
  return {{{"docs/error-codes.md", TopicKind::kErrorCode, manual::kErrorCodesPage},
           {"docs/contract.md", TopicKind::kRule, manual::kContractPage},
           {"docs/exit-codes.md", TopicKind::kExitCode, manual::kExitCodesPage},
           {"docs/policy-words.md", TopicKind::kPolicyWord, manual::kPolicyWordsPage}}};
}

// The code's exit code stands in error.h alone, unless it depends on who tells the code: then the page says it.
void add_exit_code(HelpTopic& topic) {
  if (!topic.parts.empty() && topic.parts.back().label == "Exit code") return;
  for (const auto& [word, exit_code] : kCodeWords) {
    if (word != topic.name) continue;
    const bool may_be_later = exit_code == Exit::kCheckpoint || exit_code == Exit::kPlan;
    topic.parts.push_back({"Exit code", fmt::format("{}{}.", static_cast<int>(exit_code),
                                                    may_be_later ? ", or 5 once a load has begun" : "")});
  }
}

// Lines of at most kWidth characters; those after the first begin with `indent`.
std::string wrapped(std::string_view text, std::string_view indent) {
  std::string out;
  std::size_t width = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    const std::string_view one = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (one.empty()) continue;
    if (width > 0 && width + 1 + one.size() > kWidth) {
      out += "\n";
      out += indent;
      width = indent.size();
    } else if (width > 0) {
      out += " ";
      ++width;
    }
    out += one;
    width += one.size();
  }
  return out + "\n";
}

// "[Header_Overlap]," is header_overlap, and "exit code 3" is exit 3.
std::string plain_name(std::string_view topic) {
  constexpr std::string_view kAround = " \t\n[](){}`'\",.:;=";
  const std::size_t begin = topic.find_first_not_of(kAround);
  if (begin == std::string_view::npos) return "";
  topic = topic.substr(begin, topic.find_last_not_of(kAround) - begin + 1);
  std::string name(topic);
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (name.starts_with("exit code ")) name.erase(4, 5);
  if (name.size() == 1 && name[0] >= '0' && name[0] <= '9') name.insert(0, "exit ");
  return name;
}

// A rule's name has a capital letter, the others none.
bool is_called(const HelpTopic& topic, std::string_view name) {
  return std::equal(topic.name.begin(), topic.name.end(), name.begin(), name.end(),
                    [](unsigned char a, unsigned char b) { return std::tolower(a) == static_cast<int>(b); });
}

std::string_view heading_of(TopicKind kind) {
  switch (kind) {
    case TopicKind::kErrorCode: return "Error codes";
    case TopicKind::kRule: return "Rules of the contract";
    case TopicKind::kExitCode: return "Exit codes";
    case TopicKind::kPolicyWord: return "Words of a policy";
  }
  return "";
}

}  // namespace

std::string_view word(TopicKind kind) {
  switch (kind) {
    case TopicKind::kErrorCode: return "error code";
    case TopicKind::kRule: return "rule";
    case TopicKind::kExitCode: return "exit code";
    case TopicKind::kPolicyWord: return "policy word";
  }
  return "";
}

std::string HelpTopic::summary() const {
  return meaning.substr(0, std::min(meaning.find(". "), meaning.size() - 1)) + ".";
}

std::string HelpTopic::text() const {
  const std::string_view said = kind == TopicKind::kExitCode ? "" : word(kind);
  std::string out = said.empty() ? name + "\n\n" : fmt::format("{} ({})\n\n", name, said);
  out += wrapped(meaning, "");
  for (const HelpPart& part : parts) out += "\n" + wrapped(fmt::format("{}: {}", part.label, part.text), "");
  return out + fmt::format("\nPage: {}\n", page);
}

std::vector<HelpTopic> help_topics() {
  std::vector<HelpTopic> all;
  for (const manual::Page& page : manual_pages()) {
    for (HelpTopic& topic : manual::read_page(page)) {
      if (page.kind == TopicKind::kErrorCode) add_exit_code(topic);
      all.push_back(std::move(topic));
    }
  }
  return all;
}

Result<std::vector<HelpTopic>> help(std::string_view topic) {
  const std::string name = plain_name(topic);
  std::vector<HelpTopic> all = help_topics();
  std::vector<HelpTopic> found;
  std::vector<std::string_view> names;
  for (HelpTopic& one : all) {
    if (is_called(one, name)) {
      found.push_back(std::move(one));
    } else {
      names.push_back(one.name);
    }
  }
  if (!found.empty()) return found;
  const std::vector<std::string> near = near_names(names, name);
  return fail(Error(Code::kUsage, "there is no such help topic")
                  .got(quote(topic))
                  .try_this(near.empty() ? "Run `lading help` to list all topics."
                                         : fmt::format("Ask for one of these: {}.", fmt::join(near, ", "))));
}

std::string help_text(const std::vector<HelpTopic>& topics) {
  std::string out;
  for (const HelpTopic& topic : topics) out += (out.empty() ? "" : "\n") + topic.text();
  return out;
}

std::string help_overview() {
  std::string out;
  const std::vector<HelpTopic> all = help_topics();
  for (std::size_t i = 0; i < all.size();) {
    const bool is_first = i == 0 || all[i].kind != all[i - 1].kind;
    if (is_first) out += fmt::format("{}{}\n", i == 0 ? "" : "\n", heading_of(all[i].kind));
    const std::string& group = all[i].group;
    std::string names;
    const TopicKind kind = all[i].kind;
    for (; i < all.size() && all[i].kind == kind && all[i].group == group; ++i) {
      names += fmt::format("{}{}", names.empty() ? "" : ", ", all[i].name);
    }
    out += "  " + wrapped(group.empty() ? names : fmt::format("{}: {}", group, names), "    ");
  }
  return out;
}

}  // namespace lading
