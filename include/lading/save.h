// Saves a sharded model as a checkpoint: `lading::save(request, place)` in one process; step by step in several.
//
// Every rank plans, and comes to the same plan. One of them prepares the directory, all write, the first one finishes
// and commits, or discards. Nothing appears at the place before commit_save() puts all of it there in one step.
//
//   plan_save()                                          all ranks: SavePlanReport::digest is equal on all
//   prepare_save()                                       one: a temporary directory beside the place
//   write_save()                                         all, in it
//   finish_save()                                        the one: index, ledger, everything synced
//   commit_save(), or discard_save()                     the one
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lading/byte_range.h"
#include "lading/load.h"
#include "lading/save_options.h"

namespace lading {

struct PlannedSave;

struct SaveRequest {
  /// Its keys, shapes, dtypes and file names are those of the new checkpoint. Nothing: see saving::Options::keys.
  std::optional<CheckpointRef> base = {};
  /// The model as it is in memory: dtypes are those of the memory, and recipes are of no account. Nothing: the tensors
  /// of the base.
  std::optional<Given<model::Skeleton>> skeleton = {};
  /// Of a load: from the keys to the model's names. Nothing: the keys are the model's names.
  std::optional<Given<mapping::Mapping>> mapping = {};
  /// How the model lies in memory. Default: one rank, on the CPU.
  std::variant<layout::ByStrategy, Document, layout::Layout> layout = {};
  /// The ranks whose memory this process has; nothing: all of them. The plan is of all.
  std::optional<std::vector<std::uint64_t>> ranks = {{0}};
  saving::Options options = {};
};

struct SavedFile {
  std::string name;
  std::uint64_t size_bytes = 0;
  std::uint64_t keys = 0;
};

struct SavedKey {
  std::string key;
  DType dtype = DType::kF32;  ///< in the file
  Shape shape;
  std::string file;
  std::vector<std::string> tensors;  ///< of the model, that it is made of
};

struct RankShare {
  std::uint64_t rank = 0;
  std::uint64_t bytes = 0;  ///< of files, that it writes
  std::uint64_t writes = 0;
};

/// What a rank writes to one file.
struct FileShare {
  std::uint64_t rank = 0;
  std::size_t file = 0;     ///< into SavePlanReport::files
  std::uint64_t bytes = 0;  ///< of tensors
  std::uint64_t runs = 0;   ///< contiguous in the file: gaps between them are other ranks'
  ByteRange span;           ///< from the first byte of the first run to the end of the last one
};

/// All of a save plan, for the functions that take a SavePlanReport. Cheap to copy.
class SavePlanHandle {
 public:
  SavePlanHandle() = default;

 private:
  friend struct PlannedSave;
  explicit SavePlanHandle(std::shared_ptr<const PlannedSave> planned) : planned_(std::move(planned)) {}
  std::shared_ptr<const PlannedSave> planned_;
};

struct SavePlanReport {
  std::string digest;  ///< equal on ranks that agree
  layout::Mesh mesh;
  std::vector<SavedFile> files;
  std::string index;  ///< the index file's name; "" if there is none
  std::vector<SavedKey> keys;
  std::vector<RankShare> ranks;           ///< all of them
  std::vector<FileShare> shares;          ///< by rank and file
  std::uint64_t bytes = 0;                ///< of all files, headers included
  std::uint64_t data_bytes = 0;           ///< of all tensors in them
  std::uint64_t bytes_proved = 0;         ///< by the checker: each has one writer and the right source
  std::vector<std::string> left_out;      ///< tensors of the model, by saving::Options::leave_out
  std::vector<std::string> not_saved;     ///< tensors of the model that no checkpoint has, such as derived buffers
  std::vector<std::string> dropped_keys;  ///< of the base
  /// Keys of the base whose bytes are taken over (UnmappedKeys::kKeep), and the name that the plan has for each: of
  /// destinations of this name write_save() asks for no memory that counts. It reads the base's files, and refuses if
  /// they were changed after planning.
  std::vector<std::pair<std::string, std::string>> kept_keys;
  Errors warnings;
  SavePlanHandle handle;
};

/// Reads headers and documents, plans, and proves the plan. Every problem that can be found at once is in the refusal.
LADING_API Result<SavePlanReport, Refusal> plan_save(const SaveRequest& request);

/// The memory of the request's ranks, in the order in which write_save() asks for it.
LADING_API std::vector<DestinationInfo> destinations_of(const SavePlanReport& plan);

/// For each of destinations_of(): how many writes of this process read its memory. Replicas have one writer.
LADING_API std::vector<std::uint64_t> writes_of(const SavePlanReport& plan);

enum class ExistingDirectory : std::uint8_t {
  kRefuse,
  kReplace,  ///< it is exchanged for the new one in one step, and removed then
};

enum class Durable : std::uint8_t {
  kYes,  ///< files and directories are synced before they are put in place
  kNo,
};

/// Where a checkpoint is to be.
struct SavePlace {
  std::string directory;
  ExistingDirectory existing = ExistingDirectory::kRefuse;
  Durable durable = Durable::kYes;
};

struct PreparedSave {
  std::string temporary;             ///< the name of the directory, beside the place
  std::string path;                  ///< of it
  std::vector<std::string> removed;  ///< what earlier saves had left
  std::shared_ptr<const void> lock;  ///< while it lives, no other save takes the directory for a leftover
};

/// Makes the temporary directory, and in it every file with its header and at its full size.
LADING_API Result<PreparedSave> prepare_save(const SavePlanReport& plan, const SavePlace& place);

enum class SavedFrom : std::uint8_t {
  kDevices,   ///< each destination's memory is on its device
  kHostCopy,  ///< all of it is in host memory: a copy, so that the model may change meanwhile
};

struct SaveWriting {
  /// The memory of a destination: contiguous, at least size_bytes, borrowed until write_save() returns. It is only
  /// read. lading first waits for the caller's pending GPU work. Of a destination that this process writes nothing of
  /// (writes_of()), it may be missing.
  std::function<Result<std::span<const std::byte>>(const DestinationInfo&)> memory;
  SavedFrom from = SavedFrom::kDevices;
  std::uint32_t threads = 0;                          ///< 0: as many as help
  const std::atomic<bool>* cancelled = nullptr;       ///< set it from anywhere, a signal handler too
  std::function<void(const LoadProgress&)> progress;  ///< on the calling thread, a few times a second
};

struct SaveShareReport {
  std::uint64_t written_bytes = 0;
  std::uint64_t staging_bytes = 0;
  std::uint32_t threads = 0;
  double writing_seconds = 0;
  double sync_seconds = 0;
};

/// Writes what the plan gives the ranks of this process, and leaves a note of it for finish_save().
LADING_API Result<SaveShareReport, Errors> write_save(const SavePlanReport& plan, const SavePlace& place,
                                                      const std::string& temporary, const SaveWriting& writing);

struct FinishedSave {
  std::string ledger;  ///< name of the file
  std::vector<std::pair<std::string, std::string>>
      digests;  ///< by key, of its bytes in memory before they were written
};

/// Refuses unless every rank has written all that the plan gives it. Then writes the index and the ledger, and syncs.
LADING_API Result<FinishedSave, Errors> finish_save(const SavePlanReport& plan, const SavePlace& place,
                                                    const std::string& temporary);

/// Puts the directory in place, in one step. True: another one was replaced.
LADING_API Result<bool> commit_save(const SavePlace& place, const std::string& temporary);

/// Removes the temporary directory. False: there was none.
LADING_API Result<bool> discard_save(const SavePlace& place, const std::string& temporary);

struct SaveReport {
  SavePlanReport plan;
  SaveShareReport written;
  FinishedSave finished;
  bool replaced = false;
};

struct SaveFailure {
  std::optional<Stage> refused;  ///< nothing: the plan was accepted and the save failed
  Errors problems;

  /// Returns 5, or the exit code of the refusal if planning failed.
  [[nodiscard]] LADING_API Exit exit_code() const;
};

/// All steps, for a process that has the memory of all ranks: `request.ranks` is not looked at.
LADING_API Result<SaveReport, SaveFailure> save(const SaveRequest& request, const SavePlace& place,
                                                const SaveWriting& writing);

}  // namespace lading
