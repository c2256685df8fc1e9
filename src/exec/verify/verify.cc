#include "exec/verify/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <new>
#include <utility>

#include "base/text.h"
#include "exec/crew.h"
#include "exec/file_table.h"
#include "exec/thread_count.h"
#include "exec/verify/memory_gate.h"
#include "exec/verify/verify_compare.h"
#include "exec/verify/verify_groups.h"
#include "exec/verify/verify_sources.h"
#include "exec/verify/verify_values.h"

namespace lading::exec {
namespace {

using ledger::Ledger;
using ledger::SlotDigest;
using ledger::Tensor;

Error verification_was_cancelled() { return {Code::kCancelled, "the verification was cancelled"}; }

Error verification_is_out_of_memory() {
  return Error(Code::kOutOfMemory, "not enough host memory for the verification")
      .try_this("Free memory, or use fewer threads.");
}

bool is_from_files(Provenance provenance) {
  return provenance == Provenance::kFile || provenance == Provenance::kFill || provenance == Provenance::kRandom;
}

std::string why_not(Provenance provenance) {
  switch (provenance) {
    case Provenance::kHost: return "not from files: the model's constructor computes it, or the caller supplied it";
    case Provenance::kCall: return "not from files: it was computed from other tensors";
    default: return "not from files: the load kept its existing value";
  }
}

class Verification {
 public:
  Verification(const Ledger& ledger, const VerifyInputs& inputs, const VerifyOptions& options)
      : ledger_(ledger),
        inputs_(inputs),
        options_(options),
        digests_(ledger::tensor_digests(ledger)),
        crew_({options.cancelled, nullptr, verification_was_cancelled, verification_is_out_of_memory,
               "the verification"}),
        files_(inputs.open, inputs.catalog.files.size()),
        gate_(options.memory_bytes) {}

  Result<VerifyReport, Errors> run() {
    report_.differences.add(check_files(ledger_, inputs_.catalog));
    ledger::RecordAudit audit = ledger::check_records(ledger_);
    misfits_ = std::move(audit.misfits);
    report_.differences.add(std::move(audit.errors));
    report_.differences.add(ledger::disagreements(ledger_, digests_));
    make_groups();
    outcomes_.resize(groups_.size());
    const std::uint32_t threads = thread_count(options_.threads, usable_processors());
    if (auto opened = crew_.open({}, threads); !opened) return fail(Errors(std::move(opened).error()));
    crew_.run(groups_.size(), [this](const Lanes&, std::size_t i) { return verify_group(i); });
    return finish();
  }

 private:
  void make_groups() {
    groups_ = groups_of(ledger_, digests_, inputs_.catalog);
    std::uint64_t made_bytes = 0;
    too_much_.reserve(groups_.size());
    for (const Group& group : groups_) {
      for (const std::uint32_t file : group.files) files_.expect(file);
      const bool fits =
          group.made_bytes <= options_.most_tensor_bytes && group.made_bytes <= options_.most_made_bytes - made_bytes;
      if (fits) made_bytes += group.made_bytes;
      too_much_.push_back(!fits);
    }
  }

  // ---- one group

  Result<void> verify_group(std::size_t number) {
    const Group& group = groups_[number];
    GroupOutcome& outcome = outcomes_[number];
    outcome.agrees.assign(group.members.size(), true);
    Result<void> result;
    try {
      if (can_be_compared(number)) result = verify_open(group, outcome);
    } catch (const std::bad_alloc&) {
      result = fail(Error(Code::kOutOfMemory, "not enough memory to assemble the tensor"));
    }
    for (const std::uint32_t file : group.files) {
      auto released = files_.release(file);
      if (result && !released) result = std::move(released);
    }
    if (result || result.error().code == Code::kCancelled) return {};  // the crew has said why
    Error error = std::move(result).error();
    if (!error.tensor) error.tensor = ledger_.tensors[group.root].name;
    return fail(std::move(error));
  }

  // Work that proves nothing is not begun: of records that the audit has refused, or that claim more than can be made.
  bool can_be_compared(std::size_t number) {
    const Group& group = groups_[number];
    GroupOutcome& outcome = outcomes_[number];
    if (std::any_of(group.members.begin(), group.members.end(), [&](std::uint32_t t) { return misfits_[t]; })) {
      outcome.reason = "its records contradict the placements of the ledger";
      return false;
    }
    if (!too_much_[number] || !is_from_files(ledger_.tensors[group.root].provenance)) return true;
    Error error =
        Error(Code::kUnverified,
              "the records of the tensor claim too many bytes that no file has: padding, or initial values")
            .by_rule("R64")
            .wanted(fmt::format("at most {}, and {} in the whole ledger", human_bytes(options_.most_tensor_bytes),
                                human_bytes(options_.most_made_bytes)))
            .got(human_bytes(group.made_bytes))
            .try_this("Verify the ledgers of fewer ranks at a time, if this one is genuine.");
    (void)refuse(group, std::move(error), outcome);
    return false;
  }

  Result<void> verify_open(const Group& group, GroupOutcome& outcome) {
    const Tensor& root = ledger_.tensors[group.root];
    const bool has_records =
        std::any_of(group.members.begin(), group.members.end(), [&](std::uint32_t t) { return !digests_[t].empty(); });
    if (!has_records) {
      outcome.reason = "no rank of this ledger has it";
      return {};
    }
    check_digests(ledger_, digests_, group, outcome);
    if (!is_from_files(root.provenance)) {
      outcome.reason = why_not(root.provenance);
      return {};
    }
    if (root.provenance != Provenance::kFile) {
      auto made = values_of_recipe({root.recipe, root.shape, group.storage, ledger_.seed, root.name});
      if (!made) return refuse(group, std::move(made).error(), outcome);
      return compare(group, **made, nullptr, outcome);
    }
    if (!check_sources(ledger_, inputs_.catalog, root, outcome.differences)) {
      outcome.reason = "the checkpoint does not have its sources";
      return {};
    }
    LADING_TRY(compare_expression(group, root.expression, nullptr, outcome));
    for (const mapping::Expression& other : root.must_equal) {
      LADING_TRY(compare_expression(group, other, &other, outcome));
    }
    return {};
  }

  // `other`: a key of the tie class that must hold the same (R50).
  Result<void> compare_expression(const Group& group, const mapping::Expression& expression,
                                  const mapping::Expression* other, GroupOutcome& outcome) {
    const ReadBytes read = [this](std::uint32_t file, std::uint64_t offset_bytes, std::span<std::byte> out) {
      return read_bytes(file, offset_bytes, out);
    };
    const Tensor& root = ledger_.tensors[group.root];
    auto values = values_of_files(
        {expression, root.shape, group.storage, inputs_.catalog, options_.window_bytes, root.checkpoint}, read);
    if (!values) return refuse(group, std::move(values).error(), outcome);
    const std::uint64_t memory_bytes = (*values)->memory_bytes();
    if (memory_bytes > options_.most_tensor_bytes) {
      const std::string needed = fmt::format("assembling it takes {} of memory", human_bytes(memory_bytes));
      return refuse(group,
                    Error(Code::kUnverified, needed).by_rule("R64").try_this("Verify on a machine with more memory."),
                    outcome);
    }
    const MemoryGate::Room room(gate_, memory_bytes);
    auto compared = compare(group, **values, other, outcome);
    // An expression that no plan could have is the ledger's fault, not the machine's.
    if (!compared && compared.error().code == Code::kMapping) {
      return refuse(group, std::move(compared).error(), outcome);
    }
    return compared;
  }

  Result<void> compare(const Group& group, Values& values, const mapping::Expression* other, GroupOutcome& outcome) {
    const std::string remedy = changed_since_load(ledger_, inputs_, ledger_.tensors[group.root]);
    const std::function<bool()> stopped = [this] { return crew_.stopped(); };
    return compare_group({ledger_, digests_, group, other, remedy, stopped}, values, outcome);
  }

  // A file that somebody may be writing to (io::File::is_doubtful) is not read twice, as a load would: bytes that agree
  // with a digest of memory were right when they were read.
  Result<void> read_bytes(std::uint32_t file, std::uint64_t offset_bytes, std::span<std::byte> out) {
    if (crew_.stopped()) return fail(Error(Code::kCancelled, "the verification stopped"));
    LADING_ASSIGN_OR_RETURN(const io::File* opened, files_.acquire(file));
    LADING_TRY(opened->read_exact(offset_bytes, {reinterpret_cast<char*>(out.data()), out.size()}));
    crew_.add_read(out.size());
    return {};
  }

  // What the ledger says cannot be made, or not here. That it may still be right is no reason to say that it is.
  Result<void> refuse(const Group& group, Error error, GroupOutcome& outcome) const {
    outcome.reason = error.message;
    outcome.differences.add(std::move(error).of_tensor(ledger_.tensors[group.root].name));
    return {};
  }

  // ---- the end

  Result<VerifyReport, Errors> finish() {
    if (Errors errors = crew_.take_errors(); !errors.empty()) {
      errors.add(std::move(report_.differences));
      return fail(std::move(errors));
    }
    std::vector<std::pair<std::size_t, std::size_t>> place(ledger_.tensors.size());  // group and member, by tensor
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      for (std::size_t m = 0; m < groups_[g].members.size(); ++m) place[groups_[g].members[m]] = {g, m};
    }
    for (std::size_t t = 0; t < place.size(); ++t) {
      GroupOutcome& outcome = outcomes_[place[t].first];
      if (place[t].second == 0) {
        report_.differences.add(std::move(outcome.differences));
        report_.records_verified += outcome.records;
      }
      count_tensor(t, outcome, place[t].second);
    }
    report_.read_bytes = crew_.read_bytes();
    account_for_keys(ledger_, inputs_.catalog, report_.differences);
    if (report_.records_verified == 0 && report_.differences.empty()) {
      report_.differences.add(Error(Code::kUnverified, "the ledger has no tensor that the files could confirm")
                                  .try_this("Load a checkpoint with --ledger and with digests."));
    }
    return std::move(report_);
  }

  void count_tensor(std::size_t t, const GroupOutcome& outcome, std::size_t member) {
    if (!outcome.reason.empty() || digests_[t].empty()) {
      report_.not_verified.push_back(
          {ledger_.tensors[t].name, outcome.reason.empty() ? "no rank of this ledger has it" : outcome.reason});
      return;
    }
    if (!outcome.agrees[member]) return;
    const bool whole = std::all_of(digests_[t].begin(), digests_[t].end(),
                                   [](const SlotDigest& slot) { return slot.coverage == ledger::Coverage::kWhole; });
    ++(whole ? report_.tensors_verified : report_.tensors_partly_verified);
  }

  const Ledger& ledger_;
  const VerifyInputs& inputs_;
  const VerifyOptions& options_;
  const ledger::TensorDigests digests_;
  Crew crew_;
  FileTable files_;
  MemoryGate gate_;
  std::vector<Group> groups_;
  std::vector<bool> too_much_;          // by group
  std::vector<bool> misfits_;           // by tensor
  std::vector<GroupOutcome> outcomes_;  // by group
  VerifyReport report_;
};

}  // namespace

Result<VerifyReport, Errors> verify(const Ledger& ledger, const VerifyInputs& inputs, const VerifyOptions& options) {
  try {
    return Verification(ledger, inputs, options).run();
  } catch (const std::bad_alloc&) {
    return fail(Errors(verification_is_out_of_memory()));
  } catch (const std::exception& exception) {
    return fail(Errors(Error(Code::kInternal, fmt::format("the verification stopped: {}", exception.what()))));
  }
}

}  // namespace lading::exec
