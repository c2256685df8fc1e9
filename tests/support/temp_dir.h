// A directory that lives as long as a test, with what tests do in it.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <system_error>

namespace lading::test {

class TempDir {
 public:
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "lading-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) std::abort();
    // Without links, so that tests may compare it with resolved paths.
    path_ = std::filesystem::canonical(name);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  [[nodiscard]] std::string path() const { return path_.string(); }
  [[nodiscard]] std::string path(std::string_view relative) const { return (path_ / relative).string(); }

  /// Writes a file, and the directories above it.
  std::string write(std::string_view relative, std::string_view content) const {
    const std::filesystem::path file = path_ / relative;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream out(file, std::ios::binary | std::ios::trunc);
    out.write(content.data(), static_cast<std::streamsize>(content.size()));
    out.close();
    EXPECT_TRUE(out) << file;
    return file.string();
  }

  [[nodiscard]] std::string read(std::string_view relative) const {
    std::ifstream in(path_ / relative, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  std::string mkdir(std::string_view relative) const {
    std::filesystem::create_directories(path_ / relative);
    return path(relative);
  }

  /// A symbolic link at `relative`; `target` is stored as it is.
  std::string link(std::string_view relative, std::string_view target) const {
    const std::filesystem::path place = path_ / relative;
    std::filesystem::create_directories(place.parent_path());
    std::filesystem::create_symlink(std::filesystem::path(target), place);
    return place.string();
  }

 private:
  std::filesystem::path path_;
};

}  // namespace lading::test
