// Anchor: a directory that nothing opened through it can leave.
//
// A path is walked one component at a time with O_NOFOLLOW; symbolic links are read and followed by
// us, ".." goes back to a directory that is already open, and the anchor has no parent. So a name, an
// index or a link can at worst lead to another file beneath the anchor, whatever happens to the tree
// meanwhile. Absolute links are followed if they lead beneath the anchor. FIFOs, devices and sockets
// are recognised before they are opened, so nothing blocks. docs/adr/0002 says why not openat2.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "io/file.h"
#include "lading/result.h"

namespace lading::io {

class Anchor {
 public:
  /// `directory` is the user's word: links in it are followed.
  static Result<Anchor> open(const std::string& directory);

  /// A regular file. `relative` may come from anywhere. The file remembers its way, so that it can be walked again:
  /// it keeps the anchor's directory open.
  [[nodiscard]] Result<File> open_file(std::string_view relative) const;
  /// What a path beneath the anchor leads to, links followed, as a normalised path from the anchor.
  [[nodiscard]] Result<std::string> resolve(std::string_view relative) const;
  /// The names in a directory, sorted, without "." and "..".
  [[nodiscard]] Result<std::vector<std::string>> list(std::string_view relative_directory) const;

  /// Absolute, without links.
  [[nodiscard]] const std::string& path() const { return root_->path; }
  /// For messages: the anchor's path and `relative`.
  [[nodiscard]] std::string display(std::string_view relative) const;

 private:
  struct Root {
    Fd fd;
    std::string path;
  };
  struct Walk;
  class Origin;
  explicit Anchor(std::shared_ptr<const Root> root) : root_(std::move(root)) {}
  [[nodiscard]] Result<Walk> walk(std::string_view relative) const;
  [[nodiscard]] int directory_of(const Walk& end) const;
  [[nodiscard]] Result<Fd> open_end(Walk end, std::string_view relative) const;

  std::shared_ptr<const Root> root_;  // shared with the files that were opened through it
};

}  // namespace lading::io
