#include "checker/check_destination.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <optional>
#include <utility>

#include "base/text.h"
#include "checker/check_bytes.h"

namespace lading::checker {
namespace {

bool same_bits(double a, double b) { return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b); }

// Walks demand and offer side by side. Neither has a canonical form: both are cut to their common length.
class Comparison : public OriginSink {
 public:
  Comparison(const DestinationQuestion& question, Offers& offers)
      : question_(question), offers_(offers), at_(question.share.buffer_begin()) {}

  bool take(Origin wanted, Rounds rounds) override {
    while (rounds.count > 0) {
      if (!take_round(wanted)) return false;
      std::uint64_t done = 1;
      // What was offered was this round and no more: perhaps the offers go on like the demand.
      if (rounds.count > 1 && left_.origin.count == 0 && last_.origin.count == wanted.count) {
        done += offers_.pass(last_, rounds.step, rounds.count - 1);
        at_ += (done - 1) * wanted.count;
        proved_elems_ += (done - 1) * wanted.count;
      }
      if (!wanted.is_fill()) wanted.begin += done * rounds.step;
      rounds.count -= done;
    }
    return true;
  }

  /// Elements that somebody else writes.
  void leave(std::uint64_t elems) { at_ += elems; }

  /// Nothing may be left when everything that was demanded has been seen.
  bool finish() {
    if (left_.origin.count == 0 && !pull()) return true;
    const bool again = left_.target < at_;
    at_ = left_.target;
    return differ(
        again ? "bytes of the buffer are written twice" : "a transfer writes bytes that no transfer may write", "R11",
        {}, &left_.origin);
  }

  [[nodiscard]] std::uint64_t proved_elems() const { return proved_elems_; }
  [[nodiscard]] const std::optional<Error>& error() const { return error_; }

 private:
  bool pull() {
    if (!offers_.pull(left_)) return false;
    last_ = left_;
    return true;
  }

  bool take_round(Origin wanted) {
    while (wanted.count > 0) {
      if (left_.origin.count == 0 && !pull()) {
        left_.origin.count = 0;
        return differ("bytes of the buffer are not written", "R11", wanted, nullptr);
      }
      if (left_.target > at_) return differ("bytes of the buffer are not written", "R11", wanted, nullptr);
      if (left_.target < at_) return differ("bytes of the buffer are written twice", "R11", wanted, &left_.origin);
      const std::uint64_t count = std::min(wanted.count, left_.origin.count);
      if (!agree(wanted, left_.origin, count)) {
        return differ("bytes of the buffer come from the wrong place", wanted.is_fill() ? "R56" : "R41", wanted,
                      &left_.origin);
      }
      skip(wanted, count);
      skip(left_.origin, count);
      left_.target += count;
      at_ += count;
      proved_elems_ += count;
    }
    return true;
  }

  static bool agree(const Origin& a, const Origin& b, std::uint64_t count) {
    if (a.source != b.source) return false;
    if (a.is_fill()) return same_bits(a.fill, b.fill);
    return a.begin == b.begin && (count == 1 || a.stride == b.stride);
  }

  static void skip(Origin& origin, std::uint64_t count) {
    origin.count -= count;
    if (!origin.is_fill()) origin.begin += count * origin.stride;
  }

  [[nodiscard]] std::string text(const Origin& origin) const {
    if (origin.is_fill()) return fmt::format("the constant {}", origin.fill);
    return fmt::format("element {} of {}, and on in steps of {}", origin.begin,
                       quote(question_.plan.sources[origin.source].key), origin.stride);
  }

  bool differ(std::string_view message, std::string_view rule, const Origin& wanted, const Origin* found) {
    const std::uint64_t width = bits(question_.root.storage);
    std::uint64_t count = wanted.count == 0 ? found->count : wanted.count;
    if (found != nullptr) count = std::min(count, found->count);
    if (found == nullptr && left_.origin.count > 0) count = std::min(count, left_.target - at_);
    Error error(Code::kPlanCheck, std::string(message));
    error.rule = rule;
    error.expected = wanted.count == 0 ? "no writer" : text(wanted);
    error.found = fmt::format("{}, at bytes {}..{} of the buffer", found == nullptr ? "nothing" : text(*found),
                              at_ * width / 8, (at_ + count) * width / 8);
    error_ = std::move(error);
    return false;
  }

  const DestinationQuestion& question_;
  Offers& offers_;
  Offer last_;  // as it was pulled
  Offer left_;  // what is left of it
  std::uint64_t at_ = 0;
  std::uint64_t proved_elems_ = 0;
  std::optional<Error> error_;
};

// Whether transfers write the tensor's own elements. What is drawn, handed in, computed or kept has another
// writer; a constant may be written either way, but wholly.
bool transfers_write_elems(const DestinationQuestion& question) {
  if (question.root.provenance == Provenance::kFile) return true;
  if (question.root.provenance != Provenance::kFill) return false;
  const auto& transfers = question.destination.transfers;
  if (transfers.empty()) return false;
  const auto first = elems_in(transfers.front().target_begin_bytes, question.root.storage);
  return first && *first < question.share.owned_elems();
}

}  // namespace

Result<std::uint64_t> check_transfers(const DestinationQuestion& question, Offers& scratch) {
  const Provenance provenance = question.root.provenance;
  for (const Transfer& transfer : question.destination.transfers) {
    if (provenance == Provenance::kFile || transfer.is_fill()) continue;
    return fail(Error(Code::kPlanCheck, "the tensor is read from a file, but no file has it").by_rule("R1"));
  }
  // A kept value lies in memory that is there already, padding and all.
  if (provenance == Provenance::kKept && question.destination.transfers.empty()) return std::uint64_t{0};
  const Destination& destination = question.destination;
  LADING_TRY(scratch.reset({question.plan, destination.transfers, destination.buffer_bytes, question.root.storage}));
  Comparison comparison(question, scratch);
  bool same = true;
  if (transfers_write_elems(question)) {
    same = question.share.for_each_stretch([&](std::uint64_t begin, std::uint64_t end, Rounds rounds) {
      return question.trace.follow(begin, end, rounds, comparison);
    });
  } else {
    comparison.leave(question.share.owned_elems());
  }
  const std::uint64_t padding = question.share.padding_elems();
  if (same && padding > 0) same = comparison.take({SourceId::none(), 0, 1, padding, 0}, {});
  if (same) same = comparison.finish();
  if (!same) return fail(*comparison.error());
  // Written elements lie in the buffer, whose bytes have been counted.
  return bytes_of(comparison.proved_elems(), question.root.storage).value_or(0);
}

Result<void> check_comparisons(const DestinationQuestion& question, Offers& scratch) {
  const Destination& destination = question.destination;
  if (destination.comparisons.size() != question.must_equal.size()) {
    return fail(Error(Code::kPlanCheck, "the tensor is not compared with every key that must be equal")
                    .by_rule("R50")
                    .wanted(std::to_string(question.must_equal.size()))
                    .got(std::to_string(destination.comparisons.size())));
  }
  for (std::size_t i = 0; i < destination.comparisons.size(); ++i) {
    LADING_TRY(
        scratch.reset({question.plan, destination.comparisons[i], destination.buffer_bytes, question.root.storage}));
    Comparison comparison(question, scratch);
    const bool same = question.share.for_each_stretch([&](std::uint64_t begin, std::uint64_t end, Rounds rounds) {
      return question.must_equal[i].follow(begin, end, rounds, comparison);
    });
    if (same && comparison.finish()) continue;
    Error error = *comparison.error();
    error.message = fmt::format("in a comparison: {}", error.message);
    return fail(std::move(error).by_rule("R50"));
  }
  return {};
}

}  // namespace lading::checker
