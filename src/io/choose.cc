#include "io/choose.h"

#include <mutex>
#include <optional>

namespace lading::io {
namespace {

// Below this a file is read in a blink either way.
constexpr std::uint64_t kSmallFileBytes = std::uint64_t{64} << 20;
// Up to here it is what reading the header has left, with read-ahead.
constexpr double kColdShare = 0.05;

// Where O_DIRECT is a plain transfer from the disk, and where the page cache that we can ask about is the one that
// reads go through. Overlay answers for a cache of its own that is always empty; btrfs and ZFS may copy anyway.
bool is_direct_worth_it(const FileFacts& facts) {
  return facts.size_bytes >= kSmallFileBytes &&
         (facts.file_system == FileSystem::kExt || facts.file_system == FileSystem::kXfs);
}

std::unique_ptr<ReadBackend> make_forced(ReadMethod method, Notes& notes) {
  switch (method) {
    case ReadMethod::kAuto: return nullptr;
    case ReadMethod::kPread: return std::make_unique<PreadBackend>();
    case ReadMethod::kDirect: return make_direct_backend(notes);
    case ReadMethod::kUring: return make_uring_backend(notes);
    case ReadMethod::kUringDirect: return make_uring_direct_backend(notes);
  }
  return nullptr;
}

}  // namespace

FileVerdict judge(const FileFacts& facts) {
  if (!is_direct_worth_it(facts) || !facts.residency) return FileVerdict::kBuffered;
  const double share = facts.residency->share();
  if (share >= kResidentShare) return FileVerdict::kBuffered;
  return share <= kColdShare ? FileVerdict::kDirect : FileVerdict::kByRead;
}

Chooser::Chooser(ReadMethod method)
    : method_(method), cold_(make_uring_direct_backend(notes_)), forced_(make_forced(method, notes_)) {}

FileVerdict Chooser::verdict_on(const File& file) {
  const std::pair key(file.identity().device, file.identity().inode);
  {
    const std::shared_lock lock(mutex_);
    if (const auto known = verdicts_.find(key); known != verdicts_.end()) return known->second;
  }
  // Two threads may look at once; the first verdict stays.
  FileFacts facts{file_system_of(file), file.size_bytes(), std::nullopt};
  if (is_direct_worth_it(facts)) facts.residency = residency_at_a_glance(file);
  const std::lock_guard lock(mutex_);
  return verdicts_.emplace(key, judge(facts)).first->second;
}

bool Chooser::is_in_memory(const File& file) {
  if (file_system_of(file) == FileSystem::kMemory) return true;
  const std::optional<Residency> found = residency_at_a_glance(file);
  return found && found->share() >= kResidentShare;
}

ReadBackend& Chooser::pick(const File& file, ByteRange range) {
  if (method_ != ReadMethod::kAuto) return *forced_;
  switch (verdict_on(file)) {
    case FileVerdict::kBuffered: return pread_;
    case FileVerdict::kDirect: return *cold_;
    case FileVerdict::kByRead: break;
  }
  const std::optional<Residency> found = residency(file, range);
  if (!found || found->share() >= kResidentShare) return pread_;
  return *cold_;
}

}  // namespace lading::io
