#include "planner/quantized/quantization_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/text.h"
#include "checkpoint/quantized.h"

namespace lading::planner {
namespace {

using checkpoint::CatalogTensor;
using checkpoint::QuantizedKeys;

// Keeps the work linear in the length of a name that is nothing but dots.
constexpr int kMaxParts = 64;

// Regular expressions, and names of classes, which only their own library can resolve, and what is no module's name.
bool is_plain(std::string_view entry) {
  const bool has_class = !entry.empty() && entry.front() >= 'A' && entry.front() <= 'Z';
  return !entry.empty() && !has_class && !entry.starts_with("re:") &&
         std::count(entry.begin(), entry.end(), '.') < kMaxParts &&
         entry.find_first_of("*+?()[]{}|^$\\") == std::string_view::npos;
}

// Calls act with each stretch of whole components of the name: libraries take an entry for a name's begin or end.
template <class Act>
void for_each_stretch(std::string_view name, const Act& act) {
  for (std::size_t begin = 0;;) {
    std::size_t end = name.find('.', begin);
    for (int parts = 0; parts < kMaxParts; ++parts, end = name.find('.', end + 1)) {
      act(name.substr(begin, end == std::string_view::npos ? end : end - begin));
      if (end == std::string_view::npos) break;
    }
    const std::size_t dot = name.find('.', begin);
    if (dot == std::string_view::npos) return;
    begin = dot + 1;
  }
}

class ConfigCheck {
 public:
  ConfigCheck(const PlanInputs& inputs, const Decisions& decisions)
      : inputs_(inputs), said_(*inputs.catalog.quantization), keys_(inputs.catalog) {
    for (const Source& source : decisions.plan.sources) {
      if (!source.scaling || decisions.plan.files[source.file].checkpoint > 0) continue;
      has_dequantized_ = true;
      for (const SourceId part :
           {source.scaling->scales, source.scaling->zeros, source.scaling->tensor_scale, source.scaling->groups}) {
        if (!part.is_none()) bound_.insert(decisions.plan.sources[part].key);
      }
    }
    for (const CatalogTensor& tensor : inputs.catalog.tensors_of(0)) {
      if (!tensor.dtype || !checkpoint::is_payload_dtype(*tensor.dtype)) continue;
      const auto companions = keys_.companions_of(tensor);
      if (companions.empty() && !checkpoint::is_low_precision(*tensor.dtype)) continue;
      payloads_.push_back(&tensor);
      for (const CatalogTensor* one : companions) bound_.insert(one->name);
    }
  }

  Errors run() {
    if (payloads_.empty() && !has_dequantized_) {
      add(Error(Code::kDType, "config.json says that the checkpoint is quantized, but no key is")
              .wanted(
                  fmt::format("payloads and scales ({})", said_.method.empty() ? "quantization_config" : said_.method))
              .got("no tensor that has scales")
              .try_this("Remove quantization_config from config.json if the weights are not quantized."));
    } else {
      check_scales();
    }
    check_modules();
    return std::move(errors_);
  }

 private:
  void add(Error error) { errors_.add(std::move(error).by_rule("R48")); }

  void check_scales() {
    for (const CatalogTensor& tensor : inputs_.catalog.tensors_of(0)) {
      if (bound_.contains(tensor.name) || !QuantizedKeys::is_scale_of_weight(tensor.name)) continue;
      add(Error(Code::kDType, "a scale belongs to no quantized tensor")
              .of_tensor(tensor.name)
              .in_file(inputs_.catalog.files[tensor.file].name)
              .wanted("a payload beside it")
              .try_this("Download the checkpoint again, or remove the scale if the weight is not quantized."));
    }
  }

  // Checkpoints of many experts list hundreds of modules beside tens of thousands of keys.
  void check_modules() {
    std::unordered_map<std::string_view, Entry> entries;
    for (const std::string& text : said_.not_converted) {
      if (is_plain(text)) entries.try_emplace(text);
    }
    if (entries.empty()) return;
    const auto find = [&](std::string_view name, const auto& act) {
      for_each_stretch(name, [&](std::string_view stretch) {
        if (const auto found = entries.find(stretch); found != entries.end()) act(found->second);
      });
    };
    for (const CatalogTensor* payload : payloads_) {
      if (keys_.companions_of(*payload).empty()) continue;
      find(payload->name, [&](Entry& entry) { entry.payload = entry.payload == nullptr ? payload : entry.payload; });
    }
    const auto know = [](Entry& entry) { entry.is_known = true; };
    for (const CatalogTensor& tensor : inputs_.catalog.tensors_of(0)) find(tensor.name, know);
    for (const model::Tensor& tensor : inputs_.skeleton.tensors) find(tensor.name, know);
    for (const std::string& text : said_.not_converted) {
      const auto found = entries.find(text);
      if (found != entries.end()) judge(text, found->second);
    }
  }

  struct Entry {
    const CatalogTensor* payload = nullptr;  // that is quantized all the same
    bool is_known = false;
  };

  void judge(const std::string& text, const Entry& entry) {
    if (entry.payload != nullptr) {
      add(Error(Code::kDType, "config.json says that a module is not quantized, but it is")
              .of_tensor(entry.payload->name)
              .in_file(inputs_.catalog.files[entry.payload->file].name)
              .wanted(fmt::format("no scales below {} (modules_to_not_convert)", quote(text)))
              .try_this("Correct modules_to_not_convert in config.json."));
    } else if (!entry.is_known && !inputs_.is_part_of_model) {  // a stage does not know the modules of the others
      add(Error(Code::kDType, fmt::format("config.json names a module that does not exist: {}", quote(text)))
              .wanted("a module of the model or of the checkpoint (modules_to_not_convert)")
              .try_this("Correct modules_to_not_convert in config.json."));
    }
  }

  const PlanInputs& inputs_;
  const checkpoint::Quantization& said_;
  QuantizedKeys keys_;
  std::vector<const CatalogTensor*> payloads_;
  std::set<std::string_view> bound_;
  bool has_dequantized_ = false;
  Errors errors_;
};

}  // namespace

Errors check_quantization_config(const PlanInputs& inputs, const Decisions& decisions) {
  if (!inputs.catalog.quantization) return {};
  return ConfigCheck(inputs, decisions).run();
}

}  // namespace lading::planner
