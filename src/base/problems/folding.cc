#include "base/problems/folding.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "base/problems/name_folding.h"
#include "base/text.h"

namespace lading {
namespace {

constexpr std::size_t kFewest = 4;        // of one kind: fewer are listed one by one
constexpr std::size_t kMostPatterns = 8;  // of one kind

using Group = std::vector<const ReadableProblem*>;

std::string_view shown_remedy(const ReadableProblem& problem) {
  const bool is_front = problem.code != word(problem.error->code);
  return remedy_of(*problem.error, is_front ? Remedies::kOwn : problem.remedies);
}

std::string compared(std::string_view expected, std::string_view found) {
  std::string out;
  if (!expected.empty()) out += fmt::format("; expected {}", expected);
  if (!found.empty()) out += fmt::format("{} found {}", expected.empty() ? ";" : ",", found);
  return out;
}

std::string tag_and_remedy(const ReadableProblem& problem, std::string_view remedy) {
  const std::string& rule = problem.error->rule;
  std::string out = rule.empty() ? fmt::format(" [{}]", problem.code) : fmt::format(" [{}, {}]", problem.code, rule);
  if (!remedy.empty()) out += fmt::format(". {}", remedy);
  return out;
}

// What people would call the same problem, of other tensors, files or ranks.
auto kind_of(const ReadableProblem& problem) {
  const Error& error = *problem.error;
  return std::tuple(problem.code, std::string_view(error.rule), error.tensor.has_value(), error.file.empty(),
                    without_numbers(error.message), without_numbers(shown_remedy(problem)));
}

template <class Get>
std::vector<std::string_view> texts_of(const Group& group, const Get& get) {
  std::vector<std::string_view> texts;
  for (const ReadableProblem* problem : group) texts.push_back(get(*problem->error));
  return texts;
}

// One text for all, if they differ in nothing but numbers.
std::string common(const std::vector<std::string_view>& texts) {
  const std::string first = without_numbers(texts.front());
  const bool is_one =
      std::all_of(texts.begin(), texts.end(), [&](std::string_view text) { return without_numbers(text) == first; });
  return is_one ? merged(texts) : "";
}

std::string common_comparison(const Group& group) {
  const auto expected = texts_of(group, [](const Error& error) { return std::string_view(error.expected); });
  const auto found = texts_of(group, [](const Error& error) { return std::string_view(error.found); });
  return compared(common(expected), common(found));
}

std::string common_tag_and_remedy(const Group& group) {
  std::vector<std::string_view> remedies;
  for (const ReadableProblem* problem : group) remedies.push_back(shown_remedy(*problem));
  return tag_and_remedy(*group.front(), common(remedies));
}

std::string ranks_text(const Group& group) {
  std::vector<std::string> numbers;
  for (const ReadableProblem* problem : group) {
    if (!problem->error->rank) return "";
    numbers.push_back(std::to_string(*problem->error->rank));
  }
  const std::vector<std::string_view> views(numbers.begin(), numbers.end());
  const bool is_one = std::all_of(views.begin(), views.end(), [&](std::string_view rank) { return rank == views[0]; });
  return fmt::format("{} {}: ", is_one ? "rank" : "ranks", merged(views));
}

std::vector<std::string> lines_of(const Group& group) {
  const bool by_tensor = group.front()->error->tensor.has_value();
  const auto files = texts_of(group, [](const Error& error) { return std::string_view(error.file); });
  const auto names =
      by_tensor ? texts_of(group, [](const Error& error) { return std::string_view(*error.tensor); }) : files;
  std::string head = ranks_text(group);
  if (by_tensor && !files.front().empty()) {
    const std::string file = common(files);
    if (!file.empty()) head += escape(file) + ": ";
  }
  std::string message = common(texts_of(group, [](const Error& error) { return std::string_view(error.message); }));
  if (names.front().empty() && !by_tensor) {
    return {fmt::format("{}{} times: {}{}{}", head, group.size(), message, common_comparison(group),
                        common_tag_and_remedy(group))};
  }
  const std::string_view what = by_tensor ? "tensors" : "files";
  const std::vector<NamePatternCount> patterns = fold_names(names, kMostPatterns);
  if (patterns.size() == 1) {
    return {fmt::format("{}{} {} {}: {}{}{}", head, group.size(), what, quote(patterns[0].pattern), message,
                        common_comparison(group), common_tag_and_remedy(group))};
  }
  const std::string for_all = common_comparison(group);
  std::vector<std::string> lines = {
      fmt::format("{}{} {}: {}{}{}", head, group.size(), what, message, for_all, common_tag_and_remedy(group))};
  std::size_t left = group.size();
  for (std::size_t i = 0; i < patterns.size() && i < kMostPatterns; ++i) {
    Group members;
    for (const std::size_t member : patterns[i].members) members.push_back(group[member]);
    const std::string own = for_all.empty() ? common_comparison(members) : "";
    const std::string count = members.size() == 1 ? "" : fmt::format(" ({})", members.size());
    lines.push_back(fmt::format("  {}{}{}", quote(patterns[i].pattern), count, own));
    left -= members.size();
  }
  if (left > 0) lines.push_back(fmt::format("  and {} more", with_commas(left)));
  return lines;
}

}  // namespace

std::string problem_text(const ReadableProblem& problem) {
  const Error& error = *problem.error;
  std::string out;
  if (error.rank) out += fmt::format("rank {}: ", *error.rank);
  if (!error.file.empty()) out += escape(error.file) + ": ";
  if (error.tensor) out += fmt::format("tensor {}: ", quote(*error.tensor));
  if (error.bytes) {
    out += error.bytes->size_bytes() > 1 ? fmt::format("bytes {} to {}: ", error.bytes->begin, error.bytes->end)
                                         : fmt::format("byte {}: ", error.bytes->begin);
  }
  return out + error.message + compared(error.expected, error.found) + tag_and_remedy(problem, shown_remedy(problem));
}

std::vector<std::string> folded(std::span<const ReadableProblem> problems) {
  std::map<decltype(kind_of(problems.front())), std::size_t> places;
  std::vector<Group> groups;
  std::vector<std::size_t> group_of;
  for (const ReadableProblem& problem : problems) {
    const auto [place, is_new] = places.emplace(kind_of(problem), groups.size());
    if (is_new) groups.emplace_back();
    groups[place->second].push_back(&problem);
    group_of.push_back(place->second);
  }
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < problems.size(); ++i) {
    const Group& group = groups[group_of[i]];
    if (group.size() < kFewest) {
      lines.push_back(problem_text(problems[i]));
    } else if (group.front() == &problems[i]) {
      for (std::string& line : lines_of(group)) lines.push_back(std::move(line));
    }
  }
  return lines;
}

std::vector<std::string> folded(const Errors& errors, Remedies remedies) {
  std::vector<ReadableProblem> problems;
  for (const Error& error : errors) problems.push_back({&error, word(error.code), remedies});
  return folded(problems);
}

}  // namespace lading
