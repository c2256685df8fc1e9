#include "source/model_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <new>
#include <tuple>
#include <utility>

#include "base/json_reader.h"

namespace lading::source {
namespace {

constexpr std::uint64_t kMaxBytes = std::uint64_t{16} << 20;

std::string text_of(const JsonValue& object, std::string_view key) {
  const auto found = object.find(key);
  return found && found->is_string() ? std::string(found->text()) : std::string();
}

// 0 where there is none.
std::uint64_t number_of(const JsonValue& object, std::string_view key) {
  const auto found = object.find(key);
  if (!found) return 0;
  return found->as_uint64().value_or(0);
}

std::vector<std::uint64_t> numbers_of(const JsonValue& object, std::string_view key) {
  std::vector<std::uint64_t> numbers;
  const auto found = object.find(key);
  if (!found || !found->is_array()) return numbers;
  for (const JsonMember& element : *found) {
    const auto number = element.value.as_uint64();
    if (!number || *number == 0) return {};
    numbers.push_back(*number);
  }
  return numbers;
}

// Of fp8, gptq, awq, …; of compressed-tensors.
std::vector<std::string> not_converted_of(const JsonValue& quantization) {
  std::vector<std::string> modules;
  for (const std::string_view key : {"modules_to_not_convert", "ignored_layers", "ignore"}) {
    const auto found = quantization.find(key);
    if (!found || !found->is_array()) continue;
    for (const JsonMember& element : *found) {
      if (element.value.is_string()) modules.emplace_back(element.value.text());
    }
  }
  return modules;
}

// What compressed-tensors says of weights, one for each group of modules.
std::vector<JsonValue> weights_of(const JsonValue& quantization) {
  std::vector<JsonValue> found;
  const auto groups = quantization.find("config_groups");
  if (!groups || !groups->is_object()) return found;
  for (const JsonMember& part : *groups) {
    const auto weights = part.value.is_object() ? part.value.find("weights") : std::nullopt;
    if (weights && weights->is_object()) found.push_back(*weights);
  }
  return found;
}

bool is_of_floats(const JsonValue& weights) { return text_of(weights, "type") == "float"; }

// [4, 8], or as it was written once: "4x8".
std::vector<std::uint64_t> block_structure_of(const JsonValue& weights) {
  const std::string text = text_of(weights, "block_structure");
  const std::size_t cross = text.find('x');
  if (cross == std::string::npos) return numbers_of(weights, "block_structure");
  std::vector<std::uint64_t> block(2);
  const char* const end = text.data() + text.size();
  const auto rows = std::from_chars(text.data(), text.data() + cross, block[0]);
  const auto columns = std::from_chars(text.data() + cross + 1, end, block[1]);
  const bool is_whole = rows.ec == std::errc{} && rows.ptr == text.data() + cross && columns.ec == std::errc{} &&
                        columns.ptr == end && block[0] != 0 && block[1] != 0;
  return is_whole ? block : std::vector<std::uint64_t>();
}

// "weight_block_size", or of compressed-tensors the one "block_structure" or "group_size" of all 8-bit floats.
std::vector<std::uint64_t> block_of(const JsonValue& quantization) {
  std::vector<std::uint64_t> block = numbers_of(quantization, "weight_block_size");
  if (!block.empty()) return block;
  std::optional<std::vector<std::uint64_t>> all;
  for (const JsonValue& weights : weights_of(quantization)) {
    if (!is_of_floats(weights) || number_of(weights, "num_bits") != 8) continue;
    std::vector<std::uint64_t> next = block_structure_of(weights);
    if (next.empty() && text_of(weights, "strategy") == "group") next = {1, number_of(weights, "group_size")};
    if (next.size() == 2 && next[1] == 0) next.clear();
    if (all && *all != next) return {};
    all = next;
  }
  return all.value_or(std::vector<std::uint64_t>());
}

std::optional<std::int64_t> whole_number_of(const JsonValue& object, std::string_view key) {
  const auto found = object.find(key);
  if (!found || found->kind() != JsonKind::kNumber) return std::nullopt;
  const std::string_view text = found->text();
  std::int64_t number = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (problem != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// How integers are packed, where it is one way for all weights.
struct Packing {
  std::optional<std::uint64_t> bits = {};
  std::optional<std::int64_t> group_size = {};

  friend bool operator==(const Packing&, const Packing&) = default;
};

Packing packing_of(const JsonValue& object, std::string_view bits_key, std::string_view group_key) {
  Packing packing;
  const auto bits = whole_number_of(object, bits_key);
  if (bits && *bits > 0) packing.bits = static_cast<std::uint64_t>(*bits);
  packing.group_size = whole_number_of(object, group_key);
  return packing;
}

// Of GPTQ, AWQ and the like; of compressed-tensors what all groups of integers say.
Packing packing_of(const JsonValue& quantization) {
  const auto groups = quantization.find("config_groups");
  if (!groups || !groups->is_object()) {
    Packing packing = packing_of(quantization, "bits", "group_size");
    if (!packing.bits) packing = packing_of(quantization, "w_bit", "q_group_size");  // an older AWQ
    return packing;
  }
  std::optional<Packing> all;
  for (const JsonValue& weights : weights_of(quantization)) {
    if (is_of_floats(weights)) continue;
    Packing next = packing_of(weights, "num_bits", "group_size");
    if (text_of(weights, "strategy") == "channel" || text_of(weights, "strategy") == "tensor") next.group_size = -1;
    if (all && *all != next) return {};
    all = next;
  }
  return all.value_or(Packing{});
}

std::optional<bool> boolean_of(const JsonValue& object, std::string_view key) {
  const auto found = object.find(key);
  if (!found || (found->kind() != JsonKind::kTrue && found->kind() != JsonKind::kFalse)) return std::nullopt;
  return found->kind() == JsonKind::kTrue;
}

bool has_zero_points(const JsonValue& quantization) {
  const std::vector<JsonValue> groups = weights_of(quantization);
  return std::any_of(groups.begin(), groups.end(),
                     [](const JsonValue& weights) { return boolean_of(weights, "symmetric") == false; });
}

// Transforms of compressed-tensors ("transform_config"). Those of weights are done; those of caches and queries undo
// each other. Those of inputs and outputs are for modules to do.
bool has_transforms(const JsonValue& quantization) {
  const auto config = quantization.find("transform_config");
  const auto groups = config && config->is_object() ? config->find("config_groups") : std::nullopt;
  if (!groups || !groups->is_object()) return false;
  constexpr std::array<std::string_view, 4> kHarmless = {"weight_input", "weight_output", "k_cache", "q_attn"};
  for (const JsonMember& group : *groups) {
    const auto applied = group.value.is_object() ? group.value.find("apply") : std::nullopt;
    if (!applied || !applied->is_array()) return true;
    for (const JsonMember& one : *applied) {
      const std::string location = one.value.is_object() ? text_of(one.value, "location") : "";
      if (std::find(kHarmless.begin(), kHarmless.end(), location) == kHarmless.end()) return true;
    }
  }
  return false;
}

std::string format_of(const JsonValue& quantization) {
  for (const std::string_view key : {"checkpoint_format", "version", "format"}) {
    std::string text = text_of(quantization, key);
    std::transform(text.begin(), text.end(), text.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
    if (!text.empty() && !(key == "version" && quantization.find("config_groups"))) return text;
  }
  return "";
}

bool say_the_same(const checkpoint::Quantization& a, const checkpoint::Quantization& b) {
  const auto of = [](const checkpoint::Quantization& one) {
    return std::tie(one.method, one.format, one.block, one.bits, one.group_size, one.has_order, one.has_zero_points,
                    one.has_transforms);
  };
  return of(a) == of(b);
}

// Which tower a key belongs to is not known.
checkpoint::Quantization of_both(checkpoint::Quantization a, const checkpoint::Quantization& b) {
  a.not_converted.insert(a.not_converted.end(), b.not_converted.begin(), b.not_converted.end());
  if (say_the_same(a, b)) return a;
  checkpoint::Quantization several;
  several.method = "several, one for each part of the model";
  several.not_converted = std::move(a.not_converted);
  several.has_transforms = a.has_transforms || b.has_transforms;
  return several;
}

// Models of several towers have it in the parts of those that are quantized.
std::optional<checkpoint::Quantization> quantization_of(const JsonValue& config) {
  for (const std::string_view key : {"quantization_config", "compression_config"}) {
    const auto found = config.find(key);
    if (found && found->is_object()) {
      const Packing packing = packing_of(*found);
      return checkpoint::Quantization{.method = text_of(*found, "quant_method"),
                                      .format = format_of(*found),
                                      .block = block_of(*found),
                                      .not_converted = not_converted_of(*found),
                                      .bits = packing.bits,
                                      .group_size = packing.group_size,
                                      .has_order = boolean_of(*found, "desc_act"),
                                      .has_zero_points = has_zero_points(*found),
                                      .has_transforms = has_transforms(*found)};
    }
  }
  std::optional<checkpoint::Quantization> all;
  for (const JsonMember& member : config) {
    if (!member.key.ends_with("_config") || !member.value.is_object()) continue;
    auto found = quantization_of(member.value);
    if (!found) continue;
    all = all ? of_both(*std::move(all), *found) : std::move(found);
  }
  return all;
}

Result<std::optional<checkpoint::Quantization>, Errors> read(const io::File& file) {
  if (file.size_bytes() > kMaxBytes) {
    return fail(Error(Code::kReadFailed, "the model's configuration file is too large")
                    .wanted(fmt::format("at most {} bytes", kMaxBytes))
                    .got(fmt::format("{} bytes", file.size_bytes())));
  }
  JsonBuffer buffer(file.size_bytes());
  LADING_TRY(file.read_exact(0, {buffer.data(), file.size_bytes()}));
  return parse_model_config(buffer);
}

}  // namespace

std::string with_numbers_of_json(std::string_view text) {
  constexpr std::array<std::string_view, 3> kWords = {"NaN", "-Infinity", "Infinity"};
  std::string plain(text);
  bool is_in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') is_in_string = !is_in_string;
    if (is_in_string) {
      if (text[i] == '\\') ++i;
      continue;
    }
    for (const std::string_view word : kWords) {
      if (!text.substr(i).starts_with(word)) continue;
      std::fill_n(plain.begin() + static_cast<std::ptrdiff_t>(i), word.size(), ' ');
      plain[i] = '0';
      i += word.size() - 1;
      break;
    }
  }
  return plain;
}

Result<std::optional<checkpoint::Quantization>, Errors> parse_model_config(const JsonBuffer& buffer) {
  const std::string_view text = buffer.text();
  const bool is_of_python = text.find("NaN") != text.npos || text.find("Infinity") != text.npos;
  const JsonBuffer plain = is_of_python ? JsonBuffer::copy_of(with_numbers_of_json(text)) : JsonBuffer(0);
  LADING_ASSIGN_OR_RETURN(const JsonDocument document, JsonDocument::parse(is_of_python ? plain : buffer));
  return quantization_of(document.root());
}

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
