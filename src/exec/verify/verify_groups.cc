#include "exec/verify/verify_groups.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/checked.h"

namespace lading::exec {
namespace {

using checkpoint::CatalogTensor;
using ledger::Ledger;
using ledger::Tensor;

constexpr std::uint64_t kEndless = std::numeric_limits<std::uint64_t>::max();

// Slots hold a tensor again, cut otherwise, and an expression may take a source twice. More often is not ordinary.
constexpr std::uint64_t kTimesASourceIsUsed = 4;

std::uint64_t add(std::uint64_t a, std::uint64_t b) { return checked_add(a, b).value_or(kEndless); }
std::uint64_t multiply(std::uint64_t a, std::uint64_t b) { return checked_mul(a, b).value_or(kEndless); }

// Of elements in memory; packed ones are counted as a byte each.
std::uint64_t bytes_of(std::uint64_t elems, DType storage) { return multiply(elems, (bits(storage) + 7) / 8); }

// What digesting the records takes: each region once, however many ranks hold it.
std::uint64_t claimed_bytes(const Group& group, const Ledger& ledger, const ledger::TensorDigests& digests) {
  std::set<std::string> seen;
  std::uint64_t elems = 0;
  for (const std::uint32_t t : group.members) {
    for (const ledger::SlotDigest& slot : digests[t]) {
      for (const ledger::Share& share : slot.shares) {
        const ledger::RecordedRegion& region = ledger.records[share.records.front()].region;
        if (seen.insert(ledger::code_of(region)).second) elems = add(elems, region.elems());
      }
    }
  }
  return multiply(bytes_of(elems, group.storage), 1 + ledger.tensors[group.root].must_equal.size());
}

using PerElement = std::map<std::string_view, std::uint64_t>;

// How many elements an expression makes of each element of a key: several, where it holds several codes.
void add_codes(const mapping::Expression& expression, PerElement& per_element) {
  if (expression.op == mapping::Op::kDequantize && expression.decoding.code) {
    std::uint64_t& most = per_element.try_emplace(expression.key, 1).first->second;
    most = std::max(most, expression.decoding.per_element);
  }
  for (const mapping::Expression& part : expression.parts) add_codes(part, per_element);
}

std::uint64_t source_bytes(const Group& group, const Tensor& root, const checkpoint::Catalog& catalog) {
  PerElement per_element;
  add_codes(root.expression, per_element);
  for (const mapping::Expression& other : root.must_equal) add_codes(other, per_element);
  std::uint64_t bytes = 0;
  for (const ledger::Source& source : root.sources) {
    const CatalogTensor* const found = catalog.find(source.key, root.checkpoint);
    if (found == nullptr) continue;
    const auto codes = per_element.find(source.key);
    const std::uint64_t elems = multiply(*found->shape.num_elems(), codes == per_element.end() ? 1 : codes->second);
    bytes = add(bytes, bytes_of(elems, group.storage));
  }
  return bytes;
}

void place_in_files(Group& group, const Tensor& root, const checkpoint::Catalog& catalog) {
  for (const ledger::Source& source : root.sources) {
    const CatalogTensor* const found = catalog.find(source.key, root.checkpoint);
    if (found == nullptr) continue;
    if (group.files.empty() ||
        std::pair(found->file, found->bytes.begin) < std::pair(group.files.front(), group.begin_bytes)) {
      group.begin_bytes = found->bytes.begin;
      group.files.insert(group.files.begin(), found->file);
    } else {
      group.files.push_back(found->file);
    }
  }
  std::sort(group.files.begin(), group.files.end());
  group.files.erase(std::unique(group.files.begin(), group.files.end()), group.files.end());
}

}  // namespace

std::vector<Group> groups_of(const Ledger& ledger, const ledger::TensorDigests& digests,
                             const checkpoint::Catalog& catalog) {
  std::vector<Group> groups;
  std::map<std::pair<std::uint32_t, DType>, std::size_t> known;
  for (std::uint32_t t = 0; t < ledger.tensors.size(); ++t) {
    const std::uint32_t root = ledger.root_of(t);
    const auto [place, is_new] = known.try_emplace({root, ledger.tensors[t].storage}, groups.size());
    if (is_new) groups.push_back({root, ledger.tensors[t].storage, {}, {}, 0, 0});
    groups[place->second].members.push_back(t);
  }
  for (Group& group : groups) {
    const Tensor& root = ledger.tensors[group.root];
    place_in_files(group, root, catalog);
    const std::uint64_t claimed = claimed_bytes(group, ledger, digests);
    const std::uint64_t held = multiply(source_bytes(group, root, catalog), kTimesASourceIsUsed);
    group.made_bytes = claimed > held ? claimed - held : 0;
  }
  std::stable_sort(groups.begin(), groups.end(), [](const Group& a, const Group& b) {
    return std::tuple(a.files.empty(), a.files.empty() ? 0 : a.files.front(), a.begin_bytes) <
           std::tuple(b.files.empty(), b.files.empty() ? 0 : b.files.front(), b.begin_bytes);
  });
  return groups;
}

}  // namespace lading::exec
