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
constexpr std::size_t kMostListed = 4;  // numbers and ranges at one place
constexpr std::size_t kMostSplit = 6;   // places with numbers that differ

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

// A number as it is written: 1 and 01 are two.
struct Written {
  std::size_t zeros_width = 0;  // of one that begins with zeros, among numbers of several widths
  std::uint64_t value = 0;
  std::string_view text;

  auto operator<=>(const Written&) const = default;  // NOLINT(modernize-use-nullptr)
};

// Whether a range from one to the other has just these two.
bool are_in_a_row(const Written& a, const Written& b) {
  return a.zeros_width == b.zeros_width && a.value + 1 == b.value && is_digit(a.text[0]) && is_digit(b.text[0]);
}

std::vector<Written> in_order(std::span<const std::string_view> numbers) {
  const bool is_one_width = std::all_of(numbers.begin(), numbers.end(),
                                        [&](std::string_view one) { return one.size() == numbers.front().size(); });
  std::set<Written> out;
  for (const std::string_view number : numbers) {
    Written one{.text = number};
    if (number[0] == kNumber) one.zeros_width = kMostDigits + 1;
    if (number[0] == '0' && number.size() > 1 && !is_one_width) one.zeros_width = number.size();
    std::from_chars(number.data(), number.data() + number.size(), one.value);
    out.insert(one);
  }
  return {out.begin(), out.end()};
}

// Numbers that stand at one place.
std::string range_text(const std::vector<std::string_view>& numbers) {
  const std::vector<Written> written = in_order(numbers);
  if (written.size() == 1) return std::string(written[0].text);
  std::string out;
  std::size_t listed = 0;
  for (std::size_t i = 0; i < written.size(); ++listed) {
    std::size_t last = i;
    while (last + 1 < written.size() && are_in_a_row(written[last], written[last + 1])) ++last;
    if (last - i < 2) last = i;  // two in a row are no range
    out += fmt::format("{}{}", out.empty() ? "{" : ",", written[i].text);
    if (last > i) out += fmt::format("..{}", written[last].text);
    i = last + 1;
  }
  return listed > kMostListed ? "*" : out + "}";
}

using Members = std::vector<const Numbered*>;

std::vector<std::string_view> column_of(const Members& members, std::size_t column) {
  std::vector<std::string_view> out;
  for (const Numbered* member : members) out.push_back(member->numbers[column]);
  return out;
}

// A text without numbers, with the numbers that its members have there, or "*" in these columns.
std::string render(std::string_view text, const Members& members, const std::set<std::size_t>& starred = {}) {
  std::string out;
  std::size_t next = 0;
  for (const char c : text) {
    if (c != kNumber) {
      out += c;
      continue;
    }
    out += starred.contains(next) ? "*" : range_text(column_of(members, next));
    ++next;
  }
  return out;
}

std::set<std::size_t> varying_columns(const Members& members, std::size_t columns) {
  std::set<std::size_t> out;
  for (std::size_t column = 0; column < columns; ++column) {
    const std::string_view first = members.front()->numbers[column];
    if (std::any_of(members.begin(), members.end(), [&](const Numbered* one) { return one->numbers[column] != first; }))
      out.insert(column);
  }
  return out;
}

// The members, by what the numbers in a column go with in the others. One class: with the same everywhere. The members
// are the product of their columns if that is true of every column.
std::vector<std::vector<std::size_t>> classes_of(const Members& members, std::size_t column,
                                                 const std::set<std::size_t>& varying) {
  std::map<std::string_view, std::set<std::vector<std::string_view>>> others;
  std::map<std::string_view, std::vector<std::size_t>> places;
  for (std::size_t i = 0; i < members.size(); ++i) {
    std::vector<std::string_view> rest;
    for (const std::size_t other : varying) {
      if (other != column) rest.push_back(members[i]->numbers[other]);
    }
    others[members[i]->numbers[column]].insert(std::move(rest));
    places[members[i]->numbers[column]].push_back(i);
  }
  std::map<std::set<std::vector<std::string_view>>, std::vector<std::size_t>> classes;
  for (auto& [number, rest] : others) {
    std::vector<std::size_t>& one = classes[rest];
    one.insert(one.end(), places[number].begin(), places[number].end());
  }
  std::vector<std::vector<std::size_t>> out;
  out.reserve(classes.size());
  for (auto& [rest, one] : classes) out.push_back(std::move(one));
  return out;
}

struct Split {
  std::set<std::size_t> dependent;               // columns whose numbers do not go with all of the others
  std::vector<std::vector<std::size_t>> pieces;  // by the column that has the fewest; one piece: it is a product
};

Split split(const Members& members, std::size_t columns) {
  Split out;
  const std::set<std::size_t> varying = varying_columns(members, columns);
  if (varying.size() > kMostSplit) return {varying, {}};
  for (const std::size_t column : varying) {
    auto classes = classes_of(members, column, varying);
    if (classes.size() == 1) continue;
    out.dependent.insert(column);
    if (out.pieces.empty() || classes.size() < out.pieces.size()) out.pieces = std::move(classes);
  }
  return out;
}

// Patterns of names with this beginning, none of which stands for a name that is not among them; no more than `most`,
// otherwise one with "*".
std::vector<NamePatternCount> patterns_of(std::string_view text, std::string_view tail, const Members& all,
                                          const std::vector<std::size_t>& members, std::size_t most) {
  Members own;
  for (const std::size_t i : members) own.push_back(all[i]);
  const auto columns = static_cast<std::size_t>(std::count(text.begin(), text.end(), kNumber));
  const Split found = split(own, columns);
  std::vector<NamePatternCount> out;
  for (const std::vector<std::size_t>& piece : found.pieces) {
    if (found.pieces.size() > most) break;
    std::vector<std::size_t> places;
    places.reserve(piece.size());
    for (const std::size_t i : piece) places.push_back(members[i]);
    std::sort(places.begin(), places.end());
    for (NamePatternCount& one : patterns_of(text, tail, all, places, most)) out.push_back(std::move(one));
  }
  if (!out.empty() && out.size() <= most) return out;
  return {{fmt::format("{}{}", render(text, own, found.dependent), tail), members}};
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
  Members members;
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
  Members all;
  for (const Numbered& one : apart) all.push_back(&one);
  std::vector<NamePatternCount> out;
  std::size_t to_come = groups.size();
  for (const auto& [text, members] : groups) {
    --to_come;
    const std::string_view first = apart[members.front()].text;
    const bool is_one =
        std::all_of(members.begin(), members.end(), [&](std::size_t i) { return apart[i].text == first; });
    const std::size_t room = std::max(most, out.size() + to_come + 1) - out.size() - to_come;
    for (NamePatternCount& one : patterns_of(is_one ? first : text, is_one ? "" : ".*", all, members, room))
      out.push_back(std::move(one));
  }
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.members.front() < b.members.front(); });
  return out;
}

}  // namespace lading
