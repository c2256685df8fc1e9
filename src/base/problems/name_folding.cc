#include "base/problems/name_folding.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <map>
#include <set>

namespace lading {
namespace {

constexpr char kNumber = '\x01';        // in place of a number; no name that is worth folding has one
constexpr std::size_t kMostDigits = 9;  // longer ones are hashes and the like
constexpr std::size_t kMostListed = 4;  // numbers that are not in a row

bool is_digit(char c) { return c >= '0' && c <= '9'; }

struct Numbered {
  std::string text;                       // without numbers
  std::vector<std::string_view> numbers;  // as written
};

Numbered take_apart(std::string_view text) {
  Numbered out;
  for (std::size_t i = 0; i < text.size();) {
    std::size_t end = i;
    while (end < text.size() && is_digit(text[end])) ++end;
    if (end == i && text[i] == kNumber) end = i + 1;  // the mark itself, in a name of somebody's: counts as a number
    if (end == i) {
      out.text += text[i++];
      continue;
    }
    if (end - i <= kMostDigits) {
      out.text += kNumber;
      out.numbers.push_back(text.substr(i, end - i));
    } else {
      out.text += text.substr(i, end - i);
    }
    i = end;
  }
  return out;
}

// Numbers that stand at one place.
std::string range_text(const std::vector<std::string_view>& numbers) {
  std::map<std::uint64_t, std::string_view> values;
  for (const std::string_view number : numbers) {
    std::uint64_t value = 0;
    std::from_chars(number.data(), number.data() + number.size(), value);
    values.emplace(value, number);
  }
  if (values.size() == 1) return std::string(values.begin()->second);
  if (values.size() > 2 && values.rbegin()->first - values.begin()->first + 1 == values.size())
    return fmt::format("{{{}..{}}}", values.begin()->second, values.rbegin()->second);
  if (values.size() > kMostListed) return "*";
  std::string out;
  for (const auto& [value, number] : values) out += (out.empty() ? "{" : ",") + std::string(number);
  return out + "}";
}

// The first `size` characters of a text without numbers, with the numbers that its members have there.
std::string render(std::string_view text, const std::vector<const Numbered*>& members) {
  std::string out;
  std::size_t next = 0;
  for (const char c : text) {
    if (c != kNumber) {
      out += c;
      continue;
    }
    std::vector<std::string_view> column;
    for (const Numbered* member : members) column.push_back(member->numbers[next]);
    out += range_text(column);
    ++next;
  }
  return out;
}

// Where the first `components` components end.
std::size_t end_of(std::string_view text, std::size_t components) {
  std::size_t end = 0;
  for (std::size_t i = 0; i < components; ++i) {
    end = text.find('.', i == 0 ? 0 : end + 1);
    if (end == std::string_view::npos) return text.size();
  }
  return end;
}

}  // namespace

std::string without_numbers(std::string_view text) { return take_apart(text).text; }

std::string merged(std::span<const std::string_view> texts) {
  std::vector<Numbered> apart;
  for (const std::string_view text : texts) apart.push_back(take_apart(text));
  std::vector<const Numbered*> members;
  for (const Numbered& one : apart) members.push_back(&one);
  return apart.empty() ? "" : render(apart.front().text, members);
}

std::vector<NamePatternCount> fold_names(std::span<const std::string_view> names, std::size_t most) {
  std::vector<Numbered> apart;
  std::size_t depth = 1;
  for (const std::string_view name : names) {
    apart.push_back(take_apart(name));
    depth = std::max(depth,
                     1 + static_cast<std::size_t>(std::count(apart.back().text.begin(), apart.back().text.end(), '.')));
  }
  std::map<std::string_view, std::vector<std::size_t>> groups;
  for (std::size_t components = depth; components > 0; --components) {
    std::map<std::string_view, std::vector<std::size_t>> shorter;
    for (std::size_t i = 0; i < apart.size(); ++i) {
      const std::string_view text = apart[i].text;
      shorter[text.substr(0, end_of(text, components))].push_back(i);
    }
    const bool is_better = groups.empty() || shorter.size() < groups.size();
    if (is_better) groups = std::move(shorter);
    if (groups.size() <= most) break;
  }
  std::vector<NamePatternCount> out;
  for (auto& [text, members] : groups) {
    std::vector<const Numbered*> of_group;
    std::set<std::string_view> texts;
    for (const std::size_t i : members) {
      of_group.push_back(&apart[i]);
      texts.insert(apart[i].text);
    }
    std::string pattern = texts.size() == 1 ? render(*texts.begin(), of_group) : render(text, of_group) + ".*";
    out.push_back({std::move(pattern), std::move(members)});
  }
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.members.front() < b.members.front(); });
  return out;
}

}  // namespace lading
