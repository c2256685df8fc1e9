#include "checkpoint/quantized.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

namespace lading::checkpoint {
namespace {

template <std::size_t N>
using Words = std::array<std::string_view, N>;

constexpr Words<15> kScaleWords = {"scale",     "scales",   "scaling",   "absmax",    "amax",
                                   "scb",       "zero",     "zeros",     "zp",        "zps",
                                   "zeropoint", "codebook", "codebooks", "centroids", "lut"};
// What else stands in the name of a scale, and says nothing about whose it is.
constexpr Words<17> kQualifiers = {"inv",       "inverse", "global", "block", "channel", "group",
                                   "tensor",    "nested",  "per",    "point", "points",  "quant",
                                   "quantizer", "state",   "map",    "q",     "dequant"};
// What stands in the name of a payload, and not in that of its scales.
constexpr Words<14> kDecorations = {"q",     "packed", "data", "qdata", "blocks", "quantized", "quant",
                                    "codes", "int8",   "int4", "fp8",   "fp4",    "nf4",       "payload"};
// Of what modules multiply, store or give as they run.
constexpr Words<14> kOfOthers = {"input",   "inputs", "in", "act", "activation", "activations", "output",
                                 "outputs", "out",    "k",  "v",   "kv",         "cache",       "prob"};
constexpr Words<5> kWeightWords = {"weight", "weights", "kernel", "w", "embedding"};

// Of bitsandbytes: what stands behind it names the scheme.
constexpr std::string_view kState = "quant_state";
constexpr std::string_view kSeparators = "._:";

template <std::size_t N>
bool is_in(const Words<N>& words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

bool is_alphanumeric(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'); }
char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

// "W_q" to "w" and "q"; "qweight" to "q" and "weight", "qzeros" to "q" and "zeros".
std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  std::string word;
  const auto end_word = [&] {
    if (word.empty()) return;
    const std::string_view rest = std::string_view(word).substr(1);
    if (word.front() == 'q' && (is_in(kWeightWords, rest) || is_in(kScaleWords, rest))) {
      words.emplace_back("q");
      word.erase(0, 1);
    }
    words.push_back(std::move(word));
    word.clear();
  };
  for (const char c : text) {
    if (is_alphanumeric(c)) {
      word += lower(c);
    } else {
      end_word();
    }
  }
  end_word();
  return words;
}

bool is_number(std::string_view word) {
  return std::all_of(word.begin(), word.end(), [](char c) { return c >= '0' && c <= '9'; });
}

bool is_scale(const std::vector<std::string>& words) {
  const auto has_word = std::any_of(words.begin(), words.end(), [](const auto& w) { return is_in(kScaleWords, w); });
  if (has_word) return true;
  // "quant_state", "quant_map" of bitsandbytes
  for (std::size_t i = 1; i < words.size(); ++i) {
    if (words[i - 1] == "quant" && (words[i] == "state" || words[i] == "map")) return true;
  }
  return false;
}

// "wscale", "descale", "scaling_factor"
bool may_be_scale(const std::vector<std::string>& words) {
  const auto is_of_others = [](const std::string& word) { return is_in(kOfOthers, word); };
  const auto has_scale = [](const std::string& word) {
    return word.find("scale") != std::string::npos || word.find("scaling") != std::string::npos;
  };
  return (is_scale(words) || std::any_of(words.begin(), words.end(), has_scale)) &&
         std::none_of(words.begin(), words.end(), is_of_others);
}

struct Name {
  std::string_view module;
  std::string_view leaf;
};

Name split(std::string_view key) {
  const auto dot = key.rfind('.');
  if (dot == std::string_view::npos) return {"", key};
  return {key.substr(0, dot), key.substr(dot + 1)};
}

std::string joined(std::string_view module, const std::set<std::string>& words) {
  std::string text(module);
  text += '\n';
  for (const std::string& word : words) text += word + '_';
  return text;
}

// The words that a scale's name shares with its payload's.
std::set<std::string> stem_of_scale(const std::vector<std::string>& words) {
  std::set<std::string> stem;
  for (const std::string& word : words) {
    if (!is_in(kScaleWords, word) && !is_in(kQualifiers, word) && !is_number(word)) stem.insert(word);
  }
  return stem;
}

struct PayloadName {
  std::set<std::string> stem;
  bool is_decorated = false;
};

PayloadName payload_name(std::string_view leaf) {
  PayloadName name;
  for (std::string& word : words_of(leaf)) {
    if (is_in(kDecorations, word)) {
      name.is_decorated = true;
    } else {
      name.stem.insert(std::move(word));
    }
  }
  return name;
}

bool is_weight(const PayloadName& name) {
  return name.is_decorated ||
         std::any_of(name.stem.begin(), name.stem.end(), [](const auto& word) { return is_in(kWeightWords, word); });
}

}  // namespace

bool is_low_precision(DType dtype) {
  return dtype != DType::kF8E8M0 && class_of(dtype) == DTypeClass::kFloat && bits(dtype) <= 8;
}

bool is_payload_dtype(DType dtype) {
  const DTypeClass kind = class_of(dtype);
  const bool is_integer = kind == DTypeClass::kSigned || kind == DTypeClass::kUnsigned;
  return is_low_precision(dtype) || (is_integer && bits(dtype) <= 32);
}

bool is_scale_dtype(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF8E8M0;
}

bool is_weight_name(std::string_view key) { return is_weight(payload_name(split(key).leaf)); }

QuantizedKeys::QuantizedKeys(const Catalog& catalog) : catalog_(catalog) {
  for (std::uint32_t i = 0; i < catalog.tensors_of(0).size(); ++i) {
    const std::string_view key = catalog.tensors[i].name;
    const Name name = split(key);
    const std::vector<std::string> words = words_of(name.leaf);
    if (may_be_scale(words)) add_suspect(i);
    if (!is_scale(words) && key.find(kState) == std::string_view::npos) continue;
    if (is_scale(words)) by_stem_[joined(name.module, stem_of_scale(words))].push_back(i);
    add_prefixes(i);
  }
}

// "K.absmax", "K_scale": what stands behind K are words of a scale and nothing else.
void QuantizedKeys::add_prefixes(std::uint32_t i) {
  const std::string_view key = catalog_.tensors[i].name;
  const std::size_t state = key.rfind(kState);
  if (state != std::string_view::npos && state > 0) by_prefix_[key.substr(0, state - 1)].push_back(i);
  for (std::size_t end = key.find_last_of(kSeparators); end != std::string_view::npos && end > 0;
       end = key.find_last_of(kSeparators, end - 1)) {
    const std::vector<std::string> behind = words_of(key.substr(end));
    if (!stem_of_scale(behind).empty()) return;
    if (is_scale(behind)) by_prefix_[key.substr(0, end)].push_back(i);
  }
}

// Of the module "x" are "x.w_scale" and "x_weight_scale"; of the key "x.w", "x.w.s_scale".
void QuantizedKeys::add_suspect(std::uint32_t i) {
  const std::string_view key = catalog_.tensors[i].name;
  const Name name = split(key);
  suspects_[name.module].push_back(i);
  for (std::size_t end = key.find('_', key.size() - name.leaf.size()); end != std::string_view::npos;
       end = key.find('_', end + 1)) {
    suspects_[key.substr(0, end)].push_back(i);
  }
}

std::vector<const CatalogTensor*> QuantizedKeys::suspects_of(const CatalogTensor& payload) const {
  std::set<std::uint32_t> found;
  for (const std::string_view place : {split(payload.name).module, std::string_view(payload.name)}) {
    if (const auto at = suspects_.find(place); at != suspects_.end())
      found.insert(at->second.begin(), at->second.end());
  }
  std::vector<const CatalogTensor*> suspects;
  for (const std::uint32_t i : found) suspects.push_back(&catalog_.tensors[i]);
  std::erase(suspects, &payload);
  return suspects;
}

std::vector<const CatalogTensor*> QuantizedKeys::companions_of(const CatalogTensor& payload) const {
  if (!payload.dtype || !is_payload_dtype(*payload.dtype)) return {};
  const Name name = split(payload.name);
  if (is_scale(words_of(name.leaf))) return {};  // a scale that is itself stored in few bits
  const PayloadName words = payload_name(name.leaf);
  std::set<std::uint32_t> found;
  if (const auto of_key = by_prefix_.find(payload.name); of_key != by_prefix_.end()) {
    found.insert(of_key->second.begin(), of_key->second.end());
  }
  const auto add = [&](const std::set<std::string>& stem) {
    const auto at = by_stem_.find(joined(name.module, stem));
    if (at != by_stem_.end()) found.insert(at->second.begin(), at->second.end());
  };
  if (!words.stem.empty()) add(words.stem);
  // A bare "scales" is that of the module's weight.
  if (is_weight(words) || is_low_precision(*payload.dtype)) add({});
  std::vector<const CatalogTensor*> companions;
  companions.reserve(found.size());
  for (const std::uint32_t i : found) companions.push_back(&catalog_.tensors[i]);
  return companions;
}

bool QuantizedKeys::is_scale_of_weight(std::string_view key) {
  const std::vector<std::string> words = words_of(split(key).leaf);
  if (!is_scale(words)) return false;
  const std::set<std::string> stem = stem_of_scale(words);
  return std::any_of(stem.begin(), stem.end(), [](const auto& word) { return is_in(kWeightWords, word); });
}

bool QuantizedKeys::is_factor(std::string_view key) {
  const std::vector<std::string> words = words_of(split(key).leaf);
  const auto is_plain = [](const std::string& word) {
    if (word == "scale" || word == "scales" || word == "inv") return true;
    return !is_in(kScaleWords, word) && !is_in(kQualifiers, word);
  };
  return is_scale(words) && std::all_of(words.begin(), words.end(), is_plain);
}

std::string_view QuantizedKeys::scheme_of(const CatalogTensor& payload,
                                          const std::vector<const CatalogTensor*>& companions) const {
  const auto has = [&](std::string_view ending) {
    return std::any_of(companions.begin(), companions.end(),
                       [&](const CatalogTensor* one) { return one->name.ends_with(ending); });
  };
  const auto has_dtype = [&](DType dtype) {
    return std::any_of(companions.begin(), companions.end(),
                       [&](const CatalogTensor* one) { return one->dtype == dtype; });
  };
  const Name name = split(payload.name);
  const DType dtype = *payload.dtype;
  if (has(".SCB")) return "bitsandbytes, 8 bits";
  if (has("absmax")) return "bitsandbytes, 4 bits";
  const bool is_four_bits = dtype == DType::kU8 || dtype == DType::kF4;
  if (is_four_bits && has_dtype(DType::kF8E4M3)) return "nvfp4";
  if (is_four_bits && (name.leaf.ends_with("_blocks") || has_dtype(DType::kF8E8M0))) return "mxfp4";
  if (name.leaf.ends_with("_packed")) return "compressed-tensors";
  if (name.leaf == "qweight") {
    const bool has_order = catalog_.find(std::string(name.module) + ".g_idx") != nullptr;
    if (has_order) return "gptq";
    return has(".qzeros") ? "awq or gptq" : "int8 or int4";
  }
  if (name.leaf == "W_q") return "hqq";
  if (is_low_precision(dtype)) return has("_scale_inv") ? "fp8 blocks" : "fp8";
  if (dtype == DType::kU32) return "mlx";
  return "integers with scales";
}

const CatalogTensor* find_change_of_meaning(const Catalog& catalog, std::string_view payload,
                                            const std::vector<std::string>& known) {
  // GPTQ, compressed-tensors; ExLlamaV2 and Marlin; modelopt, TensorRT-LLM.
  constexpr Words<8> kLeaves = {"g_idx",       "weight_g_idx",    "perm",
                                "weight_perm", "pre_quant_scale", "prequant_scaling_factor",
                                "smoother",    "smooth_scale"};
  const Name name = split(payload);
  const std::string module = name.module.empty() ? "" : std::string(name.module) + '.';
  for (const std::string_view leaf : kLeaves) {
    const std::string key = module + std::string(leaf);
    const CatalogTensor* found = catalog.find(key);
    if (found != nullptr && std::find(known.begin(), known.end(), key) == known.end()) return found;
  }
  return nullptr;
}

Errors quantization_notes(const Catalog& catalog) {
  Errors notes;
  const auto is_payload = [](const CatalogTensor& t) { return t.dtype && is_payload_dtype(*t.dtype); };
  if (std::none_of(catalog.tensors.begin(), catalog.tensors.end(), is_payload)) return notes;
  const QuantizedKeys keys(catalog);
  std::map<std::string_view, std::vector<const CatalogTensor*>> by_scheme;
  for (const CatalogTensor& tensor : catalog.tensors) {
    const auto companions = keys.companions_of(tensor);
    if (!companions.empty()) by_scheme[keys.scheme_of(tensor, companions)].push_back(&tensor);
  }
  for (const auto& [scheme, payloads] : by_scheme) {
    notes.add(Error(Code::kDType,
                    fmt::format("{} tensor(s) are quantized ({}): without their scales, the values are meaningless",
                                payloads.size(), scheme))
                  .of_tensor(payloads.front()->name)
                  .in_file(catalog.files[payloads.front()->file].name)
                  .by_rule("R48")
                  .try_this("Load them into a model of ordinary floats, or into one that has tensors for the scales. "
                            "docs/guides/quantized.md lists the schemes that lading dequantizes."));
  }
  return notes;
}

}  // namespace lading::checkpoint
