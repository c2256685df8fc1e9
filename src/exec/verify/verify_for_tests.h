// For tests of verify: a world with real files, loaded; and the ledger of that, as it is read back.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/safetensors_header.h"
#include "exec/executor.h"
#include "exec/verify/verify.h"
#include "ledger/ledger_for_tests.h"
#include "support/safetensors_bytes.h"
#include "support/temp_dir.h"

namespace lading::exec::verifying {

using namespace planner::world;
using ledger::Ledger;
using ledger::Record;
using ledger::test::all_text;

class Loaded {
 public:
  enum class Data : std::uint8_t { kRandom, kSameInAllKeys };

  explicit Loaded(World world, std::uint64_t seed = 1, Data data = Data::kRandom)
      : world_(std::move(world)), data_(data), dice_(seed) {
    write_files();
  }

  void load() { load(world_.all_ranks()); }
  void load(const Ranks& ranks) {
    const auto skeleton = model::make_skeleton(world_.tensors, world_.ties, world_.pins);
    ASSERT_TRUE(skeleton) << all_text(skeleton.error());
    const auto plan = planner::make_plan({catalog, *skeleton, world_.layout, world_.mapping, world_.policy}, ranks);
    ASSERT_TRUE(plan) << all_text(plan.error());
    std::map<std::pair<std::uint64_t, std::string>, std::vector<std::byte>> units;
    std::vector<std::vector<std::byte>> buffers;
    Inputs inputs{*plan, {}, {}, {}};
    for (const plan::RankPlan& rank : plan->ranks) {
      auto& memory = inputs.memory.emplace_back();
      for (const plan::Destination& d : rank.destinations) {
        auto& buffer = d.flat_parameter.empty() ? buffers.emplace_back() : units[{rank.rank, d.flat_parameter}];
        buffer.resize(std::max<std::size_t>(buffer.size(), d.buffer_bytes));
        memory.push_back({buffer.data(), buffer.size()});
      }
    }
    // A plan numbers the files that it reads; their names say which they are.
    inputs.open = [&](plan::FileId file) { return open(number_of(plan->files[file].name)); };
    const std::vector<std::byte> value(64, std::byte{7});
    inputs.value = [&](const plan::Statement& s, std::uint64_t) -> Result<HostValue> {
      return HostValue{value.data(), *s.shape.size_bytes(s.storage), s.storage};
    };
    const Outcome outcome = execute(inputs, {});
    ASSERT_TRUE(outcome.errors.empty()) << all_text(outcome.errors);
    ledger::LedgerFacts facts;
    facts.checkpoint = dir_.path();
    for (const plan::PlannedFile& file : plan->files) {
      const auto identity = identities()[number_of(file.name)];
      facts.files.push_back(ledger::FileIdentity{identity.inode, static_cast<std::uint64_t>(identity.mtime_s),
                                                 static_cast<std::uint64_t>(identity.mtime_ns)});
    }
    for (std::size_t i = 0; i < outcome.destinations.size(); ++i) {
      const DestinationRef& ref = outcome.destinations[i];
      const DestinationOutcome& found = outcome.outcomes[i];
      const auto& d = plan->ranks[ref.rank].destinations[ref.destination];
      const bool kept = plan->statements[d.statement].provenance == Provenance::kKept;
      facts.destinations.push_back({ref.rank, ref.destination, found.written_bytes, found.expected_bytes,
                                    kept ? std::nullopt : std::optional(found.digest)});
    }
    const auto read_back = ledger::test::parse(ledger_json(make_ledger(*plan, facts)));
    ASSERT_TRUE(read_back) << all_text(read_back.error());
    bill = *read_back;
  }

  using Open = std::function<Result<io::File>(std::uint32_t)>;

  [[nodiscard]] Result<VerifyReport, Errors> verify(const VerifyOptions& options = {}) const {
    return verify(options, opener());
  }
  [[nodiscard]] Result<VerifyReport, Errors> verify(const VerifyOptions& options, const Open& open) const {
    return exec::verify(bill, {catalog, open, identities()}, options);
  }
  [[nodiscard]] Result<io::File> open(std::uint32_t file) const {
    return io::File::adopt(io::Fd(::open(path(file).c_str(), O_RDONLY | O_CLOEXEC)), catalog.files[file].name);
  }

  /// The report; it must come to one.
  [[nodiscard]] VerifyReport report(const VerifyOptions& options = {}) const {
    auto result = verify(options);
    EXPECT_TRUE(result) << all_text(result.error());
    return result ? *std::move(result) : VerifyReport{};
  }

  /// Changes a byte of a key's data, and leaves the file's times as they were.
  void flip_bit(const std::string& key, std::uint64_t byte) const {
    const checkpoint::CatalogTensor* const found = catalog.find(key);
    const std::string path = dir_.path(catalog.files[found->file].name);
    const auto time = std::filesystem::last_write_time(path);
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    const auto at = static_cast<std::streamoff>(found->bytes.begin + byte);
    file.seekg(at);
    const int value = file.get();
    file.seekp(at);
    file.put(static_cast<char>(value ^ 4));
    file.close();
    std::filesystem::last_write_time(path, time);
  }

  [[nodiscard]] std::string path(std::size_t file) const { return dir_.path(catalog.files[file].name); }
  [[nodiscard]] Record& record(std::uint64_t rank, std::string_view name) {
    for (Record& found : bill.records) {
      if (found.rank == rank && bill.tensors[found.tensor].name == name && found.slot.empty()) return found;
    }
    ADD_FAILURE() << name;
    return bill.records.front();
  }

  checkpoint::Catalog catalog;
  Ledger bill;

 private:
  void write_files() {
    std::uint32_t files = 0;
    for (const Key& key : world_.keys) files = std::max(files, key.file + 1);
    std::sort(world_.keys.begin(), world_.keys.end(), [](const Key& a, const Key& b) { return a.name < b.name; });
    for (std::uint32_t f = 0; f < files; ++f) {
      std::string header;
      std::string data;
      for (const Key& key : world_.keys) {
        if (key.file != f) continue;
        const std::size_t begin = data.size();
        if (data_ == Data::kSameInAllKeys) dice_.seed(5);
        for (std::uint64_t i = *key.shape.size_bytes(key.dtype); i > 0; --i) data += static_cast<char>(dice_() & 0xFF);
        header += fmt::format(R"({}"{}":{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})", header.empty() ? "" : ",",
                              key.name, name(key.dtype), key.shape.text(), begin, data.size());
      }
      const std::string bytes = test::safetensors_bytes("{" + header + "}", data);
      const std::string file = fmt::format("model-{}.safetensors", f);
      dir_.write(file, bytes);
      auto parsed = checkpoint::parse_header(JsonBuffer::copy_of("{" + header + "}"), {file, bytes.size()});
      ASSERT_TRUE(parsed) << all_text(parsed.error());
      auto part = checkpoint::catalog_of_file({file, bytes.size(), *std::move(parsed)}).catalog;
      for (auto& tensor : part.tensors) {
        tensor.file = f;
        catalog.tensors.push_back(std::move(tensor));
      }
      catalog.files.push_back(std::move(part.files.front()));
    }
    std::sort(catalog.tensors.begin(), catalog.tensors.end(),
              [](const auto& a, const auto& b) { return a.name < b.name; });
  }

  [[nodiscard]] std::uint32_t number_of(std::string_view file) const {
    std::uint32_t number = 0;
    while (catalog.files.at(number).name != file) ++number;
    return number;
  }

  [[nodiscard]] Open opener() const {
    return [this](std::uint32_t file) { return open(file); };
  }

  [[nodiscard]] std::vector<io::FileIdentity> identities() const {
    std::vector<io::FileIdentity> all;
    for (std::uint32_t f = 0; f < catalog.files.size(); ++f) all.push_back(open(f)->identity());
    return all;
  }

  World world_;
  Data data_;
  std::mt19937_64 dice_;
  test::TempDir dir_;
};

inline World world_of(Key key, std::vector<layout::Axis> mesh, std::vector<Cut> cuts) {
  World world;
  world.tensors = {param(key.name, key.shape, DType::kF32)};
  world.mesh(std::move(mesh)).place(key.name, std::move(cuts));
  world.keys = {std::move(key)};
  return world;
}

// The only difference, as a code and a text.
inline std::string only(const VerifyReport& report) {
  if (report.differences.size() != 1)
    return fmt::format("{}:\n{}", report.differences.size(), all_text(report.differences));
  const Error& error = report.differences.front();
  return fmt::format("{} {} rank {}: {}", word(error.code), error.tensor.value_or("-"), error.rank.value_or(-1),
                     error.message);
}

}  // namespace lading::exec::verifying
