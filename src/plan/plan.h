// Plan: for every tensor of every rank, where each of its bytes comes from. Made by the planner, proved by
// the checker, carried out by the executor. Pure data.
//
// A plan has two halves. The *statements* say, once for all ranks, what each model tensor is: its source,
// dtypes and placement, and why. The *rank plans* work the statements out for one rank into transfers. The
// checker derives the second half from the first by other means, and refuses a plan where they differ.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "base/index.h"
#include "base/inline_vector.h"
#include "base/strided_loop.h"
#include "lading/dtype.h"
#include "lading/plan_facts.h"
#include "lading/provenance.h"
#include "lading/result.h"
#include "lading/shape.h"
#include "layout/layout.h"
#include "mapping/expression.h"
#include "model/skeleton.h"

namespace lading::plan {

using FileId = Index<struct FileTag>;                ///< into Plan::files
using SourceId = Index<struct SourceTag>;            ///< into Plan::sources
using StatementId = Index<struct StatementTag>;      ///< into Plan::statements
using RegionId = Index<struct RegionTag>;            ///< into RankPlan::regions
using DestinationId = Index<struct DestinationTag>;  ///< into RankPlan::destinations

/// A file that the plan reads from.
struct PlannedFile {
  std::string name;
  std::uint64_t size_bytes = 0;
  std::uint32_t catalog_file = 0;  ///< into the catalog's files
  std::uint32_t checkpoint = 0;    ///< 0: the base checkpoint; n: the n-th adapter
};

/// A key of an adapter that is not read, because the user's word goes before it.
struct IgnoredAdapterKey {
  std::uint32_t checkpoint = 0;
  std::string key;
  std::string rule;  ///< the policy's field

  friend bool operator==(const IgnoredAdapterKey&, const IgnoredAdapterKey&) = default;
};

/// How the elements of a quantized source are dequantized: one scale, and perhaps one zero point, for each block.
struct Scaling {
  SourceId scales = 0;
  Shape block;                   ///< in the dims of the source
  std::optional<DType> product;  ///< that products are rounded to first; nothing: to the storage dtype, once
  Decoding decoding = {};
  SourceId zeros = SourceId::none();
  SourceId tensor_scale = SourceId::none();  ///< of one element, F32
  /// I32: for each code along decoding.groups_dim, its block in that dim. None: they count up.
  SourceId groups = SourceId::none();

  friend bool operator==(const Scaling&, const Scaling&) = default;
};

/// A checkpoint tensor that the plan reads from. Its checkpoint is its file's; two checkpoints may have the same keys.
struct Source {
  std::string key;
  FileId file = 0;
  ByteRange bytes;                      ///< in that file
  DType dtype = DType::kF32;            ///< the key's
  Shape shape;                          ///< of a source with codes, these are one more dim than the key has
  std::optional<Scaling> scaling = {};  ///< of a source that is dequantized wherever it is read (R48)

  [[nodiscard]] std::optional<CodeType> code() const { return scaling ? scaling->decoding.code : std::nullopt; }
  /// Of an element of `shape`.
  [[nodiscard]] unsigned element_bits() const { return code() ? bits(*code()) : bits(dtype); }
  /// 1, or more of small codes.
  [[nodiscard]] unsigned codes_per_byte() const { return code() ? 8 / bits(*code()) : 1; }
  /// Bytes that a run of elements touches, in whose first byte so many codes stand in front of it.
  [[nodiscard]] std::uint64_t run_bytes(std::uint64_t elems, std::uint8_t first_code) const {
    if (!code()) return elems / 8 * bits(dtype) + elems % 8 * bits(dtype) / 8;
    return (elems + first_code + codes_per_byte() - 1) / codes_per_byte();
  }
};

/// What a model tensor is, on all ranks.
struct Statement {
  std::string name;
  model::Kind kind = model::Kind::kParameter;
  Shape shape;  ///< global
  Provenance provenance = Provenance::kFile;
  /// kFile: whose keys `expression` and `must_equal` name. 0: the base checkpoint's; n: the n-th adapter's.
  std::uint32_t checkpoint = 0;
  mapping::Expression expression;               ///< kFile
  std::vector<mapping::Expression> must_equal;  ///< other keys of the tie class: compared while loading (R50)
  std::string alias_of;                   ///< kAlias: its tie class's root, the first registered name, else the first
  model::Recipe recipe;                   ///< kHost, kCall, kFill, kRandom
  std::optional<DType> checkpoint_dtype;  ///< as in the file, before any widening
  DType storage = DType::kF32;
  DType compute = DType::kF32;
  bool follows_tower = false;  ///< of a frozen subtree that is computed in one dtype (R28)
  layout::Placement placement;
  std::string rule;               ///< of the contract, that decided the source
  std::string reason;             ///< one sentence, for --explain
  std::string_view storage_rule;  ///< of the contract, that decided the dtype; of a plan's statement only
  std::string_view compute_rule;
  std::string dtype_reason;
  std::string mapping_rule;   ///< the id of the mapping rule, if one decided
  std::string kept_device;    ///< kKept: where the value is now
  bool kept_by_name = false;  ///< kKept: the policy's `keep` names it, so each rank may have a value of its own
};

/// Runs of elements from a file to a buffer, each cast once from the source's dtype to the statement's
/// storage dtype. A fill writes a constant and reads nothing.
struct Transfer {
  SourceId source = 0;                   ///< none: a fill
  std::uint64_t source_begin_bytes = 0;  ///< in the file
  std::uint64_t target_begin_bytes = 0;  ///< in the buffer
  std::uint64_t run_elems = 0;           ///< contiguous on both sides
  std::vector<ByteLoop> loops;           ///< outermost first
  double fill = 0;
  /// Of a source with several codes in a byte: how many codes of the first byte stand in front of the run. Loops go
  /// from byte to byte, so all runs of the transfer begin so.
  std::uint8_t first_code = 0;

  [[nodiscard]] bool is_fill() const { return source.is_none(); }
  [[nodiscard]] std::uint64_t elems() const;

  friend bool operator==(const Transfer&, const Transfer&) = default;
};

/// The memory of one tensor in one slot on one rank.
struct Destination {
  StatementId statement = 0;  ///< for a tie class, its root if this rank has it, else the first member that it has
  StatementId root = 0;       ///< that has the source: of a tie class, its root
  RegionId region = 0;        ///< which elements, and where they lie in the buffer
  std::string slot;
  std::string device;                ///< "cpu", "cuda:1"
  std::string flat_parameter;        ///< the buffer that it shares with others (FSDP1), or ""
  std::uint64_t buffer_bytes = 0;    ///< padding included; of a flat parameter, its whole part on this rank
  std::uint64_t owned_elems = 0;     ///< without padding
  std::vector<Transfer> transfers;   ///< sorted by target
  std::vector<StatementId> aliases;  ///< other members of the tie class that this rank has
  /// By `must_equal` of the class's root: what its owned elements must be equal to, in the form of
  /// transfers that are compared with the buffer instead of written to it, after the same cast. Each list is
  /// sorted by target and covers the owned elements once; padding is not compared (R50).
  std::vector<std::vector<Transfer>> comparisons;
};

/// A transfer of a rank: destination, list and number. List 0 is Destination::transfers, list k + 1 is comparisons[k].
struct TransferRef {
  DestinationId destination = 0;
  std::uint32_t list = 0;
  std::uint32_t transfer = 0;

  [[nodiscard]] bool is_comparison() const { return list > 0; }
  friend bool operator==(const TransferRef&, const TransferRef&) = default;
  friend bool operator<(const TransferRef& a, const TransferRef& b) {
    return std::tie(a.destination, a.list, a.transfer) < std::tie(b.destination, b.list, b.transfer);
  }
};

/// Bytes of one file, read at once: `count` rows of `size_bytes`, `stride_bytes` apart, and the transfers that take
/// their bytes from them. All of them write, or all of them compare; all are on one device.
struct Read {
  FileId file = 0;
  std::uint64_t begin_bytes = 0;
  std::uint64_t size_bytes = 0;
  std::uint64_t count = 1;
  std::uint64_t stride_bytes = 0;
  InlineVector<TransferRef, 2> transfers;

  [[nodiscard]] bool is_comparison() const { return !transfers.empty() && transfers.front().is_comparison(); }
  [[nodiscard]] std::uint64_t total_bytes() const { return size_bytes * count; }
};

/// Scales that a rank needs for what it takes of a quantized source: whole rows of their first dim, in one stretch.
/// They are read before the first batch of reads that takes such elements, and stay in host memory until the last such
/// batch has ended: scales as they are stored, zero points in a byte each. The scale of the whole tensor and the
/// groups, if it has any, are read whole with them.
struct ScaleRead {
  SourceId source = 0;  ///< that they are for
  ByteRange bytes;      ///< in the file of the scales
  /// In the file of the zero points: whole rows of the first dim of their key, those that hold the rows of blocks.
  ByteRange zeros = {};

  friend bool operator==(const ScaleRead&, const ScaleRead&) = default;
};

/// Facts of the machine that the reads depend on. Not in the digest: nodes may differ in them.
struct ReadLimits {
  static constexpr std::uint64_t kColdGapBytes = 16 << 10;
  static constexpr std::uint64_t kCachedGapBytes = 2 << 10;

  /// By file: bytes that nobody takes are read along up to this many, if that saves a read. A read of a cached file
  /// costs little more than its bytes, so its gaps are smaller. Files that are not listed: kColdGapBytes.
  IndexedVector<FileId, std::uint64_t> gap_bytes;
  /// Of a read that has gaps, or serves transfers of several places: a staging slot holds it whole.
  std::uint64_t joined_bytes = 1 << 20;

  [[nodiscard]] std::uint64_t gap_of(FileId file) const {
    return gap_bytes.has(file) ? gap_bytes[file] : kColdGapBytes;
  }
};

struct RankPlan {
  std::uint64_t rank = 0;
  IndexedVector<RegionId, layout::Region> regions;  ///< destinations of one shape that are cut alike share one
  IndexedVector<DestinationId, Destination> destinations;
  std::vector<Read> reads;  ///< what the executor runs, by file and place: each transfer from a file is in one of them
  std::vector<ScaleRead> scale_reads;  ///< by source
  /// Where `reads` are cut into batches that run one after the other: the end of each, the last one's too. While a
  /// batch runs, the scales of the next one are read. Empty: one batch.
  std::vector<std::uint32_t> batch_ends;
  std::uint64_t read_bytes = 0;     ///< of both
  std::uint64_t owned_bytes = 0;    ///< of all buffers, padding included
  std::uint64_t staging_bytes = 0;  ///< host memory beside them
  /// Of flat parameters (FSDP1): alignment gaps and padding, which are their framework's. Nothing is written there.
  std::uint64_t flat_parameter_gap_bytes = 0;

  /// The transfer must exist.
  [[nodiscard]] const Transfer& at(const TransferRef& ref) const {
    const Destination& d = destinations[ref.destination];
    return ref.is_comparison() ? d.comparisons[ref.list - 1][ref.transfer] : d.transfers[ref.transfer];
  }
};

struct Plan {
  IndexedVector<FileId, PlannedFile> files;
  IndexedVector<SourceId, Source> sources;
  IndexedVector<StatementId, Statement> statements;  ///< sorted by name
  std::vector<StatementId> call_order;               ///< statements with kCall, inputs first (R66)
  layout::Mesh mesh;
  layout::DeviceMap devices;  ///< by rank
  std::uint64_t seed = 0;
  std::uint64_t budget_bytes = 0;
  ReadLimits read_limits;
  std::vector<std::pair<std::string, std::string>> ignored_keys;  ///< key and the rule that ignores it
  std::vector<std::string> unexpected_keys;                       ///< allowed, and not read
  std::vector<IgnoredAdapterKey> ignored_adapter_keys;            ///< by checkpoint and key
  KeyReport keys;               ///< not in the digest, nor in the JSON: for the answer
  std::vector<RankPlan> ranks;  ///< those that were asked for
  Errors warnings;
  /// Bytes of `sources` that no rank reads: the checker's finding, if all ranks were worked out.
  std::optional<std::uint64_t> unread_bytes;

  [[nodiscard]] const Statement* find(std::string_view name) const;
};

/// Host memory that the rank's scales take at most: those of a batch and the next one, and those that are needed before
/// and after. A part of its staging_bytes.
[[nodiscard]] std::uint64_t scale_memory_bytes(const Plan& plan, const RankPlan& rank);
/// Of one read of scales.
[[nodiscard]] std::uint64_t scale_memory_bytes(const Plan& plan, const ScaleRead& read);

/// A 128-bit digest of the statements and the catalog's part in them: equal on ranks that agree.
std::string digest(const Plan& plan);

/// `lading.plan/1`.
std::string plan_json(const Plan& plan);

}  // namespace lading::plan
