#include "checkpoint/catalog.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>

#include "base/text.h"
#include "checkpoint/arrange.h"

namespace lading::checkpoint {
namespace {

void sort_by_name(std::vector<CatalogTensor>& tensors) {
  const auto by_name = [&](std::uint32_t a, std::uint32_t b) {
    const int order = tensors[a].name.compare(tensors[b].name);
    return order != 0 ? order < 0 : tensors[a].file < tensors[b].file;
  };
  std::vector<std::uint32_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0);
  if (std::is_sorted(order.begin(), order.end(), by_name)) return;
  std::sort(order.begin(), order.end(), by_name);
  arrange(tensors, order);
}

// Moves the shards into a catalog; tensors that are in two shards stand there twice, side by side. A shard's tensors
// are freed before the next one's are moved.
CatalogResult merge(std::vector<std::optional<ShardHeader>> shards) {
  CatalogResult result;
  std::vector<CatalogTensor>& tensors = result.catalog.tensors;
  std::size_t count = 0;
  for (const std::optional<ShardHeader>& shard : shards) count += shard ? shard->header.tensors.size() : 0;
  for (std::optional<ShardHeader>& shard : shards) {
    const auto file = static_cast<std::uint32_t>(result.catalog.files.size());
    result.catalog.files.emplace_back();
    if (!shard) continue;
    std::vector<HeaderTensor> of_shard = std::move(shard->header.tensors);
    result.catalog.files.back() = {std::move(shard->name), shard->size_bytes, shard->header.data_begin_bytes,
                                   of_shard.size(), std::move(shard->header.metadata)};
    for (HeaderTensor& tensor : of_shard) tensor.file = file;
    if (of_shard.size() == count) {
      tensors = std::move(of_shard);
    } else {
      tensors.reserve(count);
      std::move(of_shard.begin(), of_shard.end(), std::back_inserter(tensors));
    }
    result.warnings.add(std::move(shard->header.warnings));
  }
  sort_by_name(tensors);
  return result;
}

// Walks the sorted index and the sorted catalog side by side.
class IndexCheck {
 public:
  IndexCheck(Index& index, const Catalog& catalog, std::vector<bool> was_read, std::string_view index_file)
      : index_(index), catalog_(catalog), was_read_(std::move(was_read)), index_file_(index_file) {}

  Errors run() {
    std::sort(index_.entries.begin(), index_.entries.end(),
              [](const IndexEntry& a, const IndexEntry& b) { return a.tensor < b.tensor; });
    const auto& tensors = catalog_.tensors;
    std::size_t t = 0;
    for (const IndexEntry& entry : index_.entries) {
      while (t < tensors.size() && tensors[t].name < entry.tensor) t = report_unlisted(t);
      if (t == tensors.size() || tensors[t].name != entry.tensor) {
        report_missing(entry, "no shard that has it");
        continue;
      }
      t = check_entry(entry, t);
    }
    while (t < tensors.size()) t = report_unlisted(t);
    return std::move(errors_);
  }

 private:
  // As the user would find it: beside the index.
  [[nodiscard]] std::string file_name(const CatalogTensor& tensor) const {
    const std::size_t slash = index_file_.rfind('/');
    const std::string_view directory = index_file_.substr(0, slash == std::string_view::npos ? 0 : slash + 1);
    return std::string(directory) + catalog_.files[tensor.file].name;
  }

  [[nodiscard]] std::size_t end_of_name(std::size_t t) const {
    const auto& tensors = catalog_.tensors;
    std::size_t end = t + 1;
    while (end < tensors.size() && tensors[end].name == tensors[t].name) ++end;
    return end;
  }

  std::size_t check_entry(const IndexEntry& entry, std::size_t t) {
    const std::size_t end = end_of_name(t);
    if (end - t > 1) {
      report_duplicate(t, end, fmt::format("the index names {}", quote(index_.shards[entry.shard])));
    } else if (catalog_.tensors[t].file != entry.shard) {
      report_missing(entry, fmt::format("it is in {}", quote(file_name(catalog_.tensors[t]))));
    }
    return end;
  }

  void report_missing(const IndexEntry& entry, std::string found) {
    if (!was_read_[entry.shard]) return;  // why is told elsewhere
    errors_.add(Error(Code::kIndexMissingTensor, "the shard does not have this tensor, which the index says it has")
                    .in_file(index_file_)
                    .of_tensor(entry.tensor)
                    .at({entry.offset, entry.offset + 1})
                    .by_rule("S5")
                    .wanted(fmt::format("it in {}", quote(index_.shards[entry.shard])))
                    .got(std::move(found))
                    .try_this("Fetch index and shards again, together: they come from different saves."));
  }

  void report_duplicate(std::size_t begin, std::size_t end, std::string expected) {
    std::string places;
    for (std::size_t t = begin; t < end; ++t) {
      places += fmt::format("{}{}", places.empty() ? "" : " and ", quote(file_name(catalog_.tensors[t])));
    }
    errors_.add(Error(Code::kIndexDuplicateTensor, "the tensor is in more than one shard")
                    .in_file(file_name(catalog_.tensors[begin]))
                    .of_tensor(catalog_.tensors[begin].name)
                    .at(catalog_.tensors[begin].bytes)
                    .by_rule("R45")
                    .wanted(std::move(expected))
                    .got(std::move(places)));
  }

  std::size_t report_unlisted(std::size_t t) {
    const std::size_t end = end_of_name(t);
    if (end - t > 1) {
      report_duplicate(t, end, "the index to name it, once");
      return end;
    }
    const CatalogTensor& tensor = catalog_.tensors[t];
    errors_.add(Error(Code::kIndexUnlistedTensor, "the index does not list this tensor, which the shard has")
                    .in_file(file_name(tensor))
                    .of_tensor(tensor.name)
                    .at(tensor.bytes)
                    .by_rule("S5")
                    .wanted(fmt::format("it in {}", quote(index_file_)))
                    .got("no entry"));
    return end;
  }

  Index& index_;
  const Catalog& catalog_;
  std::vector<bool> was_read_;  // by shard
  std::string_view index_file_;
  Errors errors_;
};

}  // namespace

std::span<const CatalogTensor> Catalog::tensors_of(std::uint32_t checkpoint) const {
  const std::size_t begin = checkpoint == 0 ? 0 : adapter_tensors[checkpoint - 1];
  const std::size_t end = checkpoint < adapter_tensors.size() ? adapter_tensors[checkpoint] : tensors.size();
  return std::span(tensors).subspan(begin, end - begin);
}

const CatalogTensor* Catalog::find(std::string_view name, std::uint32_t checkpoint) const {
  const std::span<const CatalogTensor> all = tensors_of(checkpoint);
  const auto found = std::lower_bound(all.begin(), all.end(), name,
                                      [](const CatalogTensor& tensor, std::string_view n) { return tensor.name < n; });
  return found != all.end() && found->name == name ? &*found : nullptr;
}

void Catalog::append(Catalog adapter) {
  LADING_CHECK(adapter.adapter_tensors.empty());
  const auto first_file = static_cast<std::uint32_t>(files.size());
  const std::uint32_t checkpoint = checkpoints();
  adapter_tensors.push_back(tensors.size());
  for (CatalogFile& file : adapter.files) {
    file.checkpoint = checkpoint;
    files.push_back(std::move(file));
  }
  for (CatalogTensor& tensor : adapter.tensors) {
    tensor.file += first_file;
    tensors.push_back(std::move(tensor));
  }
}

std::uint64_t Catalog::tensor_bytes() const {
  // Cannot overflow: the ranges of a file tile a part of it, and file sizes are real.
  std::uint64_t sum = 0;
  for (const CatalogTensor& tensor : tensors) sum += tensor.bytes.size_bytes();
  return sum;
}

CatalogResult catalog_of_file(ShardHeader shard) {
  std::vector<std::optional<ShardHeader>> shards;
  shards.emplace_back(std::move(shard));
  return merge(std::move(shards));
}

Result<CatalogResult, Errors> catalog_of_index(Index index, std::vector<std::optional<ShardHeader>> shards,
                                               std::string_view index_file) {
  LADING_CHECK(shards.size() == index.shards.size());
  std::vector<bool> was_read;
  was_read.reserve(shards.size());
  for (const auto& shard : shards) was_read.push_back(shard.has_value());
  const bool complete = std::find(was_read.begin(), was_read.end(), false) == was_read.end();
  CatalogResult result = merge(std::move(shards));
  Errors errors = IndexCheck(index, result.catalog, std::move(was_read), index_file).run();
  if (!errors.empty() || !complete) return fail(std::move(errors));
  result.warnings.add(std::move(index.warnings));
  const std::uint64_t total = result.catalog.tensor_bytes();
  if (index.total_size_bytes && *index.total_size_bytes != total) {
    result.warnings.add(Error(Code::kIndexTotalSize, "the total_size in the index is wrong")
                            .in_file(index_file)
                            .wanted(fmt::format("{} bytes, the sum of its tensors", total))
                            .got(fmt::format("{} bytes", *index.total_size_bytes)));
  }
  return result;
}

}  // namespace lading::checkpoint
