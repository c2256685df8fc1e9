#include "exec/verify.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <random>

#include "exec/executor.h"
#include "ledger/ledger_for_tests.h"
#include "support/label_oracle.h"
#include "support/safetensors_bytes.h"
#include "support/temp_dir.h"

namespace lading::exec {
namespace {

using namespace planner::world;
using ledger::Ledger;
using ledger::Record;
using ledger::test::all_text;
using mapping::Expression;
using testing::HasSubstr;

// A world with real files, loaded; and the ledger of that, as it is read back.
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
    inputs.open = [&](plan::FileId file) { return opener()(number_of(plan->files[file].name)); };
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
    for (std::size_t i = 0; i < outcome.targets.size(); ++i) {
      const Target& target = outcome.targets[i];
      const TargetOutcome& found = outcome.outcomes[i];
      const auto& d = plan->ranks[target.rank].destinations[target.destination];
      const bool kept = plan->statements[d.statement].provenance == Provenance::kKept;
      facts.destinations.push_back({target.rank, target.destination, found.written_bytes, found.expected_bytes,
                                    kept ? std::nullopt : std::optional(found.digest)});
    }
    const auto read_back = ledger::test::parse(ledger_json(make_ledger(*plan, facts)));
    ASSERT_TRUE(read_back) << all_text(read_back.error());
    bill = *read_back;
  }

  [[nodiscard]] Result<VerifyReport, Errors> verify(const VerifyOptions& options = {}) const {
    return exec::verify(bill, {catalog, opener(), identities()}, options);
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

  [[nodiscard]] std::function<Result<io::File>(std::uint32_t)> opener() const {
    return [this](std::uint32_t file) -> Result<io::File> {
      return io::File::adopt(io::Fd(::open(path(file).c_str(), O_RDONLY | O_CLOEXEC)), catalog.files[file].name);
    };
  }

  [[nodiscard]] std::vector<io::FileIdentity> identities() const {
    std::vector<io::FileIdentity> all;
    for (std::uint32_t f = 0; f < catalog.files.size(); ++f) all.push_back(opener()(f)->identity());
    return all;
  }

  World world_;
  Data data_;
  std::mt19937_64 dice_;
  test::TempDir dir_;
};

World world_of(Key key, std::vector<layout::Axis> mesh, std::vector<Cut> cuts) {
  World world;
  world.tensors = {param(key.name, key.shape, DType::kF32)};
  world.mesh(std::move(mesh)).place(key.name, std::move(cuts));
  world.keys = {std::move(key)};
  return world;
}

// The only difference, as a code and a text.
std::string only(const VerifyReport& report) {
  if (report.differences.size() != 1)
    return fmt::format("{}:\n{}", report.differences.size(), all_text(report.differences));
  const Error& error = report.differences.front();
  return fmt::format("{} {} rank {}: {}", word(error.code), error.tensor.value_or("-"), error.rank.value_or(-1),
                     error.message);
}

TEST(Verify, R1_EverythingThatWasLoadedAgrees) {
  Loaded loaded(ledger::test::world_of_everything());
  loaded.load();
  const VerifyReport report = loaded.report();
  EXPECT_TRUE(report.agrees()) << all_text(report.differences);
  EXPECT_EQ(report.tensors_verified, 7U);
  EXPECT_EQ(report.tensors_partly_verified, 0U);
  EXPECT_EQ(report.records_verified, 4U * (7 + 1));
  EXPECT_GT(report.read_bytes, 0U);
  ASSERT_EQ(report.not_verified.size(), 2U);
  EXPECT_EQ(report.not_verified[0].tensor, "kept");
  EXPECT_THAT(report.not_verified[0].reason, HasSubstr("kept"));
  EXPECT_EQ(report.not_verified[1].tensor, "rope");
  EXPECT_THAT(report.not_verified[1].reason, HasSubstr("handed it in"));
}

TEST(Verify, R62_TheAnswerDoesNotDependOnThreads) {
  Loaded loaded(ledger::test::world_of_everything());
  loaded.load();
  loaded.flip_bit("a", 3);
  loaded.flip_bit("plain", 11);
  const VerifyReport one = loaded.report({.threads = 1});
  const VerifyReport four = loaded.report({.threads = 4});
  EXPECT_EQ(all_text(one.differences), all_text(four.differences));
  EXPECT_FALSE(one.agrees());
  EXPECT_EQ(one.tensors_verified, four.tensors_verified);
  EXPECT_EQ(one.read_bytes, four.read_bytes);
}

// The way of the executor and this one are different; random expressions must come to the same digests.
TEST(Verify, RandomExpressionsAgree) {
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    mapping::oracle::Generator generator(seed);
    const auto [expression, dims] = generator.make(static_cast<int>(1 + seed % 3));
    World world;
    for (const auto& [key, shape] : generator.shapes) {
      world.keys.push_back(
          {key, shape, seed % 2 == 0 ? DType::kF32 : DType::kF16, static_cast<std::uint32_t>(seed % 2)});
    }
    world.keys.push_back({"zz", {1}, DType::kF32, 0});
    world.tensors = {param("t", Shape(dims)), param("zz", {1})};
    world.mesh({{"dp", 3}}).build("t", expression);
    world.policy.unexpected = policy::Strictness::kReport;
    world.policy.dtype = DType::kF32;
    if (!dims.empty() && seed % 3 == 0) world.place("t", {shard(0, seed % dims.size())});
    if (seed % 3 == 1) world.place("t", {flat({0})});
    Loaded loaded(world, seed);
    loaded.load();
    if (testing::Test::HasFatalFailure()) return;
    const VerifyReport report = loaded.report({.window_bytes = 1 + seed % 64});
    EXPECT_TRUE(report.agrees()) << seed << " " << expression.text() << "\n" << all_text(report.differences);
    EXPECT_EQ(report.tensors_verified, 2U) << seed;
  }
}

TEST(Verify, LongTensorsStreamInSeveralPieces) {
  World world = world_of({"w", {1024, 3001}, DType::kBF16}, {{"tp", 2}}, {shard(0, 1)});
  world.tensors.push_back(init(param("random", {1'500'001}, DType::kBF16), normal(1)));
  world.policy.allow_missing = {"random"};
  world.policy.dtype = DType::kF32;
  Loaded loaded(world);
  loaded.load();
  const VerifyReport report = loaded.report();
  EXPECT_TRUE(report.agrees()) << all_text(report.differences);
  EXPECT_EQ(report.tensors_verified, 2U);
  EXPECT_EQ(report.read_bytes, 1024U * 3001 * 2);
  loaded.flip_bit("w", 1024 * 3001 * 2 - 1);
  EXPECT_THAT(only(loaded.report()), HasSubstr("values_differ w rank 1: rank 1 and the files"));
}

TEST(Verify, R45_OneFlippedBitIsFoundWhereItIs) {
  Loaded loaded(world_of({"w", {8, 4}}, {{"r", 2}, {"dp", 4}}, {shard(1, 0)}));
  loaded.load();
  loaded.flip_bit("w", 5 * 16 + 2);  // row 5: the third quarter
  const VerifyReport report = loaded.report();
  EXPECT_EQ(only(report), "values_differ w rank 2: ranks 2, 6 and the files do not hold the same values");
  EXPECT_EQ(report.tensors_verified, 0U);
  EXPECT_EQ(report.records_verified, 6U);
}

TEST(Verify, AWrongDigestIsNamed) {
  Loaded loaded(world_of({"w", {8, 4}}, {{"dp", 4}}, {shard(0, 0)}));
  loaded.load();
  const std::string right = loaded.record(3, "w").digest->text();
  loaded.record(3, "w").digest->lanes[1] ^= 1;
  const VerifyReport report = loaded.report();
  EXPECT_EQ(only(report), "values_differ w rank 3: rank 3 and the files do not hold the same values");
  EXPECT_EQ(report.differences.front().expected, right);
  EXPECT_EQ(report.differences.front().found, loaded.record(3, "w").digest->text());
}

// The sum over the tensor would still be right.
TEST(Verify, DigestsThatChangedPlacesAreFound) {
  Loaded loaded(world_of({"w", {8, 4}}, {{"dp", 2}}, {shard(0, 0)}));
  loaded.load();
  std::swap(loaded.record(0, "w").digest, loaded.record(1, "w").digest);
  EXPECT_EQ(loaded.report().differences.size(), 2U);
}

TEST(Verify, R1_AMissingRecordIsNamed) {
  Loaded loaded(world_of({"w", {8, 4}}, {{"dp", 4}}, {}));
  loaded.load();
  loaded.bill.records.erase(loaded.bill.records.begin() + 2);
  EXPECT_EQ(only(loaded.report()), "incomplete w rank 2: the rank has it, and there is no record of it");
}

TEST(Verify, ReplicasThatDisagreeAreNamed) {
  Loaded loaded(world_of({"w", {8, 4}}, {{"r", 3}}, {}));
  loaded.load();
  loaded.record(1, "w").digest->lanes[0] += 5;
  const VerifyReport report = loaded.report();
  ASSERT_EQ(report.differences.size(), 2U) << all_text(report.differences);
  EXPECT_THAT(report.differences.list()[0].found, HasSubstr("on ranks 0, 2"));
  EXPECT_EQ(report.differences.list()[1].rank, 1);
}

TEST(Verify, R11_ARecordThatIsNotCompleteIsNamed) {
  Loaded loaded(world_of({"w", {8, 4}}, {{"dp", 2}}, {shard(0, 0)}));
  loaded.load();
  loaded.record(1, "w").written_bytes = 60;
  loaded.record(1, "w").complete = false;
  EXPECT_EQ(only(loaded.report()), "incomplete w rank 1: not every byte of the tensor was written");
}

TEST(Verify, WithoutDigestsNothingIsVerified) {
  Loaded loaded(world_of({"w", {8, 4}}, {{"dp", 2}}, {}));
  loaded.load();
  for (Record& record : loaded.bill.records) record.digest.reset();
  const VerifyReport report = loaded.report();
  EXPECT_EQ(only(report), "unverified w rank 0: no digest was taken on ranks 0, 1");
  EXPECT_EQ(report.tensors_verified, 0U);
}

TEST(Verify, R45_ATruncatedFileIsAnError) {
  Loaded loaded(ledger::test::world_of_everything());
  loaded.load();
  std::filesystem::resize_file(loaded.path(1), loaded.catalog.files[1].size_bytes - 8);
  const auto result = loaded.verify();
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().front().code, Code::kFileTruncated) << all_text(result.error());
  EXPECT_EQ(result.error().front().file, "model-1.safetensors");
  EXPECT_TRUE(result.error().front().tensor);
}

TEST(Verify, R45_AFileOfAnotherSizeIsNamed) {
  Loaded loaded(world_of({"w", {8, 4}}, {{"dp", 2}}, {}));
  loaded.load();
  loaded.bill.files[0].size_bytes += 1;
  const VerifyReport report = loaded.report();
  ASSERT_EQ(report.differences.size(), 1U);
  EXPECT_EQ(report.differences.front().code, Code::kFileChanged);
  EXPECT_EQ(report.differences.front().file, "model-0.safetensors");
  EXPECT_EQ(report.tensors_verified, 1U);
}

TEST(Verify, R45_AReplacedFileIsNamedIfItsIdentityIsAskedFor) {
  Loaded loaded(world_of({"w", {8, 4}}, {{"dp", 2}}, {}));
  loaded.load();
  loaded.bill.files[0].identity->mtime_ns ^= 1;
  EXPECT_THAT(only(loaded.report()), HasSubstr("file_changed"));
  loaded.bill.files[0].identity.reset();
  EXPECT_TRUE(loaded.report().agrees());
}

TEST(Verify, R38_AKeyThatIsGoneIsNamed) {
  Loaded loaded(ledger::test::world_of_everything());
  loaded.load();
  std::erase_if(loaded.catalog.tensors, [](const auto& tensor) { return tensor.name == "b"; });
  const VerifyReport report = loaded.report();
  EXPECT_EQ(only(report), "values_differ built rank -1: \"b\": the checkpoint has no such key any more");
  EXPECT_EQ(report.tensors_verified, 6U);
  EXPECT_EQ(report.not_verified.front().tensor, "built");
}

TEST(Verify, AKeyOfAnotherShapeOrPlaceIsNamed) {
  Loaded loaded(world_of({"w", {8, 4}}, {{"dp", 2}}, {}));
  loaded.load();
  loaded.catalog.tensors[0].shape = Shape{4, 8};
  EXPECT_EQ(only(loaded.report()), "values_differ w rank -1: \"w\": the key has another dtype or shape");
  loaded.catalog.tensors[0].shape = Shape{8, 4};
  loaded.bill.tensors[0].sources[0].bytes.begin -= 1;
  loaded.bill.tensors[0].sources[0].bytes.end -= 1;
  EXPECT_EQ(only(loaded.report()), "values_differ w rank -1: \"w\": the key lies elsewhere");
}

TEST(Verify, SomeRanksAreVerifiedPartByPart) {
  Loaded loaded(world_of({"w", {6, 5}}, {{"dp", 3}, {"tp", 2}}, {shard(1, 1), flat({0})}));
  loaded.load({1, 4});
  const VerifyReport report = loaded.report();
  EXPECT_TRUE(report.agrees()) << all_text(report.differences);
  EXPECT_EQ(report.tensors_verified, 0U);
  EXPECT_EQ(report.tensors_partly_verified, 1U);
  EXPECT_EQ(report.records_verified, 2U);
  loaded.flip_bit("w", 4 * (2 * 5 + 1));  // row 2, column 1: in the middle third of the first half
  EXPECT_TRUE(loaded.report().agrees());
  loaded.flip_bit("w", 4 * (0 * 5 + 4));  // row 0, column 4: in the first third of the second half
  EXPECT_THAT(only(loaded.report()), HasSubstr("values_differ w rank 1"));
}

TEST(Verify, R50_EveryKeyOfATieClassIsRead) {
  World world;
  world.keys = {{"embed", {4, 4}, DType::kF16}, {"head", {4, 4}, DType::kF16}};
  world.tensors = {param("embed", {4, 4}), param("head", {4, 4})};
  world.ties = {{"embed", "head"}};
  Loaded loaded(world, 1, Loaded::Data::kSameInAllKeys);
  loaded.load();
  ASSERT_EQ(loaded.bill.tensors[0].must_equal.size(), 1U);
  const VerifyReport good = loaded.report();
  EXPECT_TRUE(good.agrees()) << all_text(good.differences);
  EXPECT_EQ(good.tensors_verified, 2U);
  EXPECT_EQ(good.read_bytes, 2U * 32);
  loaded.flip_bit(loaded.bill.tensors[0].must_equal[0].key, 7);
  const VerifyReport report = loaded.report();
  ASSERT_EQ(report.differences.size(), 2U) << all_text(report.differences);  // under both names
  EXPECT_EQ(report.differences.front().rule, "R50");
  EXPECT_EQ(report.tensors_verified, 0U);
}

TEST(Verify, R16_RandomValuesAreMadeAgain) {
  World world;
  world.tensors = {init(param("e", {7, 5}, DType::kBF16), normal(0.02)), init(param("c", {9}), fill(0.1))};
  world.tensors[0].init->zero_row = 3;
  world.policy.allow_missing = {"e", "c"};
  world.mesh({{"dp", 2}}).place("e", {shard(0, 0)});
  Loaded loaded(world);
  loaded.load();
  EXPECT_EQ(loaded.report().tensors_verified, 2U);
  EXPECT_EQ(loaded.report().read_bytes, 0U);
  loaded.bill.seed += 1;
  EXPECT_EQ(loaded.report().differences.size(), 2U);  // both ranks of the random one
  loaded.bill.seed -= 1;
  loaded.bill.tensors[1].recipe.zero_row = 4;
  EXPECT_EQ(loaded.report().differences.size(), 2U);
}

TEST(Verify, ALedgerThatNoPlanCouldHaveIsRefused) {
  Loaded loaded(world_of({"w", {8, 4}}, {{"dp", 2}}, {}));
  loaded.load();
  loaded.bill.tensors[0].expression = Expression::slice(Expression::source("w"), 0, 0, 4);
  const VerifyReport report = loaded.report();
  EXPECT_EQ(only(report), "mapping w rank -1: the expression does not make a tensor of this shape");
  EXPECT_EQ(report.not_verified.size(), 1U);
}

TEST(Verify, R64_ATensorThatTakesTooMuchMemoryIsNotVerified) {
  Loaded loaded(ledger::test::world_of_everything());
  loaded.load();
  const VerifyReport report = loaded.report({.most_tensor_bytes = 100});
  EXPECT_THAT(only(report), HasSubstr("unverified built"));
  EXPECT_EQ(report.tensors_verified, 6U);
}

TEST(Verify, R64_OnlySoMuchIsMadeThatNoFileHolds) {
  World world;
  world.tensors = {init(param("a", {10}), fill(1)), init(param("b", {10}), fill(1)), init(param("c", {10}), fill(1))};
  world.policy.allow_missing = {"*"};
  Loaded loaded(world);
  loaded.load();
  EXPECT_EQ(loaded.report({.most_tensor_bytes = 40}).tensors_verified, 3U);
  EXPECT_EQ(loaded.report({.most_tensor_bytes = 39}).tensors_verified, 0U);
  const VerifyReport report = loaded.report({.most_made_bytes = 100});
  EXPECT_EQ(report.tensors_verified, 2U);
  EXPECT_THAT(only(report), HasSubstr("unverified c rank -1: its records claim too much that no file holds"));
}

TEST(Verify, ValuesOfRecordsThatDoNotFitAreNotCompared) {
  Loaded loaded(world_of({"w", {8, 4}}, {{"dp", 2}}, {shard(0, 0)}));
  loaded.load();
  Record& record = loaded.record(1, "w");
  record.region.runs[0] = {{0, 8}};
  const VerifyReport report = loaded.report();
  EXPECT_EQ(only(report), "incomplete w rank 1: the record is of another part than the placement gives the rank");
  EXPECT_EQ(report.read_bytes, 0U);
  ASSERT_EQ(report.not_verified.size(), 1U);
  EXPECT_THAT(report.not_verified[0].reason, HasSubstr("do not fit"));
}

TEST(Verify, LittleMemoryOnlyTakesTurns) {
  Loaded loaded(ledger::test::world_of_everything());
  loaded.load();
  EXPECT_EQ(loaded.report({.threads = 4, .memory_bytes = 1}).tensors_verified, 7U);
}

TEST(Verify, CancelledIsAnError) {
  Loaded loaded(ledger::test::world_of_everything());
  loaded.load();
  const std::atomic<bool> cancelled = true;
  const auto result = loaded.verify({.cancelled = &cancelled});
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().front().code, Code::kCancelled);
}

}  // namespace
}  // namespace lading::exec
