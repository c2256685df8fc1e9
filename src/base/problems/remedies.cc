#include "base/problems/remedies.h"

#include <algorithm>
#include <iterator>

namespace lading {
namespace {

constexpr std::string_view kFetchFile =
    "Fetch the file again. If that does not help, save the checkpoint again with the safetensors library.";
constexpr std::string_view kFetchIndex = "Fetch the index and its shards again, or save the checkpoint again.";
constexpr std::string_view kCorrectJson =
    "Correct the JSON text. If it came with the checkpoint, fetch the file again.";

struct Usual {
  Code code;
  std::string_view remedy;
};

// Codes that are not here: each place in the code says what to do there.
constexpr Usual kUsual[] = {
    {Code::kInternal, "Please report this bug in lading, with the whole message."},
    {Code::kPlanCheck, "Please report this bug in lading, with the output of lading plan --json."},
    {Code::kNotFound, "Check the path."},
    {Code::kNotRegularFile, "Pass a regular file, or replace the special file in the checkpoint."},
    {Code::kSymlinkLoop, "Correct the symbolic links."},
    {Code::kOpenFailed, "Check the file's permissions, and that other programs can open it."},
    {Code::kReadFailed, "Check that other programs can read the file."},
    {Code::kFileTruncated, kFetchFile},
    {Code::kFileChanged, "Load again when no other program writes to the checkpoint."},
    {Code::kOutOfMemory, "Free memory, or raise the memory limit of the process or its container."},
    {Code::kWriteFailed, "Check that the directory exists and is writable, and that the disk is not full."},
    {Code::kCancelled, "Start the operation again."},
    {Code::kIncomplete, "Load again."},
    {Code::kValuesDiffer, "Check that both loads, or all ranks, read the same files."},
    {Code::kNoAnswer, "Look at the log of that rank."},
    {Code::kRanksDiffer, "Start every rank with the same lading, checkpoint, model and arguments."},
    {Code::kJsonSyntax, kCorrectJson},
    {Code::kJsonUtf8, kCorrectJson},
    {Code::kJsonDepth, kCorrectJson},
    {Code::kJsonDuplicateKey, kCorrectJson},
    {Code::kSchema, "Correct the document (docs/schema)."},
    {Code::kSkeleton, "Correct the skeleton (docs/schema/skeleton.md)."},
    {Code::kPolicy, "Correct the policy (docs/schema/policy.md)."},
    {Code::kLayout, "Correct the layout (docs/schema/layout.md)."},
    {Code::kMapping, "Correct the mapping (docs/schema/mapping.md)."},
    {Code::kHeaderTruncated, kFetchFile},
    {Code::kHeaderTooLarge, kFetchFile},
    {Code::kHeaderMetadata, kFetchFile},
    {Code::kHeaderField, kFetchFile},
    {Code::kHeaderShape, kFetchFile},
    {Code::kHeaderOffsets, kFetchFile},
    {Code::kHeaderSize, kFetchFile},
    {Code::kHeaderHole, kFetchFile},
    {Code::kHeaderOverlap, kFetchFile},
    {Code::kDataTruncated, kFetchFile},
    {Code::kUnknownDType, "Update lading, or convert the tensor to a dtype that lading knows."},
    {Code::kIndexInvalid, kFetchIndex},
    {Code::kIndexShardName, kFetchIndex},
    {Code::kIndexMissingShard, kFetchIndex},
    {Code::kIndexMissingTensor, kFetchIndex},
    {Code::kIndexUnlistedTensor, kFetchIndex},
    {Code::kIndexDuplicateTensor, kFetchIndex},
    {Code::kIndexTotalSize, "Correct total_size in the index; the load does not use it."},
};

}  // namespace

std::string_view usual_remedy(Code code) {
  const auto found =
      std::find_if(std::begin(kUsual), std::end(kUsual), [&](const Usual& row) { return row.code == code; });
  return found == std::end(kUsual) ? "" : found->remedy;
}

std::string_view remedy_of(const Error& error, Remedies which) {
  return error.remedy.empty() && which == Remedies::kUsual ? usual_remedy(error.code) : error.remedy;
}

}  // namespace lading
