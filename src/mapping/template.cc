#include "mapping/template.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"

namespace lading::mapping {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_variable_name(std::string_view name) {
  return !name.empty() && !is_digit(name.front()) && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '_';
  });
}

Error bad_template(std::string_view text, std::string message) {
  return Error(Code::kMapping, fmt::format("the template {}: {}", quote(text), message));
}

void append_escaped(std::string& out, std::string_view literal) {
  for (const char c : literal) {
    out += c;
    if (c == '{' || c == '}') out += c;
  }
}

const std::string* find_binding(const Bindings& bindings, std::string_view variable) {
  const auto found =
      std::find_if(bindings.begin(), bindings.end(), [&](const auto& binding) { return binding.first == variable; });
  return found == bindings.end() ? nullptr : &found->second;
}

}  // namespace

NameTemplate NameTemplate::literal(std::string name) {
  NameTemplate result;
  result.prefix_ = std::move(name);
  return result;
}

Result<NameTemplate> NameTemplate::parse(std::string_view text) {
  NameTemplate result;
  if (text.empty()) return fail(bad_template(text, "the name is empty"));
  for (std::size_t i = 0; i < text.size();) {
    std::string& literal = result.steps_.empty() ? result.prefix_ : result.steps_.back().literal;
    const char c = text[i];
    if ((c == '{' || c == '}') && i + 1 < text.size() && text[i + 1] == c) {
      literal += c;
      i += 2;
      continue;
    }
    if (c == '}')
      return fail(bad_template(text, "\"}\" closes nothing").try_this("Write a brace in a name as \"}}\"."));
    if (c != '{') {
      // Digits beside a variable would leave open where its number ends.
      if (is_digit(c) && literal.empty() && !result.steps_.empty())
        return fail(bad_template(text, "a digit follows a variable directly"));
      literal += c;
      ++i;
      continue;
    }
    const std::size_t close = text.find('}', i);
    const std::string_view name = close == std::string_view::npos ? "" : text.substr(i + 1, close - i - 1);
    if (!is_variable_name(name)) {
      return fail(bad_template(text, "\"{\" does not begin a variable")
                      .wanted("letters, digits and \"_\" in braces, such as {layer}")
                      .try_this("Write a brace in a name as \"{{\"."));
    }
    const bool touches = literal.empty() ? !result.steps_.empty() : is_digit(literal.back());
    if (touches) return fail(bad_template(text, "a variable follows a digit or another variable directly"));
    result.steps_.push_back({std::string(name), ""});
    i = close + 1;
  }
  return result;
}

std::vector<std::string> NameTemplate::variables() const {
  std::vector<std::string> names;
  for (const Step& step : steps_) {
    if (std::find(names.begin(), names.end(), step.variable) == names.end()) names.push_back(step.variable);
  }
  return names;
}

std::optional<Bindings> NameTemplate::match(std::string_view name) const {
  if (!name.starts_with(prefix_)) return std::nullopt;
  name.remove_prefix(prefix_.size());
  Bindings bindings;
  for (const Step& step : steps_) {
    const auto digits = static_cast<std::size_t>(
        std::find_if_not(name.begin(), name.end(), [](char c) { return is_digit(c); }) - name.begin());
    if (digits == 0 || (digits > 1 && name.front() == '0')) return std::nullopt;
    const std::string_view number = name.substr(0, digits);
    name.remove_prefix(digits);
    if (!name.starts_with(step.literal)) return std::nullopt;
    name.remove_prefix(step.literal.size());
    if (const std::string* known = find_binding(bindings, step.variable)) {
      if (*known != number) return std::nullopt;
    } else {
      bindings.emplace_back(step.variable, number);
    }
  }
  if (!name.empty()) return std::nullopt;
  return bindings;
}

std::string NameTemplate::render(const Bindings& bindings) const {
  std::string name = prefix_;
  for (const Step& step : steps_) {
    const std::string* value = find_binding(bindings, step.variable);
    LADING_CHECK(value != nullptr);
    name += *value;
    name += step.literal;
  }
  return name;
}

std::string NameTemplate::text() const {
  std::string out;
  append_escaped(out, prefix_);
  for (const Step& step : steps_) {
    out += '{' + step.variable + '}';
    append_escaped(out, step.literal);
  }
  return out;
}

}  // namespace lading::mapping
