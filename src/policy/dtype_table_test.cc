// docs/how-it-works/dtype-contract.md and decide_dtype say the same, over every combination. The table's words are
// given their meaning here a second time, without the code's help.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "policy/policy.h"
#include "support/docs_for_tests.h"
#include "support/sanitizers.h"

namespace lading::policy {
namespace {

using model::Kind;
using model::PinStrength;
using model::Presence;

enum Column : std::size_t {
  kSource,
  kKind,
  kDType,
  kCast,
  kRequest,
  kFrozen,
  kPolicy,
  kRecord,
  kPin,
  kMemory,
  kColumns
};

// A word's bit; words of different columns do not meet.
std::uint64_t bit(std::string_view word) {
  static std::map<std::string, std::uint64_t, std::less<>> bits;
  if (const auto found = bits.find(word); found != bits.end()) return found->second;
  EXPECT_LT(bits.size(), 64U);
  return bits.emplace(word, std::uint64_t{1} << bits.size()).first->second;
}

struct Row {
  std::string step;
  std::array<std::uint64_t, kColumns> fits{};  // 0: everything
  std::string result;
  std::string rule;
  std::string line;
};

std::string trimmed(std::string_view text) {
  const auto begin = text.find_first_not_of(" ");
  if (begin == std::string_view::npos) return "";
  return std::string(text.substr(begin, text.find_last_not_of(" ") - begin + 1));
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream{std::string(text)};
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(trimmed(part));
  return parts;
}

std::vector<Row> read_table() {
  const std::string table = model::between(model::doc_text("how-it-works/dtype-contract.md"), "<!-- dtype table -->\n",
                                           "<!-- end of dtype table -->");
  std::vector<Row> rows;
  std::istringstream lines{table};
  std::string line;
  std::getline(lines, line);  // header
  EXPECT_EQ(
      line,
      "| step | source | kind | dtype | cast | request | frozen | policy | record | pin | memory | result | rule |");
  std::getline(lines, line);  // rule below it
  while (std::getline(lines, line)) {
    auto cells = split(line, '|');  // the first is before the first bar
    EXPECT_EQ(cells.size(), 14U) << line;
    Row row{.step = cells[1], .fits = {}, .result = cells[12], .rule = cells[13], .line = line};
    for (std::size_t column = 0; column < kColumns; ++column) {
      for (const std::string& word : split(cells[column + 2], '/')) {
        if (!word.empty()) row.fits[column] |= bit(word);
      }
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

struct Case {
  Policy policy;
  DTypeQuestion question;
};

// What the table says: nothing for an error.
struct Verdict {
  bool error = false;
  bool no_row_fits = false;
  DType storage = DType::kF32;
  DType compute = DType::kF32;
  std::string_view storage_rule = {};
  std::string_view compute_rule = {};

  friend bool operator==(const Verdict&, const Verdict&) = default;
};

// The meanings of the words, from the document.
bool is_float(DType d) { return d == DType::kF16 || d == DType::kBF16 || d == DType::kF32 || d == DType::kF64; }
bool is_f8(DType d) { return d == DType::kF8E4M3 || d == DType::kF8E5M2 || d == DType::kF8E8M0; }
bool is_f4(DType d) { return d == DType::kF4; }

std::optional<DType> torch_promotes(DType a, DType b) {
  if (a == b) return a;
  if (!is_float(a) || !is_float(b)) return std::nullopt;
  if (a == DType::kF64 || b == DType::kF64) return DType::kF64;
  return DType::kF32;  // two of F16, BF16, F32 that differ
}

bool holds_all_of(DType memory, DType asked) {
  if (memory == asked) return true;
  if (asked == DType::kI32) return memory == DType::kI64;
  return is_float(memory) && is_float(asked) && torch_promotes(memory, asked) == memory;
}

bool can_become(DType from, DType to) {
  if (from == to || (from == DType::kI32 && to == DType::kI64)) return true;
  const auto converts = [](DType d) { return is_float(d) || d == DType::kF8E4M3 || d == DType::kF8E5M2; };
  return converts(from) && converts(to);
}

bool withstands(std::optional<PinStrength> pin, DType reached) {
  if (!pin) return false;
  if (reached == DType::kF16 || is_f8(reached)) return true;
  return reached == DType::kBF16 && *pin == PinStrength::kFloat16AndBFloat16;
}

std::uint64_t class_bits(DType dtype) {
  const std::uint64_t exact = dtype == DType::kF32 ? bit("F32") : 0;
  if (is_float(dtype)) return bit("float") | exact;
  if (is_f8(dtype)) return bit("float8");
  return is_f4(dtype) ? bit("packed") : bit("other");
}

std::string_view word_of(Kind kind) {
  switch (kind) {
    case Kind::kParameter: return "parameter";
    case Kind::kBuffer: return "buffer";
    case Kind::kNonPersistentBuffer: return "non_persistent_buffer";
    case Kind::kAttribute: return "attribute";
    case Kind::kExtraState: return "extra_state";
  }
  return "";
}

class Evaluation {
 public:
  Evaluation(const std::vector<Row>& rows, const Case& given, std::vector<std::size_t>* hits)
      : rows_(rows), policy_(given.policy), question_(given.question), hits_(hits) {
    const DTypeQuestion& q = question_;
    source_ = q.derived ? q.declared.value_or(q.constructed) : q.checkpoint.value_or(q.constructed);
    bits_[kSource] = bit(q.derived ? "derived" : q.checkpoint ? "file" : "none");
    bits_[kKind] = bit(word_of(q.kind));
    constexpr std::array<std::string_view, 3> kCasts = {"promote", "exact", "destination"};
    bits_[kCast] = bit(kCasts[static_cast<std::size_t>(policy_.cast)]);
    const bool is_general = policy_.cast != Cast::kExact && !(q.request && q.request->by_subtree);
    bits_[kRequest] = policy_.dtype ? bit("explicit") | (is_general ? bit("general") : 0) : bit("auto");
    bits_[kFrozen] = bit(q.frozen && !q.requires_grad ? "yes" : "no");
    bits_[kRecord] = bit(policy_.compute_record == ComputeRecord::kIgnore ? "ignore" : "checkpoint");
    bits_[kPolicy] = policy_.compute_dtype ? bit("set") | bit(name(*policy_.compute_dtype)) : bit("none");
  }

  Verdict run() {
    Verdict verdict;
    reached_ = source_;
    for (const char* step : {"ask", "pin", "memory"}) {
      if (!take(step, verdict.storage_rule)) return {.error = true, .no_row_fits = no_row_fits_};
    }
    if (!question_.derived && question_.checkpoint && !can_become(*question_.checkpoint, reached_))
      return {.error = true};
    verdict.storage = storage_ = reached_;
    for (const char* step : {"compute", "compute pin"}) {
      if (!take(step, verdict.compute_rule)) return {.error = true, .no_row_fits = no_row_fits_};
    }
    verdict.compute = reached_;
    return verdict;
  }

 private:
  bool take(std::string_view step, std::string_view& rule) {
    const bool computing = step.starts_with("compute");
    bits_[kDType] = class_bits(computing ? storage_ : source_);
    set_memory(step);
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      const Row& row = rows_[i];
      if (row.step != step) continue;
      set_pin(row, computing);
      bool fits = true;
      for (std::size_t c = 0; c < kColumns; ++c) fits = fits && (row.fits[c] == 0 || (row.fits[c] & bits_[c]) != 0);
      if (!fits) continue;
      if (hits_ != nullptr) ++(*hits_)[i];
      if (!row.rule.empty()) rule = row.rule;
      const auto result = result_of(row.result);
      if (result) reached_ = *result;
      return result.has_value();
    }
    no_row_fits_ = true;
    return false;
  }

  void set_memory(std::string_view step) {
    const DTypeQuestion& q = question_;
    constexpr std::array<std::string_view, 3> kPresences = {"meta", "real", "empty"};
    bits_[kMemory] = bit(kPresences[static_cast<std::size_t>(q.presence)]);
    if (step == "memory" && q.presence != Presence::kMeta && holds_all_of(q.constructed, reached_))
      bits_[kMemory] |= bit("wide");
    if (step == "compute") bits_[kMemory] = q.checkpoint && holds_all_of(storage_, *q.checkpoint) ? bit("wide") : 0;
  }

  void set_pin(const Row& row, bool computing) {
    const DType against =
        row.step == "ask" || row.step == "compute" ? result_of(row.result).value_or(DType::kF32) : reached_;
    const bool payload = is_f8(against) && against == (computing ? storage_ : source_);
    bits_[kPin] = bit(!payload && withstands(question_.pinned, against) ? "holds" : "free");
  }

  [[nodiscard]] std::optional<DType> result_of(std::string_view word) const {
    if (word == "source") return source_;
    if (word == "same") return reached_;
    if (word == "requested") return policy_.dtype;
    if (word == "promote") return torch_promotes(source_, policy_.dtype.value_or(source_));
    if (word == "policy") return policy_.compute_dtype;
    if (word == "allocated") return question_.constructed;
    if (word == "recorded") return question_.checkpoint;
    if (word == "F32") return DType::kF32;
    EXPECT_EQ(word, "error");
    return std::nullopt;
  }

  const std::vector<Row>& rows_;
  const Policy& policy_;
  const DTypeQuestion& question_;
  std::vector<std::size_t>* hits_;
  std::array<std::uint64_t, kColumns> bits_{};
  bool no_row_fits_ = false;
  DType source_ = DType::kF32;
  DType reached_ = DType::kF32;
  DType storage_ = DType::kF32;
};

std::string text(const Case& given) {
  const DTypeQuestion& q = given.question;
  const auto dtype = [](std::optional<DType> d) { return d ? std::string(name(*d)) : std::string("none"); };
  std::ostringstream out;
  out << "cast " << static_cast<int>(given.policy.cast) << ", requested " << dtype(given.policy.dtype) << ", compute "
      << dtype(given.policy.compute_dtype) << ", checkpoint " << dtype(q.checkpoint) << ", constructed "
      << dtype(q.constructed) << ", kind " << word_of(q.kind) << ", presence " << static_cast<int>(q.presence)
      << ", pin " << (q.pinned ? static_cast<int>(*q.pinned) : -1) << (q.derived ? ", derived" : "")
      << (q.frozen ? ", frozen" : "") << (q.request ? ", by subtree" : "")
      << (given.policy.compute_record == ComputeRecord::kIgnore ? ", record ignored" : "")
      << (q.requires_grad ? ", trainable" : "") << ", declared " << dtype(q.declared);
  return out.str();
}

using Maybe = std::optional<DType>;

// What a question can say of the checkpoint's side.
struct Origin {
  Maybe checkpoint;
  bool derived;
  Maybe declared;
};

std::vector<Origin> all_origins() {
  const std::vector<Maybe> checkpoints = {{},          DType::kF32,    DType::kF16,    DType::kBF16,
                                          DType::kF64, DType::kF8E4M3, DType::kF8E8M0, DType::kF4,
                                          DType::kI64, DType::kI32,    DType::kBool,   DType::kC64};
  std::vector<Origin> origins;
  for (const Maybe& checkpoint : checkpoints) origins.push_back({checkpoint, false, {}});
  origins.insert(origins.end(), {{{}, true, {}}, {{}, true, DType::kF32}, {DType::kBF16, true, {}}});
  return origins;
}

// Of one tensor, whatever the policy.
std::vector<DTypeQuestion> all_questions() {
  const std::vector<DType> constructed = {DType::kF32,    DType::kBF16, DType::kF64,
                                          DType::kF8E4M3, DType::kF4,   DType::kI64};
  const std::vector<std::optional<PinStrength>> pins = {{}, PinStrength::kFloat16, PinStrength::kFloat16AndBFloat16};
  struct Where {
    bool frozen, requires_grad;
  };
  const std::vector<Where> wheres = {{false, true}, {false, false}, {true, false}, {true, true}};
  std::vector<DTypeQuestion> questions;
  for (const Origin& origin : all_origins()) {
    for (const DType made : constructed) {
      for (const auto& pin : pins) {
        for (const Where& where : wheres) {
          for (std::uint8_t kind = 0; kind < 5; ++kind) {
            for (std::uint8_t presence = 0; presence < 3; ++presence) {
              questions.push_back({.name = "t",
                                   .kind = Kind{kind},
                                   .constructed = made,
                                   .presence = Presence{presence},
                                   .checkpoint = origin.checkpoint,
                                   .pinned = pin,
                                   .derived = origin.derived,
                                   .declared = origin.declared,
                                   .frozen = where.frozen,
                                   .requires_grad = where.requires_grad});
            }
          }
        }
      }
    }
  }
  return questions;
}

// The whole cross product. `visit` gets every `stride`-th case.
void for_each_case(std::size_t stride, const std::function<void(const Case&)>& visit) {
  struct Asked {
    Maybe dtype;
    bool by_subtree;
  };
  const std::vector<Asked> requests = {
      {{}, false},          {DType::kF32, false},    {DType::kF16, false}, {DType::kBF16, false},
      {DType::kF64, false}, {DType::kF8E4M3, false}, {DType::kF32, true},  {DType::kBF16, true},
  };
  std::vector<std::pair<Maybe, ComputeRecord>> computes;
  for (const ComputeRecord record : {ComputeRecord::kCheckpoint, ComputeRecord::kIgnore}) {
    for (const Maybe& compute : {Maybe(), Maybe(DType::kBF16), Maybe(DType::kF16), Maybe(DType::kF32)})
      computes.emplace_back(compute, record);
  }
  const std::vector<DTypeQuestion> questions = all_questions();

  std::size_t i = 0;
  Case given;
  for (const Asked& request : requests) {
    given.policy.dtype = request.dtype;
    for (const Cast cast : {Cast::kPromote, Cast::kExact, Cast::kDestination}) {
      given.policy.cast = cast;
      for (const auto& [compute, record] : computes) {
        given.policy.compute_dtype = compute;
        given.policy.compute_record = record;
        for (const DTypeQuestion& question : questions) {
          if (i++ % stride != 0) continue;
          given.question = question;
          if (request.by_subtree) given.question.request = Request{request.dtype, true};
          visit(given);
        }
      }
    }
  }
}

TEST(DTypeTable, R22_R23_R25_R26_R28_R29_TheDocumentAndTheCodeAgree) {
  const std::vector<Row> rows = read_table();
  ASSERT_GT(rows.size(), 20U);
  std::vector<std::size_t> hits(rows.size(), 0);
  std::size_t cases = 0;
  std::size_t differ = 0;
  constexpr std::size_t kStride = LADING_HAS_ASAN ? 7 : 1;  // under the sanitizer a case takes 20 times as long
  for_each_case(kStride, [&](const Case& given) {
    ++cases;
    const Verdict table = Evaluation(rows, given, &hits).run();
    const auto code = decide_dtype(given.policy, given.question);
    const Verdict decided =
        code ? Verdict{false, false, code->storage, code->compute, code->storage_rule, code->compute_rule}
             : Verdict{.error = true};
    if (decided == table || ++differ > 10) return;
    ADD_FAILURE() << text(given) << "\n  table: " << (table.error ? "error" : name(table.storage)) << " / "
                  << name(table.compute) << " by " << table.storage_rule << ", " << table.compute_rule
                  << "\n  code:  " << (decided.error ? code.error().text() : name(decided.storage)) << " / "
                  << name(decided.compute) << " by " << decided.storage_rule << ", " << decided.compute_rule;
  });
  EXPECT_EQ(differ, 0U);
  EXPECT_GT(cases * kStride, 1'000'000U);
  for (std::size_t i = 0; i < rows.size(); ++i) EXPECT_GT(hits[i], 0U) << "no case reaches " << rows[i].line;
}

// A table with a row too many says less than it seems to: without any row, something comes out otherwise.
TEST(DTypeTable, EveryRowMatters) {
  const std::vector<Row> rows = read_table();
  for (std::size_t removed = 0; removed < rows.size(); ++removed) {
    std::vector<Row> fewer = rows;
    fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(removed));
    std::size_t differ = 0;
    for_each_case(LADING_HAS_ASAN ? 199 : 97, [&](const Case& given) {
      const Verdict with = Evaluation(rows, given, nullptr).run();
      const Verdict without = Evaluation(fewer, given, nullptr).run();
      if (with.no_row_fits != without.no_row_fits || with.error != without.error || with.storage != without.storage ||
          with.compute != without.compute || with.storage_rule != without.storage_rule) {
        ++differ;
      }
    });
    EXPECT_GT(differ, 0U) << rows[removed].line;
  }
}

}  // namespace
}  // namespace lading::policy
