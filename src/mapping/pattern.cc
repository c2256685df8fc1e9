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
    return fail(Error(Code::kMapping, fmt::format("not a pattern: {}", escape(pattern->error())))
                    .got(quote(text))
                    .try_this("patterns are RE2's: no lookaround, no back-references"));
  }
  return Pattern(std::move(pattern));
}

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
