#include "ledger/audit.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/text.h"
#include "layout/region.h"

namespace lading::ledger {
namespace {

// A grid finer than this is no layout of ours. What it covers is then not known, which is safe to say.
constexpr std::uint64_t kMostCells = std::uint64_t{1} << 22;
constexpr std::size_t kRanksInMessages = 8;

// Whether products of runs lie apart from each other: every dim is divided where any run begins or ends, and no cell of
// that grid may be taken twice. Costs as much as there are cells; false also if there are too many.
class Grid {
 public:
  explicit Grid(const std::vector<const RecordedRegion*>& products) {
    const std::size_t rank = products.front()->runs.size();
    borders_.resize(rank);
    for (const RecordedRegion* product : products) {
      for (std::size_t d = 0; d < rank; ++d) {
        for (const RecordedRun& run : product->runs[d]) {
          borders_[d].push_back(run.begin);
          borders_[d].push_back(run.begin + run.size);
        }
      }
    }
    for (auto& borders : borders_) {
      std::sort(borders.begin(), borders.end());
      borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
      cells_ = cells_ > kMostCells ? cells_ : cells_ * std::max<std::uint64_t>(1, borders.size());
    }
  }

  [[nodiscard]] bool are_apart(const std::vector<const RecordedRegion*>& products) {
    if (cells_ > kMostCells) return false;
    taken_.assign(cells_, false);
    return std::all_of(products.begin(), products.end(),
                       [&](const RecordedRegion* product) { return take(*product, 0, 0); });
  }

 private:
  bool take(const RecordedRegion& product, std::size_t dim, std::uint64_t cell) {
    if (dim == borders_.size()) {
      const bool was_free = !taken_[cell];
      taken_[cell] = true;
      return was_free;
    }
    const auto& borders = borders_[dim];
    for (const RecordedRun& run : product.runs[dim]) {
      auto i =
          static_cast<std::uint64_t>(std::lower_bound(borders.begin(), borders.end(), run.begin) - borders.begin());
      for (; borders[i] < run.begin + run.size; ++i) {
        if (!take(product, dim + 1, cell * borders.size() + i)) return false;
      }
    }
    return true;
  }

  std::vector<std::vector<std::uint64_t>> borders_;
  std::uint64_t cells_ = 1;
  std::vector<bool> taken_;
};

// Flat stretches of one product, or the product itself: whether they make it up.
bool make_up_product(std::vector<const RecordedRegion*> parts) {
  const std::uint64_t elems = parts.front()->product_elems();
  if (parts.size() == 1 && !parts.front()->flat) return true;
  std::sort(parts.begin(), parts.end(), [](const RecordedRegion* a, const RecordedRegion* b) {
    return (a->flat ? a->flat->begin : 0) < (b->flat ? b->flat->begin : 0);
  });
  std::uint64_t reached = 0;
  for (const RecordedRegion* part : parts) {
    if (!part->flat || part->flat->begin != reached) return false;
    reached = part->flat->end;
  }
  return reached == elems;
}

Coverage coverage_of(const std::vector<const RecordedRegion*>& regions, const Shape& shape) {
  std::map<std::string, std::vector<const RecordedRegion*>> by_product;
  for (const RecordedRegion* region : regions) {
    if (region->elems() == 0) continue;
    RecordedRegion product = *region;
    product.flat.reset();
    by_product[code_of(product)].push_back(region);
  }
  std::uint64_t elems = 0;
  std::vector<const RecordedRegion*> products;
  for (const auto& [code, parts] : by_product) {
    if (!make_up_product(parts)) return Coverage::kPartial;
    const std::uint64_t more = parts.front()->product_elems();
    if (more > *shape.num_elems() - elems) return Coverage::kPartial;
    elems += more;
    products.push_back(parts.front());
  }
  if (elems != *shape.num_elems()) return Coverage::kPartial;
  // As many elements as there are, and none twice: all of them.
  const bool tiled = products.size() <= 1 || Grid(products).are_apart(products);
  return tiled ? Coverage::kWhole : Coverage::kPartial;
}

SlotDigest slot_digest(const Ledger& ledger, std::string slot, const std::vector<std::uint32_t>& records) {
  SlotDigest result;
  result.slot = std::move(slot);
  std::map<std::string, Share> shares;
  for (const std::uint32_t r : records) {
    const Record& record = ledger.records[r];
    Share& share = shares[code_of(record.region)];
    share.records.push_back(r);
    if (!record.digest) continue;
    if (!share.digest) share.digest = record.digest;
    if (share.digest != record.digest) share.agree = false;
  }
  std::vector<const RecordedRegion*> regions;
  device::Digest sum;
  bool known = true;
  for (auto& [code, share] : shares) {
    regions.push_back(&ledger.records[share.records.front()].region);
    known = known && share.digest && share.agree;
    if (share.digest) sum += *share.digest;
    result.shares.push_back(std::move(share));
  }
  result.coverage = coverage_of(regions, ledger.tensors[ledger.records[records.front()].tensor].shape);
  if (known && result.coverage == Coverage::kWhole) result.digest = sum;
  return result;
}

Error differ(const Ledger& ledger, const Share& share, const std::string& slot) {
  const Record& first = ledger.records[share.records.front()];
  std::string found;
  std::vector<std::pair<std::string, std::vector<std::uint32_t>>> sides;
  for (const std::uint32_t r : share.records) {
    if (!ledger.records[r].digest) continue;
    const std::string text = ledger.records[r].digest->text();
    const auto side = std::find_if(sides.begin(), sides.end(), [&](const auto& s) { return s.first == text; });
    if (side != sides.end()) {
      side->second.push_back(r);
    } else if (sides.size() < kRanksInMessages) {
      sides.push_back({text, {r}});
    }
  }
  for (const auto& [text, records] : sides) {
    found += fmt::format("{}{} on {}", found.empty() ? "" : "; ", text, ranks_text(ledger, records));
  }
  return Error(Code::kValuesDiffer, fmt::format("replicas of the tensor have different values on different ranks{}",
                                                slot.empty() ? "" : fmt::format(", in slot {}", quote(slot))))
      .of_tensor(ledger.tensors[first.tensor].name)
      .by_rule("R62")
      .wanted("one digest")
      .got(std::move(found));
}

class RecordChecker {
 public:
  explicit RecordChecker(const Ledger& ledger) : ledger_(ledger), misfits_(ledger.tensors.size(), false) {}

  RecordAudit run() {
    std::size_t next = 0;
    for (const std::uint64_t rank : ledger_.ranks) {
      for (std::uint32_t t = 0; t < ledger_.tensors.size(); ++t) {
        const std::size_t first = next;
        while (next < ledger_.records.size() && ledger_.records[next].rank == rank &&
               ledger_.records[next].tensor == t) {
          ++next;
        }
        check_tensor(rank, t, first, next);
      }
    }
    if (!ledger_.complete && errors_.empty()) {
      errors_.add(Error(Code::kIncomplete, "the load of this ledger has failed").by_rule("R11"));
    }
    return {std::move(errors_), std::move(misfits_)};
  }

 private:
  void check_tensor(std::uint64_t rank, std::uint32_t t, std::size_t first, std::size_t last) {
    const Tensor& tensor = ledger_.tensors[t];
    const auto record_of = [&](const std::string& slot) -> const Record* {
      for (std::size_t r = first; r < last; ++r) {
        if (ledger_.records[r].slot == slot) return &ledger_.records[r];
      }
      return nullptr;
    };
    for (std::size_t r = first; r < last; ++r) check_complete(ledger_.records[r]);
    for (const layout::Slot& slot : tensor.placement.slots) {
      const layout::Region region = layout::region_of(tensor.shape, slot.cuts, ledger_.mesh, rank);
      const Record* const record = record_of(slot.name);
      if (record != nullptr && record->provenance == Provenance::kAlias) continue;  // its memory is the other record's
      if (record == nullptr && region.present) {
        add(rank, tensor,
            Error(Code::kIncomplete, "the ledger has no record of the tensor on this rank").by_rule("R1"));
      } else if (record != nullptr && (!region.present || record->region != RecordedRegion::of(region))) {
        misfits_[t] = true;
        add(rank, tensor,
            Error(Code::kIncomplete,
                  "the record does not describe the part of the tensor that its placement gives to the rank")
                .by_rule("R1"));
      }
    }
  }

  void check_complete(const Record& record) {
    const Tensor& tensor = ledger_.tensors[record.tensor];
    if (record.provenance == Provenance::kAlias) return;  // said once, of the record that it shares
    if (record.provenance != Provenance::kKept && record.expected_bytes < record.bytes) {
      misfits_[record.tensor] = true;
      add(record.rank, tensor,
          Error(Code::kIncomplete, "the record expects fewer bytes than the rank owns")
              .by_rule("R11")
              .wanted(fmt::format("{} bytes or more", record.bytes))
              .got(fmt::format("{} bytes", record.expected_bytes)));
    }
    if (record.complete) return;
    add(record.rank, tensor,
        Error(Code::kIncomplete, "not every byte of the tensor was written")
            .by_rule("R11")
            .wanted(fmt::format("{} bytes", record.expected_bytes))
            .got(fmt::format("{} bytes", record.written_bytes)));
  }

  void add(std::uint64_t rank, const Tensor& tensor, Error error) {
    if (errors_.is_full()) return errors_.count_not_listed(1);
    errors_.add(std::move(error).of_tensor(tensor.name).on_rank(static_cast<int>(rank)));
  }

  const Ledger& ledger_;
  Errors errors_;
  std::vector<bool> misfits_;  // by tensor
};

}  // namespace

TensorDigests tensor_digests(const Ledger& ledger) {
  // By tensor and slot, in the order of the records.
  std::vector<std::map<std::string, std::vector<std::uint32_t>>> records(ledger.tensors.size());
  for (std::uint32_t r = 0; r < ledger.records.size(); ++r) {
    records[ledger.records[r].tensor][ledger.records[r].slot].push_back(r);
  }
  TensorDigests digests(ledger.tensors.size());
  for (std::size_t t = 0; t < records.size(); ++t) {
    for (const auto& [slot, of_slot] : records[t]) digests[t].push_back(slot_digest(ledger, slot, of_slot));
  }
  return digests;
}

Errors disagreements(const Ledger& ledger, const TensorDigests& digests) {
  Errors errors;
  for (std::size_t t = 0; t < digests.size(); ++t) {
    const SlotDigest* whole = nullptr;
    for (const SlotDigest& slot : digests[t]) {
      for (const Share& share : slot.shares) {
        if (!share.agree) errors.add(differ(ledger, share, slot.slot));
      }
      if (!slot.digest) continue;
      if (whole != nullptr && whole->digest != slot.digest) {
        errors.add(Error(Code::kValuesDiffer,
                         fmt::format("the slots {} and {} have different values", quote(whole->slot), quote(slot.slot)))
                       .of_tensor(ledger.tensors[t].name)
                       .by_rule("R62")
                       .wanted(whole->digest->text())
                       .got(slot.digest->text()));
      }
      if (whole == nullptr) whole = &slot;
    }
  }
  return errors;
}

RecordAudit check_records(const Ledger& ledger) { return RecordChecker(ledger).run(); }

std::string ranks_text(const Ledger& ledger, const std::vector<std::uint32_t>& records) {
  std::string text = records.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < std::min(records.size(), kRanksInMessages); ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", ledger.records[records[i]].rank);
  }
  if (records.size() > kRanksInMessages) text += fmt::format(" and {} more", records.size() - kRanksInMessages);
  return text;
}

}  // namespace lading::ledger
