#include "source/model_config.h"

#include <fmt/format.h>

#include <new>
#include <utility>

#include "base/json_reader.h"

namespace lading::source {
namespace {

constexpr std::uint64_t kMaxBytes = std::uint64_t{16} << 20;

std::string text_of(const JsonValue& object, std::string_view key) {
  const auto found = object.find(key);
  return found && found->is_string() ? std::string(found->text()) : std::string();
}

// Models of several towers have it in the part of the one that is quantized.
std::optional<checkpoint::Quantization> quantization_of(const JsonValue& config) {
  for (const std::string_view key : {"quantization_config", "compression_config"}) {
    const auto found = config.find(key);
    if (found && found->is_object()) {
      return checkpoint::Quantization{text_of(*found, "quant_method"), text_of(*found, "format")};
    }
  }
  for (const JsonMember& member : config) {
    if (!member.key.ends_with("_config") || !member.value.is_object()) continue;
    if (auto found = quantization_of(member.value)) return found;
  }
  return std::nullopt;
}

Result<std::optional<checkpoint::Quantization>, Errors> read(const io::File& file) {
  if (file.size_bytes() > kMaxBytes) {
    return fail(Error(Code::kReadFailed, "the model's configuration file is too large")
                    .wanted(fmt::format("at most {} bytes", kMaxBytes))
                    .got(fmt::format("{} bytes", file.size_bytes())));
  }
  JsonBuffer buffer(file.size_bytes());
  LADING_TRY(file.read_exact(0, {buffer.data(), file.size_bytes()}));
  LADING_ASSIGN_OR_RETURN(const JsonDocument document, JsonDocument::parse(buffer));
  return quantization_of(document.root());
}

}  // namespace

ModelConfig read_model_config(const io::Anchor& anchor, const std::string& directory) {
  ModelConfig config;
  const std::string relative = directory.empty() ? "config.json" : directory + "/config.json";
  const auto note = [&](const Errors& errors) {
    Error first = errors.front();
    config.warnings.add(std::move(first)
                            .in_file(anchor.display(relative))
                            .try_this("Check that this is the model's config.json. lading ignores it, and detects "
                                      "quantized weights by their names only."));
  };
  const auto file = anchor.open_file(relative);
  if (!file) {
    if (file.error().code != Code::kNotFound) note(Errors(file.error()));
    return config;
  }
  try {
    auto found = read(*file);
    if (found) {
      config.quantization = *std::move(found);
    } else {
      note(found.error());
    }
  } catch (const std::bad_alloc&) {
    note(Errors(Error(Code::kOutOfMemory, "not enough memory to read the model's configuration")));
  }
  return config;
}

}  // namespace lading::source
