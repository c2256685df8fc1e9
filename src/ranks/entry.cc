#include "ranks/entry.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <utility>

namespace lading::ranks {
namespace {

constexpr std::string_view kReportMagic = "lading.ranks.statement/1";
constexpr std::string_view kVerdictMagic = "lading.ranks.verdict/1";
constexpr std::size_t kMaxProblems = 200;

// Numbers as seven bits per byte, texts with their length before them.
class Packer {
 public:
  void number(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_.push_back(static_cast<char>(0x80 | (value & 0x7F)));
    bytes_.push_back(static_cast<char>(value));
  }
  void text(std::string_view text) {
    number(text.size());
    bytes_ += text;
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// After the first thing that does not fit, everything is empty and ok() is false.
class Unpacker {
 public:
  explicit Unpacker(std::string_view bytes) : rest_(bytes) {}

  std::uint64_t number() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      if (rest_.empty()) return refuse();
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      value |= std::uint64_t{byte & 0x7FU} << shift;
      if (byte < 0x80) return value;
    }
    return refuse();
  }
  std::string text() {
    const std::uint64_t size = number();
    if (!ok_ || size > rest_.size()) {
      refuse();
      return {};
    }
    std::string out(rest_.substr(0, size));
    rest_.remove_prefix(size);
    return out;
  }
  // Of a list. Each element takes a byte at least, so that a false count cannot make anybody allocate.
  std::uint64_t count() {
    const std::uint64_t count = number();
    return count <= rest_.size() ? count : refuse();
  }
  template <class Enum>
  Enum word(Enum last) {
    const std::uint64_t value = number();
    if (value > static_cast<std::uint64_t>(last)) refuse();
    return ok_ ? static_cast<Enum>(value) : last;
  }
  int small() {
    const std::uint64_t value = number();
    return value <= 255 ? static_cast<int>(value) : static_cast<int>(refuse());
  }
  [[nodiscard]] bool ok() const { return ok_; }
  [[nodiscard]] bool at_end() const { return ok_ && rest_.empty(); }
  std::uint64_t refuse() {
    ok_ = false;
    rest_ = {};
    return 0;
  }

 private:
  std::string_view rest_;
  bool ok_ = true;
};

void pack(Packer& out, const RankSet& ranks) {
  out.number(ranks.runs().size());
  for (const RankSet::Run run : ranks.runs()) {
    out.number(run.begin);
    out.number(run.end);
  }
}

RankSet unpack_ranks(Unpacker& in) {
  RankSet ranks;
  for (std::uint64_t left = in.count(); left > 0 && in.ok(); --left) {
    const std::uint64_t begin = in.number();
    const std::uint64_t end = in.number();
    if (begin >= end) in.refuse();
    ranks.add(RankSet::Run{begin, end});
  }
  return ranks;
}

void pack(Packer& out, const std::map<std::string, Shares>& fields) {
  out.number(fields.size());
  for (const auto& [name, shares] : fields) {
    out.text(name);
    out.number(static_cast<std::uint64_t>(shares.mode));
    out.number(shares.list.size());
    for (const Share& share : shares.list) {
      out.text(share.value);
      pack(out, share.ranks);
    }
  }
}

std::map<std::string, Shares> unpack_fields(Unpacker& in) {
  std::map<std::string, Shares> fields;
  for (std::uint64_t left = in.count(); left > 0 && in.ok(); --left) {
    Shares& shares = fields[in.text()];
    shares.mode = in.word(Field::Mode::kCollect);
    for (std::uint64_t more = in.count(); more > 0 && in.ok(); --more) {
      std::string value = in.text();
      shares.list.push_back({std::move(value), unpack_ranks(in)});
    }
  }
  return fields;
}

void pack(Packer& out, const Problem& problem) {
  const Error& error = problem.error;
  out.text(problem.code());
  out.text(error.message);
  out.text(error.file);
  out.number(error.tensor ? 1 : 0);
  out.text(error.tensor.value_or(""));
  out.number(error.bytes ? 1 : 0);
  out.number(error.bytes ? error.bytes->begin : 0);
  out.number(error.bytes ? error.bytes->end : 0);
  out.number(error.rank ? static_cast<std::uint64_t>(*error.rank) + 1 : 0);
  for (const std::string* text : {&error.rule, &error.expected, &error.found, &error.remedy}) out.text(*text);
}

std::string text_of(const Problem& problem) {
  return problem.other_code.empty() ? problem.error.text()
                                    : fmt::format("{}: {}", problem.other_code, problem.error.text());
}

Problem unpack_problem(Unpacker& in) {
  Problem problem;
  Error& error = problem.error;
  std::string code_text = in.text();
  const auto code = code_from_word(code_text);
  error.code = code.value_or(Code::kUsage);
  if (!code) problem.other_code = std::move(code_text);
  error.message = in.text();
  error.file = in.text();
  const bool has_tensor = in.number() != 0;
  std::string tensor = in.text();
  if (has_tensor) error.tensor = std::move(tensor);
  const bool has_bytes = in.number() != 0;
  const std::uint64_t begin = in.number();
  const std::uint64_t end = in.number();
  if (has_bytes) error.bytes = ByteRange{begin, end};
  const std::uint64_t rank = in.number();
  if (rank > 0x7FFF'FFFF) in.refuse();
  if (rank > 0 && in.ok()) error.rank = static_cast<int>(rank - 1);
  for (std::string* text : {&error.rule, &error.expected, &error.found, &error.remedy}) *text = in.text();
  return problem;
}

}  // namespace

std::optional<Code> code_from_word(std::string_view text) {
#define LADING_CODE_OF(enumerator, code_word, exit_code) \
  if (text == (code_word)) return Code::enumerator;
  LADING_ERROR_CODES(LADING_CODE_OF)
#undef LADING_CODE_OF
  return {};
}

void RankReport::merge(RankReport other) {
  ranks.add(other.ranks);
  for (auto& [name, theirs] : other.fields) {
    Shares& mine = fields[name];
    mine.mode = theirs.mode;
    for (Share& share : theirs.list) {
      const auto found =
          std::find_if(mine.list.begin(), mine.list.end(), [&](const Share& s) { return s.value == share.value; });
      if (found != mine.list.end()) {
        found->ranks.add(share.ranks);
      } else {
        mine.list.push_back(std::move(share));
      }
    }
    std::sort(mine.list.begin(), mine.list.end(),
              [](const Share& a, const Share& b) { return a.ranks.first() < b.ranks.first(); });
  }
  for (Told& told : other.problems) {
    const auto found = std::find_if(problems.begin(), problems.end(),
                                    [&](const Told& t) { return text_of(t.problem) == text_of(told.problem); });
    if (found != problems.end()) {
      found->ranks.add(told.ranks);
    } else if (problems.size() < kMaxProblems) {
      problems.push_back(std::move(told));
    } else {
      ++problems_not_listed;
    }
  }
  problems_not_listed += other.problems_not_listed;
  exit_code = std::max(exit_code, other.exit_code);
  begun = begun || other.begun;
}

std::string encode(const RankReport& report) {
  Packer out;
  out.text(kReportMagic);
  pack(out, report.ranks);
  pack(out, report.fields);
  out.number(report.problems.size());
  for (const Told& told : report.problems) {
    pack(out, told.problem);
    pack(out, told.ranks);
  }
  out.number(report.problems_not_listed);
  out.number(static_cast<std::uint64_t>(report.exit_code));
  out.number(report.begun ? 1 : 0);
  return out.take();
}

std::optional<RankReport> decode_report(std::string_view bytes) {
  Unpacker in(bytes);
  if (in.text() != kReportMagic) return {};
  RankReport report;
  report.ranks = unpack_ranks(in);
  report.fields = unpack_fields(in);
  for (std::uint64_t left = in.count(); left > 0 && in.ok(); --left) {
    Problem problem = unpack_problem(in);
    report.problems.push_back({std::move(problem), unpack_ranks(in)});
  }
  report.problems_not_listed = in.number();
  report.exit_code = static_cast<Exit>(in.small());
  report.begun = in.number() != 0;
  if (!in.at_end() || report.ranks.empty()) return {};
  return report;
}

std::string encode(const Verdict& verdict) {
  Packer out;
  out.text(kVerdictMagic);
  out.number(static_cast<std::uint64_t>(verdict.kind));
  out.text(verdict.step);
  pack(out, verdict.fields);
  out.number(verdict.problems.size());
  for (const Problem& problem : verdict.problems) pack(out, problem);
  out.number(verdict.problems_not_listed);
  out.number(static_cast<std::uint64_t>(verdict.exit_code));
  out.number(verdict.begun ? 1 : 0);
  pack(out, verdict.at_fault);
  return out.take();
}

std::optional<Verdict> decode_verdict(std::string_view bytes) {
  Unpacker in(bytes);
  if (in.text() != kVerdictMagic) return {};
  Verdict verdict;
  verdict.kind = in.word(Verdict::Kind::kFailed);
  verdict.step = in.text();
  verdict.fields = unpack_fields(in);
  for (std::uint64_t left = in.count(); left > 0 && in.ok(); --left) verdict.problems.push_back(unpack_problem(in));
  verdict.problems_not_listed = in.number();
  verdict.exit_code = static_cast<Exit>(in.small());
  verdict.begun = in.number() != 0;
  verdict.at_fault = unpack_ranks(in);
  if (!in.at_end() || verdict.failed() == verdict.problems.empty()) return {};
  verdict.set_id();
  return verdict;
}

bool Verdict::is_refusal() const { return failed() && !begun && exit_code != Exit::kLoad && exit_code != Exit::kRanks; }

RankSet Verdict::speakers(std::uint64_t size) const {
  constexpr std::uint64_t kMostAtFault = 8;
  RankSet speakers;
  if (at_fault.empty()) {
    speakers.add(RankSet::Run{0, size});
    return speakers;
  }
  const std::uint64_t not_at_fault = at_fault.first() > 0 ? 0 : at_fault.runs().front().end;
  if (not_at_fault >= size) return RankSet(0);  // all are, with one text
  speakers.add(not_at_fault);
  if (at_fault.size() <= kMostAtFault) {
    speakers.add(at_fault);
  } else {
    speakers.add(at_fault.first());
  }
  return speakers;
}

std::string Verdict::text() const {
  std::string out;
  for (const Problem& problem : problems) out += text_of(problem) + "\n";
  if (problems_not_listed > 0) out += fmt::format("and {} more\n", problems_not_listed);
  return out + fmt::format("error id {}", id);
}

void Verdict::set_id() {
  std::string all;
  for (const Problem& problem : problems) all += text_of(problem) + "\n";
  id = failed() ? short_digest(all).substr(0, 8) : "";
}

Errors Verdict::errors() const {
  Errors errors;
  for (const Problem& problem : problems) errors.add(problem.error);
  errors.count_not_listed(problems_not_listed);
  return errors;
}

std::string short_digest(std::string_view bytes) {
  return fmt::format("{:016x}", static_cast<std::uint64_t>(XXH3_64bits(bytes.data(), bytes.size())));
}

}  // namespace lading::ranks
