// Ledger: the bill of lading. What each memory of each rank holds, which bytes of which files it came from, and a
// digest of it that does not depend on how the tensor was cut. Pure data; no files, no clock, no threads.
//
// A ledger has two halves, as a plan has: *tensors* say once what each one is, *records* say what one rank has of it in
// one slot. It can be compared with the files again (exec/verify.h) without the plan and without the layout.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json_reader.h"
#include "base/strided_loop.h"
#include "device/digest.h"
#include "lading/dtype.h"
#include "lading/result.h"
#include "lading/shape.h"
#include "layout/layout.h"
#include "ledger/recorded_region.h"
#include "mapping/expression.h"
#include "model/skeleton.h"
#include "plan/plan.h"

namespace lading::ledger {

/// What tells a file from another one of its name and size, as far as it is known.
struct FileIdentity {
  std::uint64_t inode = 0;
  std::uint64_t mtime_s = 0;
  std::uint64_t mtime_ns = 0;  ///< below a second

  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};

struct File {
  std::string name;
  std::uint64_t size_bytes = 0;
  std::optional<FileIdentity> identity;
  std::uint32_t checkpoint = 0;  ///< 0: the base checkpoint; n: the n-th of Ledger::adapters

  friend bool operator==(const File&, const File&) = default;
};

/// A checkpoint tensor that a model tensor is made of, or compared with.
struct Source {
  std::string key;
  std::uint32_t file = 0;  ///< into Ledger::files
  ByteRange bytes;         ///< in that file
  DType dtype = DType::kF32;
  Shape shape;

  friend bool operator==(const Source&, const Source&) = default;
};

/// What a model tensor is, on all ranks.
struct Tensor {
  std::string name;
  model::Kind kind = model::Kind::kParameter;
  Shape shape;  ///< global
  DType storage = DType::kF32;
  std::optional<DType> checkpoint_dtype;
  Provenance provenance = Provenance::kFile;
  std::uint32_t checkpoint = 0;                 ///< kFile: the one whose keys it is made of, as in File
  mapping::Expression expression;               ///< kFile
  std::vector<mapping::Expression> must_equal;  ///< other keys of the tie class, which hold the same (R50)
  std::vector<Source> sources;                  ///< of both, by key, each once
  model::Recipe recipe;                         ///< kHost, kCall, kFill, kRandom
  std::string alias_of;                         ///< kAlias: the member of the tie class that has the source
  layout::Placement placement;
  std::string rule;
  std::string mapping_rule;

  friend bool operator==(const Tensor&, const Tensor&) = default;
};

/// Bytes of a file that were taken: `size_bytes` from `begin_bytes` on, repeated by the loops, outermost first.
struct TakenBytes {
  std::uint32_t file = 0;  ///< into Ledger::files
  std::uint64_t begin_bytes = 0;
  std::uint64_t size_bytes = 0;
  std::vector<TakenLoop> loops;

  friend bool operator==(const TakenBytes&, const TakenBytes&) = default;
};

/// What one rank has of one tensor in one slot.
struct Record {
  std::uint64_t rank = 0;
  std::uint32_t tensor = 0;  ///< into Ledger::tensors
  std::string slot;
  /// kAlias: the rank has the memory under another name, `alias_of`, and all that was written is counted there.
  /// Otherwise where the value comes from: for a member of a tie class, what the class's source is.
  Provenance provenance = Provenance::kFile;
  std::string alias_of;
  std::vector<TakenBytes> reads;               ///< by file and place
  std::optional<std::uint64_t> received_from;  ///< the rank that read them and handed over what it had made of them
  std::vector<DType> cast_from;  ///< dtypes that were cast to the storage dtype; sorted by name, each once
  RecordedRegion region;
  std::string device;             ///< "cpu", "cuda:1"
  std::uint64_t owned_elems = 0;  ///< without padding
  std::uint64_t bytes = 0;        ///< of these; 0 for an alias
  std::uint64_t written_bytes = 0;
  std::uint64_t expected_bytes = 0;  ///< padding that the plan defines included
  bool complete = false;             ///< written == expected; of an alias: that of what it shares
  std::optional<device::Digest>
      digest;  ///< of the owned elements at their places in the whole tensor, padding aside (R56)

  friend bool operator==(const Record&, const Record&) = default;
};

struct Ledger {
  std::string version;    ///< of lading
  bool complete = false;  ///< the load was well, and every record is
  std::string checkpoint;
  std::vector<std::string> adapters;  ///< as `checkpoint`, of the adapters that were loaded with it
  std::string plan_digest;
  layout::Mesh mesh;
  std::uint64_t seed = 0;
  std::vector<std::uint64_t> ranks;  ///< that the records are of; ascending
  std::vector<File> files;
  std::vector<Tensor> tensors;                                    ///< sorted by name
  std::vector<Record> records;                                    ///< sorted by rank, tensor, slot
  std::vector<std::pair<std::string, std::string>> ignored_keys;  ///< key and the rule that ignores it (R38, R46)
  std::vector<std::string> unexpected_keys;
  std::vector<plan::IgnoredAdapterKey> ignored_adapter_keys;

  /// Into tensors. Binary search.
  [[nodiscard]] std::optional<std::uint32_t> find(std::string_view name) const;
  /// The tensor that has the source: itself, or what it is tied to.
  [[nodiscard]] std::uint32_t root_of(std::uint32_t tensor) const;

  friend bool operator==(const Ledger&, const Ledger&) = default;
};

/// What execution found out about one destination.
struct DestinationFacts {
  std::uint32_t rank = 0;  ///< into Plan::ranks
  plan::DestinationId destination = 0;
  std::uint64_t written_bytes = 0;
  std::uint64_t expected_bytes = 0;
  std::optional<device::Digest> digest;             ///< nothing: verification was off, or the value was only kept
  std::optional<std::uint64_t> received_from = {};  ///< the rank that read it; nothing: this one did
};

struct LedgerFacts {
  std::string checkpoint;                          ///< as the user named it
  std::vector<std::optional<FileIdentity>> files;  ///< by Plan::files; may be shorter
  std::vector<DestinationFacts> destinations;      ///< one that is not here has had nothing written
  bool has_failed = false;                         ///< the load, here or on another rank, whatever was written
  std::vector<std::string> adapters = {};          ///< of the plan's adapters, as the user named them
};

/// The plan must have passed check_plan().
[[nodiscard]] Ledger make_ledger(const plan::Plan& plan, const LedgerFacts& facts);

/// `lading.ledger/1`, docs/schema/ledger.md: a record a line. The same ledger gives the same bytes.
[[nodiscard]] std::string ledger_json(const Ledger& ledger);
/// Strict: what it gives can be walked without further checks of sizes and indices.
Result<Ledger, Errors> parse_ledger(const JsonDocument& document);

/// "F16, F32 -> BF16"; "" without a cast.
[[nodiscard]] std::string cast_text(const Record& record, DType storage);

}  // namespace lading::ledger
