#include "mapping/pattern.h"

#include <fmt/format.h>
#include <re2/re2.h>

#include <array>

#include "base/text.h"

namespace lading::mapping {
namespace {

// Both for the compiled program and for the states that RE2 keeps while matching; past it, it slows down, no more.
constexpr std::int64_t kMaxMemoryBytes = std::int64_t{8} << 20;
constexpr int kGroups = 10;  // the whole name, and \1 to \9

re2::StringPiece piece(std::string_view text) { return {text.data(), text.size()}; }

struct Ends {
  std::string prefix;
  std::string suffix;
};

bool is_word(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_quantifier(char c) { return c == '*' || c == '+' || c == '?' || c == '{'; }

// The letters that a pattern begins and ends with, as far as they stand there plainly. Whatever could make them
// mean something else (alternatives, flags, repeated groups) gives none.
Ends ends_of(std::string_view text) {
  Ends ends;
  std::string run;  // of letters, since something else
  bool in_prefix = true;
  const auto end_run = [&] {
    if (in_prefix) ends.prefix = run;
    in_prefix = false;
    run.clear();
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const char next = i + 1 < text.size() ? text[i + 1] : '\0';
    if (is_word(c) || c == '-' || c == '/' || c == ':') {
      run += c;
    } else if (c == '\\' && (next == '.' || next == '-' || next == '/')) {
      run += next;
      ++i;
    } else if (c == '\\' && (next == 'd' || next == 'w')) {
      end_run();
      ++i;
    } else if (c == '.') {
      end_run();
    } else if (c == '[') {
      const std::size_t close = text.find(']', i);
      const std::string_view inside = text.substr(i + 1, close == std::string_view::npos ? close : close - i - 1);
      if (close == std::string_view::npos || inside.empty() || inside == "^") return {};
      if (inside.find_first_of("[\\") != std::string_view::npos) return {};
      end_run();
      i = close;
    } else if (c == '*' || c == '+' || c == '?') {
      if (!run.empty()) run.pop_back();
      end_run();
    } else if (c == '(') {
      if (next == '?') return {};
    } else if (c == ')') {
      if (is_quantifier(next)) return {};
    } else {
      return {};
    }
  }
  ends.suffix = run;
  if (in_prefix) ends.prefix = run;
  return ends;
}

}  // namespace

Result<Pattern> Pattern::compile(std::string_view text) {
  if (text.size() > kMaxBytes) {
    return fail(Error(Code::kMapping, "the pattern is too long")
                    .wanted(fmt::format("at most {} bytes", kMaxBytes))
                    .got(fmt::format("{} bytes", text.size())));
  }
  re2::RE2::Options options;
  options.set_log_errors(false);
  options.set_max_mem(kMaxMemoryBytes);
  options.set_dot_nl(true);  // a name is data, not lines
  auto pattern = std::make_shared<const re2::RE2>(piece(text), options);
  if (!pattern->ok()) {
    return fail(Error(Code::kMapping, fmt::format("the pattern is not valid: {}", escape(pattern->error())))
                    .got(quote(text))
                    .try_this("Use the syntax of RE2, which has no lookaround and no back-references."));
  }
  Pattern made(std::move(pattern));
  Ends ends = ends_of(text);
  made.prefix_ = std::move(ends.prefix);
  made.suffix_ = std::move(ends.suffix);
  return made;
}

std::uint64_t Pattern::steps() const { return static_cast<std::uint64_t>(pattern_->ProgramSize()); }

std::optional<std::string> Pattern::problem_with(std::string_view replacement) const {
  std::string why;
  if (pattern_->CheckRewriteString(piece(replacement), &why)) return std::nullopt;
  return escape(why);
}

bool Pattern::matches(std::string_view name) const { return re2::RE2::FullMatch(piece(name), *pattern_); }

std::optional<std::string> Pattern::rewrite(std::string_view name, std::string_view replacement) const {
  std::array<re2::StringPiece, kGroups> groups;
  const int wanted = 1 + re2::RE2::MaxSubmatch(piece(replacement));
  if (!pattern_->Match(piece(name), 0, name.size(), re2::RE2::ANCHOR_BOTH, groups.data(), wanted)) return std::nullopt;
  std::string out;
  if (!pattern_->Rewrite(&out, piece(replacement), groups.data(), wanted)) return std::nullopt;
  return out;
}

}  // namespace lading::mapping
