#include "api/convert/beside_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace lading {
namespace {

// Of transformers' processors and tokenizers. A file of another name stays where it is.
constexpr std::array<std::string_view, 19> kNames = {"generation_config.json",
                                                     "tokenizer.json",
                                                     "tokenizer_config.json",
                                                     "special_tokens_map.json",
                                                     "added_tokens.json",
                                                     "vocab.json",
                                                     "vocab.txt",
                                                     "merges.txt",
                                                     "tokenizer.model",
                                                     "spiece.model",
                                                     "source.spm",
                                                     "target.spm",
                                                     "sentencepiece.bpe.model",
                                                     "chat_template.jinja",
                                                     "chat_template.json",
                                                     "preprocessor_config.json",
                                                     "processor_config.json",
                                                     "video_preprocessor_config.json",
                                                     "feature_extractor_config.json"};
constexpr std::string_view kCodeEnding = ".py";

constexpr std::uint64_t kMostConfigBytes = 16 << 20;
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 30;  // a tokenizer has some MB
constexpr std::uint64_t kStretchBytes = 1 << 20;

// Nothing if it is not there, or not a regular file.
Result<std::optional<io::File>> opened(const io::Anchor& anchor, const std::string& relative) {
  auto file = anchor.open_file(relative);
  if (file) return std::optional<io::File>(*std::move(file));
  if (file.error().code == Code::kNotFound || file.error().code == Code::kNotRegularFile) {
    return std::optional<io::File>();
  }
  return fail(std::move(file).error());
}

Result<void> check_size(const io::File& file, std::uint64_t most) {
  if (file.size_bytes() <= most) return {};
  return fail(Error(Code::kReadFailed, "the file beside the checkpoint is too large to be what its name says")
                  .in_file(file.path())
                  .wanted(fmt::format("at most {} bytes", most))
                  .got(fmt::format("{} bytes", file.size_bytes()))
                  .try_this("Get the file that belongs to the checkpoint."));
}

Result<void> copy_one(const io::File& file, const std::string& name, const io::NewDirectory& directory) {
  LADING_ASSIGN_OR_RETURN(const io::Fd made, directory.create_file(name, file.size_bytes()));
  std::vector<char> stretch(std::min(kStretchBytes, file.size_bytes()));
  for (std::uint64_t at = 0; at < file.size_bytes(); at += stretch.size()) {
    const std::span bytes(stretch.data(), std::min<std::uint64_t>(stretch.size(), file.size_bytes() - at));
    LADING_TRY(file.read_exact(at, bytes));
    LADING_TRY(io::write_exact(made.get(), at, std::as_bytes(bytes), directory.path_of(name)));
  }
  return file.check_unchanged();
}

}  // namespace

std::span<const std::string_view> beside_names() { return kNames; }

std::string BesideFiles::relative(std::string_view name) const {
  return folder_.empty() ? std::string(name) : fmt::format("{}/{}", folder_, name);
}

Result<std::optional<std::string>> BesideFiles::config(std::string_view name) const {
  LADING_ASSIGN_OR_RETURN(const auto file, opened(anchor_, relative(name)));
  if (!file) return std::optional<std::string>();
  LADING_TRY(check_size(*file, kMostConfigBytes));
  std::string text(file->size_bytes(), '\0');
  LADING_TRY(file->read_exact(0, text));
  return std::optional(std::move(text));
}

Result<std::vector<std::string>> BesideFiles::find(CopyCode code) const {
  std::vector<std::string> wanted(kNames.begin(), kNames.end());
  if (code == CopyCode::kYes) {
    LADING_ASSIGN_OR_RETURN(const std::vector<std::string> names, anchor_.list(folder_));
    std::copy_if(names.begin(), names.end(), std::back_inserter(wanted),
                 [](const std::string& name) { return name.ends_with(kCodeEnding); });
  }
  std::vector<std::string> found;
  for (std::string& name : wanted) {
    LADING_ASSIGN_OR_RETURN(const auto file, opened(anchor_, relative(name)));
    if (!file) continue;
    LADING_TRY(check_size(*file, kMostBytes));
    found.push_back(std::move(name));
  }
  return found;
}

Result<void> BesideFiles::copy(const std::vector<std::string>& names, const io::NewDirectory& directory) const {
  for (const std::string& name : names) {
    LADING_ASSIGN_OR_RETURN(const io::File file, anchor_.open_file(relative(name)));
    LADING_TRY(copy_one(file, name, directory));
  }
  return {};
}

}  // namespace lading
