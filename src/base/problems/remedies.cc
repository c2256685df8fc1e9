#include "base/problems/remedies.h"

namespace lading {
namespace {

constexpr std::string_view kFetchFile =
    "Fetch the file again. If that does not help, save the checkpoint again with the safetensors library.";
constexpr std::string_view kFetchIndex = "Fetch the index and its shards again, or save the checkpoint again.";
constexpr std::string_view kCorrectJson =
    "Correct the JSON text. If it came with the checkpoint, fetch the file again.";

}  // namespace

std::string_view usual_remedy(Code code) {
  switch (code) {
    case Code::kInternal: return "Please report this bug in lading, with the whole message.";
    case Code::kPlanCheck: return "Please report this bug in lading, with the output of lading plan --json.";
    case Code::kNotFound: return "Check the path.";
    case Code::kNotRegularFile: return "Pass a regular file, or replace the special file in the checkpoint.";
    case Code::kSymlinkLoop: return "Correct the symbolic links.";
    case Code::kOpenFailed: return "Check the file's permissions, and that other programs can open it.";
    case Code::kReadFailed: return "Check that other programs can read the file.";
    case Code::kFileTruncated: return kFetchFile;
    case Code::kFileChanged: return "Load again when no other program writes to the checkpoint.";
    case Code::kOutOfMemory: return "Free memory, or raise the memory limit of the process or its container.";
    case Code::kWriteFailed: return "Check that the directory exists and is writable, and that the disk is not full.";
    case Code::kCancelled: return "Start the operation again.";
    case Code::kIncomplete: return "Load again.";
    case Code::kValuesDiffer: return "Check that both loads, or all ranks, read the same files.";
    case Code::kNoAnswer: return "Look at the log of that rank.";
    case Code::kRanksDiffer: return "Start every rank with the same lading, checkpoint, model and arguments.";
    case Code::kJsonSyntax: return kCorrectJson;
    case Code::kJsonUtf8: return kCorrectJson;
    case Code::kJsonDepth: return kCorrectJson;
    case Code::kJsonDuplicateKey: return kCorrectJson;
    case Code::kSchema: return "Correct the document (docs/schema).";
    case Code::kSkeleton: return "Correct the skeleton (docs/schema/skeleton.md).";
    case Code::kPolicy: return "Correct the policy (docs/schema/policy.md).";
    case Code::kLayout: return "Correct the layout (docs/schema/layout.md).";
    case Code::kMapping: return "Correct the mapping (docs/schema/mapping.md).";
    case Code::kHeaderTruncated: return kFetchFile;
    case Code::kHeaderTooLarge: return kFetchFile;
    case Code::kHeaderMetadata: return kFetchFile;
    case Code::kHeaderField: return kFetchFile;
    case Code::kHeaderShape: return kFetchFile;
    case Code::kHeaderOffsets: return kFetchFile;
    case Code::kHeaderSize: return kFetchFile;
    case Code::kHeaderHole: return kFetchFile;
    case Code::kHeaderOverlap: return kFetchFile;
    case Code::kDataTruncated: return kFetchFile;
    case Code::kUnknownDType: return "Update lading, or convert the tensor to a dtype that lading knows.";
    case Code::kIndexInvalid: return kFetchIndex;
    case Code::kIndexShardName: return kFetchIndex;
    case Code::kIndexMissingShard: return kFetchIndex;
    case Code::kIndexMissingTensor: return kFetchIndex;
    case Code::kIndexUnlistedTensor: return kFetchIndex;
    case Code::kIndexDuplicateTensor: return kFetchIndex;
    case Code::kIndexTotalSize: return "Correct total_size in the index; the load does not use it.";
    // Each place in the code says what to do there.
    case Code::kUsage:
    case Code::kNotACheckpoint:
    case Code::kAmbiguousCheckpoint:
    case Code::kOutsideRoot:
    case Code::kCacheInvalid:
    case Code::kHashMismatch:
    case Code::kUnverified:
    case Code::kNoDevice:
    case Code::kDeviceFailed:
    case Code::kDeviceMemory:
    case Code::kDType:
    case Code::kPlan:
    case Code::kTrailingBytes:
    case Code::kStrayShard: break;
  }
  return "";
}

std::string_view remedy_of(const Error& error) {
  return error.remedy.empty() ? usual_remedy(error.code) : error.remedy;
}

}  // namespace lading
