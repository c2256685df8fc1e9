// NewDirectory: a directory that is filled under a temporary name beside its place, and put there in one step.
//
// The temporary name is ".lading-save.<name>.<16 hexadecimal digits>", in the parent of the place, so that one rename
// is enough. Whoever fills it may be several processes: one creates it and keeps it locked, the others open it by its
// name. A directory of such a name that nobody has locked is what an earlier save left behind: the next one removes it.
//
// Links in the path of the parent are followed, they are the user's word. Below it nothing is: neither the place nor
// the temporary directory may be a link, nor anything in it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/file.h"
#include "lading/result.h"

namespace lading::io {

/// What to do if something stands at the place.
enum class IfExists : std::uint8_t {
  kRefuse,
  kReplace,  ///< a directory is exchanged for the new one in one step, and removed then
};

class NewDirectory {
 public:
  /// Removes what earlier ones of this place left behind, and refuses what could not be put in place later.
  static Result<NewDirectory> create(const std::string& place, IfExists if_exists);
  /// That another process created.
  static Result<NewDirectory> open(const std::string& place, const std::string& temporary);

  [[nodiscard]] const std::string& temporary() const { return temporary_; }
  /// Of the temporary directory, for people and for those who put more files there.
  [[nodiscard]] std::string path() const;
  [[nodiscard]] std::string path_of(std::string_view relative) const;
  /// Of create().
  [[nodiscard]] const std::vector<std::string>& removed() const { return removed_; }

  /// A new file of this size, for writing; folders on the way are made. The space is reserved where the file system
  /// can.
  [[nodiscard]] Result<Fd> create_file(std::string_view relative, std::uint64_t size_bytes) const;
  /// A file of this size that create_file() made, for writing.
  [[nodiscard]] Result<Fd> open_file(std::string_view relative, std::uint64_t size_bytes) const;
  /// A new file with this content, synced.
  [[nodiscard]] Result<void> write_file(std::string_view relative, std::string_view content) const;
  [[nodiscard]] Result<void> remove_file(std::string_view relative) const;

  /// Every file in it, and every folder.
  [[nodiscard]] Result<void> sync() const;
  /// Puts it in place, in one step, and syncs the parent. True: there was another one, which is gone now.
  Result<bool> commit(IfExists if_exists);
  /// Removes it. False: it was not there any more.
  Result<bool> discard();
  /// The same of one that another process created.
  static Result<bool> discard(const std::string& place, const std::string& temporary);

 private:
  NewDirectory(Fd parent, std::string parent_path, std::string name, std::string temporary)
      : parent_(std::move(parent)),
        parent_path_(std::move(parent_path)),
        name_(std::move(name)),
        temporary_(std::move(temporary)) {}

  /// The directory itself is not opened yet.
  static Result<NewDirectory> named(const std::string& place, const std::string& temporary);
  [[nodiscard]] Result<void> check_place(IfExists if_exists) const;
  [[nodiscard]] Result<void> remove_leftovers();
  [[nodiscard]] Result<void> make();
  [[nodiscard]] Result<void> check_exchange() const;
  /// Before what has the temporary name is removed.
  [[nodiscard]] Result<void> sync_parent() const;
  [[nodiscard]] Error failed(std::string_view what, std::string_view name, int error) const;

  Fd parent_;
  std::string parent_path_;
  std::string name_;
  std::string temporary_;
  Fd directory_;  // locked by create()
  std::vector<std::string> removed_;
};

/// Writes all of it at this place of the file, or fails with kWriteFailed. `path` is for messages.
Result<void> write_exact(int descriptor, std::uint64_t offset_bytes, std::span<const std::byte> bytes,
                         const std::string& path);
/// Lets the system begin to bring these bytes of the file to the disk. A hint: sync_file() says what came of it.
void begin_sync(int descriptor, std::uint64_t offset_bytes, std::uint64_t size_bytes);
/// fsync.
Result<void> sync_file(int descriptor, const std::string& path);

}  // namespace lading::io
