#include "exec/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <system_error>
#include <thread>
#include <utility>

#include "base/text.h"
#include "exec/verify_files.h"
#include "exec/verify_groups.h"
#include "exec/verify_values.h"

namespace lading::exec {
namespace {

using checkpoint::CatalogTensor;
using ledger::Ledger;
using ledger::Share;
using ledger::SlotDigest;
using ledger::Tensor;

// Reading and adding up saturate a machine's memory long before this.
constexpr std::uint32_t kMostThreads = 16;

/// What became of a group. Each is written by one thread.
struct Outcome {
  Errors differences;
  std::string reason;  ///< not empty: the group could not be verified, and why
  std::uint64_t records = 0;
  std::vector<bool> agrees;  ///< by member
};

bool is_from_files(Provenance provenance) {
  return provenance == Provenance::kFile || provenance == Provenance::kFill || provenance == Provenance::kRandom;
}

std::string why_not(Provenance provenance) {
  switch (provenance) {
    case Provenance::kHost: return "not from files: the model's constructor computes it, or the caller handed it in";
    case Provenance::kCall: return "not from files: it was computed from other tensors";
    default: return "not from files: the value that was there was kept";
  }
}

class Verification {
 public:
  Verification(const Ledger& ledger, const VerifyInputs& inputs, const VerifyOptions& options)
      : ledger_(ledger),
        inputs_(inputs),
        options_(options),
        digests_(ledger::tensor_digests(ledger)),
        files_(inputs.open),
        gate_(options.memory_bytes) {}

  Result<VerifyReport, Errors> run() {
    check_files();
    ledger::RecordAudit audit = ledger::check_records(ledger_);
    misfits_ = std::move(audit.misfits);
    report_.differences.add(std::move(audit.errors));
    report_.differences.add(ledger::disagreements(ledger_, digests_));
    make_groups();
    outcomes_.resize(groups_.size());
    run_threads();
    return finish();
  }

 private:
  // ---- the ledger's files and sources against the catalog's

  [[nodiscard]] std::optional<std::uint32_t> find_file(std::string_view name) const {
    const auto& files = inputs_.catalog.files;
    const auto found =
        std::lower_bound(files.begin(), files.end(), name,
                         [](const checkpoint::CatalogFile& f, std::string_view n) { return f.name < n; });
    if (found == files.end() || found->name != name) return std::nullopt;
    return static_cast<std::uint32_t>(found - files.begin());
  }

  void check_files() {
    for (const ledger::File& file : ledger_.files) {
      const auto number = find_file(file.name);
      const auto differs = [&](std::string_view what, std::string wanted, std::string got) {
        report_.differences.add(Error(Code::kFileChanged, fmt::format("not the file that was loaded: {}", what))
                                    .in_file(file.name)
                                    .by_rule("R45")
                                    .wanted(std::move(wanted))
                                    .got(std::move(got)));
      };
      if (!number) {
        differs("the checkpoint has no file of this name", "", "");
        continue;
      }
      const checkpoint::CatalogFile& found = inputs_.catalog.files[*number];
      if (found.size_bytes != file.size_bytes) {
        differs("it has another size", fmt::format("{} bytes", file.size_bytes),
                fmt::format("{} bytes", found.size_bytes));
        continue;
      }
      if (!file.identity || *number >= inputs_.identities.size()) continue;
      const io::FileIdentity& now = inputs_.identities[*number];
      const ledger::FileIdentity& then = *file.identity;
      if (now.inode != then.inode || now.mtime_s != static_cast<std::int64_t>(then.mtime_s) ||
          now.mtime_ns != static_cast<std::int64_t>(then.mtime_ns)) {
        differs("it was replaced, or written to, since",
                fmt::format("inode {}, changed at {}.{:09}", then.inode, then.mtime_s, then.mtime_ns),
                fmt::format("inode {}, changed at {}.{:09}", now.inode, now.mtime_s, now.mtime_ns));
      }
    }
  }

  // False if the tensor cannot be made of what the catalog has.
  bool check_sources(const Tensor& tensor, Errors& differences) const {
    bool usable = true;
    for (const ledger::Source& source : tensor.sources) {
      const CatalogTensor* const found = inputs_.catalog.find(source.key);
      const auto differs = [&](std::string message, std::string wanted, std::string got) {
        differences.add(Error(Code::kValuesDiffer, fmt::format("{}: {}", quote(source.key), message))
                            .of_tensor(tensor.name)
                            .in_file(ledger_.files[source.file].name)
                            .by_rule("R38")
                            .wanted(std::move(wanted))
                            .got(std::move(got)));
      };
      if (found == nullptr) {
        differs("the checkpoint has no such key any more", "", "");
        usable = false;
      } else if (found->dtype != source.dtype || found->shape != source.shape) {
        differs("the key has another dtype or shape", fmt::format("{} {}", name(source.dtype), source.shape.text()),
                fmt::format("{} {}", found->dtype ? name(*found->dtype) : quote(found->unknown_dtype),
                            found->shape.text()));
        usable = false;
      } else if (inputs_.catalog.files[found->file].name != ledger_.files[source.file].name ||
                 found->bytes != source.bytes) {
        differs("the key lies elsewhere", fmt::format("bytes {} to {}", source.bytes.begin, source.bytes.end),
                fmt::format("bytes {} to {} of {}", found->bytes.begin, found->bytes.end,
                            quote(inputs_.catalog.files[found->file].name)));
      }
    }
    return usable;
  }

  // ---- what there is to do

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

  // ---- threads

  void run_threads() {
    const std::uint32_t wanted =
        options_.threads > 0 ? options_.threads : std::clamp(std::thread::hardware_concurrency(), 1U, kMostThreads);
    const std::size_t count = std::min<std::size_t>(wanted, groups_.size());
    std::vector<std::jthread> threads;  // joined at the end: nothing is left in flight, also after an error
    threads.reserve(count);
    for (std::size_t i = 1; i < count; ++i) {
      try {
        threads.emplace_back([this] { work(); });
      } catch (const std::system_error&) {
        break;  // fewer are slower, not wrong
      }
    }
    work();
  }

  void work() {
    for (std::size_t i = next_++; i < groups_.size() && !stopped(); i = next_++) {
      try {
        if (auto done = verify_group(i); !done) add_error(groups_[i], std::move(done).error());
      } catch (const std::bad_alloc&) {
        add_error(groups_[i], Error(Code::kOutOfMemory, "the host has no memory left to put the tensor together")
                                  .try_this("free memory, or allow fewer threads"));
      } catch (const std::exception& exception) {
        add_error(groups_[i], Error(Code::kInternal, fmt::format("the verification stopped: {}", exception.what())));
      }
    }
  }

  bool stopped() {
    if (failed_) return true;
    if (options_.cancelled == nullptr || !*options_.cancelled) return false;
    if (!failed_.exchange(true)) {
      const std::lock_guard lock(errors_mutex_);
      errors_.add(Error(Code::kCancelled, "the verification was cancelled"));
    }
    return true;
  }

  void add_error(const Group& group, Error error) {
    if (error.code == Code::kCancelled) return;  // stopped() has said why
    failed_ = true;
    if (!error.tensor) error.tensor = ledger_.tensors[group.root].name;
    const std::lock_guard lock(errors_mutex_);
    errors_.add(std::move(error));
  }

  // ---- one group

  Result<void> verify_group(std::size_t number) {
    const Group& group = groups_[number];
    Outcome& outcome = outcomes_[number];
    outcome.agrees.assign(group.members.size(), true);
    auto result = can_be_compared(number) ? verify_open(group, outcome) : Result<void>();
    for (const std::uint32_t file : group.files) {
      auto released = files_.release(file);
      if (result && !released) result = std::move(released);
    }
    return result;
  }

  // Work that proves nothing is not begun: of records that the audit has refused, or that claim more than can be made.
  bool can_be_compared(std::size_t number) {
    const Group& group = groups_[number];
    Outcome& outcome = outcomes_[number];
    if (std::any_of(group.members.begin(), group.members.end(), [&](std::uint32_t t) { return misfits_[t]; })) {
      outcome.reason = "its records do not fit the placements of the ledger";
      return false;
    }
    if (!too_much_[number] || !is_from_files(ledger_.tensors[group.root].provenance)) return true;
    Error error =
        Error(Code::kUnverified, "its records claim too much that no file holds: padding, or initial values")
            .by_rule("R64")
            .wanted(fmt::format("at most {}, and {} in the whole ledger", human_bytes(options_.most_tensor_bytes),
                                human_bytes(options_.most_made_bytes)))
            .got(human_bytes(group.made_bytes))
            .try_this("Verify the ledgers of fewer ranks at a time, if this one is genuine.");
    (void)refuse(group, std::move(error), outcome);
    return false;
  }

  Result<void> verify_open(const Group& group, Outcome& outcome) {
    const Tensor& root = ledger_.tensors[group.root];
    const bool has_records =
        std::any_of(group.members.begin(), group.members.end(), [&](std::uint32_t t) { return !digests_[t].empty(); });
    if (!has_records) {
      outcome.reason = "no rank of this ledger has it";
      return {};
    }
    check_digests(group, root.provenance, outcome);
    if (!is_from_files(root.provenance)) {
      outcome.reason = why_not(root.provenance);
      return {};
    }
    if (root.provenance != Provenance::kFile) {
      auto made = values_of_recipe({root.recipe, root.shape, group.storage, ledger_.seed, root.name});
      if (!made) return refuse(group, std::move(made).error(), outcome);
      return compare(group, **made, nullptr, outcome);
    }
    if (!check_sources(root, outcome.differences)) {
      outcome.reason = "the checkpoint does not have what it was made of";
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
                                  const mapping::Expression* other, Outcome& outcome) {
    const ReadBytes read = [this](std::uint32_t file, std::uint64_t offset_bytes, std::span<std::byte> out) {
      return read_bytes(file, offset_bytes, out);
    };
    auto values = values_of_files(
        {expression, ledger_.tensors[group.root].shape, group.storage, inputs_.catalog, options_.window_bytes}, read);
    if (!values) return refuse(group, std::move(values).error(), outcome);
    const std::uint64_t memory_bytes = (*values)->memory_bytes();
    if (memory_bytes > options_.most_tensor_bytes) {
      const std::string needed = fmt::format("putting it together takes {} of memory", human_bytes(memory_bytes));
      return refuse(group, Error(Code::kUnverified, needed).by_rule("R64"), outcome);
    }
    const MemoryGate::Room room(gate_, memory_bytes);
    auto compared = compare(group, **values, other, outcome);
    // An expression that no plan could have is the ledger's fault, not the machine's.
    if (!compared && compared.error().code == Code::kMapping) {
      return refuse(group, std::move(compared).error(), outcome);
    }
    return compared;
  }

  Result<void> read_bytes(std::uint32_t file, std::uint64_t offset_bytes, std::span<std::byte> out) {
    if (stopped()) return fail(Error(Code::kCancelled, "the verification stopped"));
    LADING_ASSIGN_OR_RETURN(const io::File* opened, files_.acquire(file));
    LADING_TRY(opened->read_exact(offset_bytes, {reinterpret_cast<char*>(out.data()), out.size()}));
    read_bytes_ += out.size();
    return {};
  }

  // What the ledger says cannot be made, or not here. That it may still be right is no reason to say that it is.
  Result<void> refuse(const Group& group, Error error, Outcome& outcome) const {
    outcome.reason = error.message;
    outcome.differences.add(std::move(error).of_tensor(ledger_.tensors[group.root].name));
    return {};
  }

  // Every record has a digest, unless its value was only kept.
  void check_digests(const Group& group, Provenance provenance, Outcome& outcome) const {
    if (provenance == Provenance::kKept) return;
    for (const std::uint32_t t : group.members) {
      std::vector<std::uint32_t> without;
      for (const SlotDigest& slot : digests_[t]) {
        for (const Share& share : slot.shares) {
          for (const std::uint32_t r : share.records) {
            if (!ledger_.records[r].digest) without.push_back(r);
          }
        }
      }
      if (without.empty()) continue;
      outcome.differences.add(
          Error(Code::kUnverified, fmt::format("no digest was taken on {}", ranks_text(ledger_, without)))
              .of_tensor(ledger_.tensors[t].name)
              .on_rank(static_cast<int>(ledger_.records[without.front()].rank))
              .try_this("load with verification on"));
    }
  }

  // Each part that some record holds, digested once, however many hold it.
  Result<void> compare(const Group& group, Values& values, const mapping::Expression* other, Outcome& outcome) {
    std::map<std::string, std::size_t> numbers;  // by region
    std::vector<ledger::RegionCursor> cursors;
    std::vector<std::vector<std::size_t>> number_of;  // by member and share, in order
    const Shape& shape = ledger_.tensors[group.root].shape;
    for (const std::uint32_t t : group.members) {
      auto& of_member = number_of.emplace_back();
      for (const SlotDigest& slot : digests_[t]) {
        for (const Share& share : slot.shares) {
          const ledger::Region& region = ledger_.records[share.records.front()].region;
          const auto [place, is_new] = numbers.try_emplace(ledger::code_of(region), cursors.size());
          if (is_new) cursors.emplace_back(region, shape);
          of_member.push_back(place->second);
        }
      }
    }
    LADING_ASSIGN_OR_RETURN(const std::vector<device::Digest> found, digest_all(std::move(cursors), values, group));
    for (std::size_t m = 0; m < group.members.size(); ++m) {
      std::size_t i = 0;
      for (const SlotDigest& slot : digests_[group.members[m]]) {
        for (const Share& share : slot.shares) {
          const bool agrees = compare_share(share, found[number_of[m][i++]], other, outcome);
          outcome.agrees[m] = outcome.agrees[m] && agrees;
        }
      }
    }
    return {};
  }

  Result<std::vector<device::Digest>> digest_all(std::vector<ledger::RegionCursor> cursors, Values& values,
                                                 const Group& group) {
    std::vector<device::Digest> digests(cursors.size());
    for (;;) {
      std::optional<std::uint64_t> next;
      for (const ledger::RegionCursor& cursor : cursors) {
        if (!cursor.done() && (!next || cursor.begin() < *next)) next = cursor.begin();
      }
      if (!next) return digests;
      if (stopped()) return fail(Error(Code::kCancelled, "the verification stopped"));
      LADING_ASSIGN_OR_RETURN(const Window window, values.at(*next));
      const std::uint64_t end = window.begin_elem + window.elems;
      for (std::size_t i = 0; i < cursors.size(); ++i) {
        ledger::RegionCursor& cursor = cursors[i];
        while (!cursor.done() && cursor.begin() < end) {
          const std::uint64_t elems = std::min(cursor.elems(), end - cursor.begin());
          const auto bytes = window.bytes.subspan(bytes_of_elems(cursor.begin() - window.begin_elem, group.storage),
                                                  bytes_of_elems(elems, group.storage));
          digests[i] += device::digest_of(bytes, bytes_of_elems(cursor.begin(), group.storage));
          cursor.advance(elems);
        }
      }
    }
  }

  // False if a record of the share has another digest than the files.
  bool compare_share(const Share& share, const device::Digest& right, const mapping::Expression* other,
                     Outcome& outcome) const {
    std::map<std::string, std::vector<std::uint32_t>> wrong;  // by digest
    std::uint64_t known = 0;
    for (const std::uint32_t r : share.records) {
      const auto& digest = ledger_.records[r].digest;
      if (!digest) continue;
      ++known;
      if (*digest != right) wrong[digest->text()].push_back(r);
    }
    if (other == nullptr && wrong.empty()) outcome.records += known;
    for (const auto& [digest, records] : wrong) {
      const ledger::Record& first = ledger_.records[records.front()];
      const std::string message =
          other == nullptr ? fmt::format("{} and the files do not hold the same values", ranks_text(ledger_, records))
                           : fmt::format("{} holds other values than {}", other->text(), ranks_text(ledger_, records));
      outcome.differences.add(Error(Code::kValuesDiffer, message)
                                  .of_tensor(ledger_.tensors[first.tensor].name)
                                  .on_rank(static_cast<int>(first.rank))
                                  .by_rule(other == nullptr ? "" : "R50")
                                  .wanted(right.text())
                                  .got(digest));
    }
    return wrong.empty() && known == share.records.size();
  }

  // ---- the end

  Result<VerifyReport, Errors> finish() {
    if (!errors_.empty()) {
      errors_.add(std::move(report_.differences));
      return fail(std::move(errors_));
    }
    std::vector<std::pair<std::size_t, std::size_t>> place(ledger_.tensors.size());  // group and member, by tensor
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      for (std::size_t m = 0; m < groups_[g].members.size(); ++m) place[groups_[g].members[m]] = {g, m};
    }
    for (std::size_t t = 0; t < place.size(); ++t) {
      Outcome& outcome = outcomes_[place[t].first];
      if (place[t].second == 0) {
        report_.differences.add(std::move(outcome.differences));
        report_.records_verified += outcome.records;
      }
      count_tensor(t, outcome, place[t].second);
    }
    report_.read_bytes = read_bytes_;
    account_for_keys();
    if (report_.records_verified == 0 && report_.differences.empty()) {
      report_.differences.add(Error(Code::kUnverified, "the ledger has nothing that files could confirm")
                                  .try_this("load with --ledger, with digests on, something that files hold"));
    }
    return std::move(report_);
  }

  // Both sides are accounted for (R38): a key that the ledger does not know was left out by somebody.
  void account_for_keys() {
    std::set<std::string_view> known;
    for (const Tensor& tensor : ledger_.tensors) {
      for (const ledger::Source& source : tensor.sources) known.insert(source.key);
    }
    for (const auto& [key, rule] : ledger_.ignored_keys) known.insert(key);
    for (const std::string& key : ledger_.unexpected_keys) known.insert(key);
    for (const CatalogTensor& tensor : inputs_.catalog.tensors) {
      if (known.contains(tensor.name)) continue;
      if (report_.differences.is_full()) {
        report_.differences.count_not_listed(1);
        continue;
      }
      report_.differences.add(Error(Code::kUnverified, "the checkpoint has a key that the ledger does not account for")
                                  .by_rule("R38")
                                  .of_tensor(tensor.name));
    }
  }

  void count_tensor(std::size_t t, const Outcome& outcome, std::size_t member) {
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
  VerifyFiles files_;
  MemoryGate gate_;
  std::vector<Group> groups_;
  std::vector<bool> too_much_;     // by group
  std::vector<bool> misfits_;      // by tensor
  std::vector<Outcome> outcomes_;  // by group
  std::atomic<std::size_t> next_ = 0;
  std::atomic<std::uint64_t> read_bytes_ = 0;
  std::atomic<bool> failed_ = false;
  std::mutex errors_mutex_;
  Errors errors_;
  VerifyReport report_;
};

}  // namespace

Result<VerifyReport, Errors> verify(const Ledger& ledger, const VerifyInputs& inputs, const VerifyOptions& options) {
  try {
    return Verification(ledger, inputs, options).run();
  } catch (const std::bad_alloc&) {
    return fail(Errors(Error(Code::kOutOfMemory, "the host has no memory left for the verification")));
  } catch (const std::exception& exception) {
    return fail(Errors(Error(Code::kInternal, fmt::format("the verification stopped: {}", exception.what()))));
  }
}

}  // namespace lading::exec
