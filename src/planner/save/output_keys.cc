#include "planner/save/output_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "base/text.h"
#include "checkpoint/quantized.h"
#include "mapping/pieces.h"
#include "mapping/resolve.h"
#include "planner/input_checks.h"
#include "planner/source_coverage.h"
#include "planner/source_refusals.h"
#include "policy/policy.h"

namespace lading::planner {
namespace {

using mapping::Expression;
using model::Tensor;
using saving::FileDTypes;

// A key before its dtype in the file is known.
struct WantedKey {
  std::string key;
  Shape shape;
  std::optional<DType> dtype;  // in the base, or given
};

class KeyChooser {
 public:
  explicit KeyChooser(const SaveInputs& inputs) : inputs_(inputs), options_(inputs.options) {}

  Result<OutputKeys, Errors> run() {
    list_wanted();
    if (!errors_.empty()) return fail(std::move(errors_));
    resolve();
    if (!errors_.empty()) return fail(std::move(errors_));
    sort_out_tensors();
    find_companions();
    sort_out_unread();
    check_each_element_once();
    choose_dtypes();
    if (!errors_.empty()) return fail(std::move(errors_));
    return std::move(out_);
  }

 private:
  void list_wanted() {
    if (inputs_.base != nullptr) {
      for (const checkpoint::CatalogTensor& tensor : inputs_.base->tensors_of(0)) {
        if (!tensor.dtype) {
          errors_.add(Error(Code::kUnknownDType, "the key has a dtype that lading does not know")
                          .of_tensor(tensor.name)
                          .got(tensor.unknown_dtype)
                          .try_this("Save without this base."));
        }
        wanted_.push_back({tensor.name, tensor.shape, tensor.dtype});
      }
      by_place_.resize(wanted_.size());
      for (std::size_t i = 0; i < wanted_.size(); ++i) by_place_[i] = i;
      const auto tensors = inputs_.base->tensors_of(0);
      std::stable_sort(by_place_.begin(), by_place_.end(), [&](std::size_t a, std::size_t b) {
        return std::pair(tensors[a].file, tensors[a].bytes.begin) < std::pair(tensors[b].file, tensors[b].bytes.begin);
      });
      return;
    }
    if (options_.keys) {
      for (const saving::Key& key : *options_.keys) wanted_.push_back({key.key, key.shape, key.dtype});
    } else {
      list_own_names();
    }
    sort_wanted();
  }

  // Every tensor that can be in a file, each tie class under its first such name.
  void list_own_names() {
    if (!inputs_.mapping.rules.empty()) {
      errors_.add(Error(Code::kMapping, "a mapping was given, but neither a base nor keys for it")
                      .try_this("Give the base checkpoint, or list the keys of the new one."));
    }
    std::set<std::uint32_t> classes;
    for (const Tensor& tensor : inputs_.skeleton.tensors) {
      if (!can_be_in_a_file(tensor.kind) || is_left_out(tensor)) continue;
      if (tensor.tie_class && !classes.insert(*tensor.tie_class).second) continue;
      wanted_.push_back({tensor.name, tensor.shape, std::nullopt});
    }
  }

  void sort_wanted() {
    std::vector<std::size_t> order(wanted_.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return wanted_[a].key < wanted_[b].key; });
    std::vector<WantedKey> sorted;
    by_place_.resize(order.size());
    for (std::size_t i = 0; i < order.size(); ++i) {
      by_place_[order[i]] = i;
      sorted.push_back(std::move(wanted_[order[i]]));
      if (sorted[i].key == kMetadataKey) {
        errors_.add(Error(Code::kPlan, "a safetensors header has its metadata under this name, so it can be no key")
                        .of_tensor(sorted[i].key)
                        .try_this("Rename the tensor."));
      }
      if (i > 0 && sorted[i - 1].key == sorted[i].key) {
        errors_.add(
            Error(Code::kPlan, "the key is listed twice").of_tensor(sorted[i].key).try_this("List each key once."));
      }
    }
    wanted_ = std::move(sorted);
  }

  void resolve() {
    std::vector<mapping::Target> targets;
    // Also of non-persistent buffers: an old base may have keys of theirs, which would be lost.
    for (const Tensor& t : inputs_.skeleton.tensors) targets.push_back({t.name, &t.shape});
    std::vector<std::string_view> keys;
    for (const WantedKey& key : wanted_) keys.push_back(key.key);
    auto resolved =
        mapping::resolve(inputs_.mapping, targets, keys, [&](std::string_view key) { return shape_of(key); });
    if (resolved) {
      resolved_ = *std::move(resolved);
    } else {
      errors_.add(std::move(resolved).error());
    }
  }

  [[nodiscard]] std::size_t number_of(std::string_view key) const {
    const auto found = std::lower_bound(wanted_.begin(), wanted_.end(), key,
                                        [](const WantedKey& a, std::string_view b) { return a.key < b; });
    return found != wanted_.end() && found->key == key ? static_cast<std::size_t>(found - wanted_.begin())
                                                       : wanted_.size();
  }
  [[nodiscard]] const Shape* shape_of(std::string_view key) const {
    const std::size_t i = number_of(key);
    return i < wanted_.size() ? &wanted_[i].shape : nullptr;
  }

  [[nodiscard]] bool is_left_out(const Tensor& tensor) const {
    const auto& patterns = options_.leave_out;
    return std::any_of(patterns.begin(), patterns.end(), [&](const NamePattern& p) { return p.matches(tensor.name); });
  }

  // Tensors that are made of keys, those that share their memory, and the others.
  void sort_out_tensors() {
    makers_.resize(wanted_.size());
    left_out_keys_.resize(wanted_.size());
    is_dequantized_.resize(wanted_.size());
    std::set<std::uint32_t> saved_classes;
    for (const Tensor& tensor : inputs_.skeleton.tensors) {
      const auto found = resolved_.expressions.find(tensor.name);
      if (found == resolved_.expressions.end() || is_left_out(tensor) || !tensor.tie_class) continue;
      if (fits_its_keys(tensor, found->second)) saved_classes.insert(*tensor.tie_class);
    }
    for (const Tensor& tensor : inputs_.skeleton.tensors) {
      const auto found = resolved_.expressions.find(tensor.name);
      const Expression* expression = found == resolved_.expressions.end() ? nullptr : &found->second;
      if (is_left_out(tensor)) {
        out_.left_out.push_back(tensor.name);
        if (expression != nullptr) {
          for (const std::string& key : expression->keys()) left_out_keys_[number_of(key)] = true;
        }
      } else if (expression != nullptr && fits_its_keys(tensor, *expression)) {
        add(tensor, *expression);
      } else if (tensor.tie_class && saved_classes.contains(*tensor.tie_class)) {
        out_.tensors.push_back({&tensor, nullptr});
      } else if (can_be_in_a_file(tensor.kind)) {
        lacks_key(tensor);
      } else {
        out_.not_saved.push_back(tensor.name);
        if (expression == nullptr) continue;
        for (const std::string& key : expression->keys()) unfit_.emplace(key, &tensor);
      }
    }
    relocate_expressions();
  }

  // No file needs a non-persistent buffer. Where its value cannot become that of the key, the key is left out like one
  // that no tensor makes. All other tensors have to fit, or are errors later.
  [[nodiscard]] bool fits_its_keys(const Tensor& tensor, const Expression& expression) const {
    if (can_be_in_a_file(tensor.kind)) return true;
    const auto pieces = mapping::expand(expression, [&](std::string_view key) { return shape_of(key); });
    if (!pieces || pieces->shape != tensor.shape) return false;
    const std::vector<std::string> keys = expression.keys();
    return std::all_of(keys.begin(), keys.end(), [&](const std::string& key) {
      return can_become(tensor.dtype, asked_dtype(number_of(key), tensor.dtype));
    });
  }

  void add(const Tensor& tensor, const Expression& expression) {
    out_.tensors.push_back({&tensor, nullptr});
    owners_.push_back(out_.tensors.size() - 1);
    out_.expressions.push_back(expression);
    for (const std::string& key : expression.keys()) makers_[number_of(key)].push_back(&tensor);
  }

  // The list of expressions does not grow any more.
  void relocate_expressions() {
    for (std::size_t i = 0; i < owners_.size(); ++i) out_.tensors[owners_[i]].expression = &out_.expressions[i];
  }

  void lacks_key(const Tensor& tensor) {
    Error error = Error(Code::kPlan, fmt::format("the {} has no key to be saved under", describe(tensor.kind)))
                      .of_tensor(tensor.name)
                      .by_rule("R69")
                      .try_this(inputs_.base != nullptr ? "Save without this base, under the model's own names."
                                                        : "List a key for it, or save with a base that has one.");
    if (const auto note = resolved_.tensor_notes.find(tensor.name); note != resolved_.tensor_notes.end()) {
      error.found = note->second;
    }
    errors_.add(std::move(error));
  }

  // Scales and zero points of a base whose payloads the model holds dequantized: they go with the quantization.
  void find_companions() {
    if (inputs_.base == nullptr) return;
    const checkpoint::QuantizedKeys quantized(*inputs_.base);
    for (const checkpoint::CatalogTensor& tensor : inputs_.base->tensors_of(0)) {
      const std::size_t i = number_of(tensor.name);
      const bool is_float_in_memory = !makers_[i].empty() && policy::is_ordinary_float(makers_[i].front()->dtype);
      if (!is_float_in_memory || !checkpoint::is_low_precision(*tensor.dtype)) continue;
      for (const checkpoint::CatalogTensor* companion : quantized.companions_of(tensor)) {
        companions_.insert(companion->name);
        is_dequantized_[i] = true;  // without scales its numbers are the values themselves
      }
    }
  }

  void sort_out_unread() {
    is_dropped_.resize(wanted_.size());
    is_kept_.resize(wanted_.size());
    for (std::size_t i = 0; i < wanted_.size(); ++i) {
      if (!makers_[i].empty()) continue;
      const std::string& key = wanted_[i].key;
      const auto unread = resolved_.unread.find(key);
      const std::string rule = unread == resolved_.unread.end() ? "" : unread->second;
      if (left_out_keys_[i]) {
        drop(i, "its tensor is left out");
      } else if (companions_.contains(key)) {
        drop(i, "the model is not quantized");
      } else if (options_.unmapped == saving::UnmappedKeys::kKeep) {
        keep(i);
      } else if (options_.unmapped == saving::UnmappedKeys::kDrop) {
        drop(i, "no tensor of the model makes it");
      } else {
        refuse_unmapped(key, rule);
      }
    }
  }

  void drop(std::size_t i, std::string why) {
    is_dropped_[i] = true;
    out_.dropped_keys.emplace_back(wanted_[i].key, std::move(why));
  }

  // Beside weights that are written without their scales, codes have no meaning: nothing says that they are quantized.
  void keep(std::size_t i) {
    is_kept_[i] = true;
    if (companions_.empty() || !checkpoint::is_low_precision(wanted_[i].dtype.value())) return;
    errors_.add(Error(Code::kPlan, "this key is quantized and cannot be kept, because the model is not quantized")
                    .of_tensor(wanted_[i].key)
                    .by_rule("R69")
                    .try_this("Leave such keys out (unmapped=\"drop\"), or save without this base."));
  }

  void refuse_unmapped(const std::string& key, const std::string& rule) {
    Error error = Error(Code::kPlan, "no tensor of the model makes this key")
                      .of_tensor(key)
                      .by_rule("R69")
                      .try_this(
                          "Keep the base's values (unmapped=\"keep\"), leave such keys out (unmapped=\"drop\"), "
                          "or save without this base.");
    if (!rule.empty()) error.found = fmt::format("rule {} of the mapping ignores it", quote(rule));
    const auto note = resolved_.key_notes.find(key);
    if (rule.empty() && note != resolved_.key_notes.end()) error.found = note->second;
    if (const auto unfit = unfit_.find(key); unfit != unfit_.end()) {
      const Tensor& buffer = *unfit->second;
      error.found = fmt::format("the {} {}, which is {} {} in memory", describe(buffer.kind), quote(buffer.name),
                                name(buffer.dtype), buffer.shape.text());
    }
    errors_.add(std::move(error));
  }

  // Each element of a key is one element of the model: not two, which may differ by now, and not none.
  void check_each_element_once() {
    std::vector<mapping::Pieces> all;
    all.reserve(out_.expressions.size());
    std::set<std::pair<std::uint32_t, std::string>> of_classes;
    for (std::size_t i = 0; i < out_.expressions.size(); ++i) {
      const Tensor& tensor = *out_.tensors[owners_[i]].tensor;
      // Of one memory, the same expression counts once.
      if (tensor.tie_class && !of_classes.emplace(*tensor.tie_class, out_.expressions[i].text()).second) continue;
      auto pieces = mapping::expand(out_.expressions[i], [&](std::string_view key) { return shape_of(key); });
      if (pieces) {
        if (pieces->shape != tensor.shape) {
          const std::string found = fmt::format("{} from {}", pieces->shape.text(), out_.expressions[i].text());
          errors_.add(
              differs_in_shape(tensor, found, "Save without this base, under the model's own names.").by_rule("R41"));
        }
        all.push_back(*std::move(pieces));
      } else {
        for (Error error : pieces.error()) errors_.add(std::move(error).of_tensor(tensor.name));
      }
    }
    std::vector<std::vector<const mapping::Piece*>> by_key(wanted_.size());
    for (const mapping::Pieces& pieces : all) {
      for (const mapping::Piece& piece : pieces.pieces) {
        if (!piece.is_fill()) by_key[number_of(pieces.sources[piece.source])].push_back(&piece);
      }
    }
    for (std::size_t i = 0; i < wanted_.size(); ++i) {
      if (!makers_[i].empty()) check_covered(i, by_key[i]);
    }
  }

  void check_covered(std::size_t i, const std::vector<const mapping::Piece*>& pieces) {
    const WantedKey& key = wanted_[i];
    const std::uint64_t elems = key.shape.num_elems().value_or(0);
    const std::uint64_t covered = covered_elems(key.shape, pieces);
    std::uint64_t taken = 0;
    for (const mapping::Piece* piece : pieces) taken += piece->elems();
    if (covered < elems) {
      errors_.add(Error(Code::kPlan, "the model holds only a part of this key")
                      .of_tensor(key.key)
                      .by_rule("R69")
                      .wanted(fmt::format("{} elements", elems))
                      .got(fmt::format("{} elements", covered))
                      .try_this("Save without this base, under the model's own names."));
    } else if (taken > covered) {
      errors_.add(Error(Code::kPlan, "the model holds elements of this key twice, and they may differ")
                      .of_tensor(key.key)
                      .by_rule("R69")
                      .got(fmt::format("{} elements of {}", taken, names_of(makers_[i])))
                      .try_this("Tie the tensors, or save without this base, under the model's own names."));
    }
  }

  static std::string names_of(const std::vector<const Tensor*>& tensors) {
    std::vector<std::string> names;
    for (const Tensor* tensor : tensors) names.push_back(quote(tensor->name));
    return fmt::format("{}", fmt::join(names, ", "));
  }

  void choose_dtypes() {
    for (const std::size_t i : by_place_) {
      if (is_kept_[i]) {
        out_.keys.push_back({wanted_[i].key, wanted_[i].dtype.value(), wanted_[i].shape});
        out_.kept_keys.push_back(out_.keys.back());
      }
      if (is_dropped_[i] || makers_[i].empty()) continue;
      out_.keys.push_back({wanted_[i].key, file_dtype(i), wanted_[i].shape});
    }
  }

  // Of the key in the file; refuses casts that are not possible, or not wanted.
  DType file_dtype(std::size_t i) {
    const WantedKey& key = wanted_[i];
    const auto& makers = makers_[i];
    const DType memory = makers.front()->dtype;
    const auto asked = asked_dtype(i, memory);
    for (const Tensor* maker : makers) {
      if (can_become(maker->dtype, asked)) continue;
      const bool is_possible = policy::cast_is_possible(maker->dtype, asked);
      errors_.add(Error(Code::kDType, is_possible ? "saving this tensor in the file's dtype could lose bits"
                                                  : "this tensor cannot be saved in the file's dtype")
                      .of_tensor(maker->name)
                      .by_rule("R24")
                      .wanted(fmt::format("{} of the key {}", name(asked), quote(key.key)))
                      .got(fmt::format("{} in memory", name(maker->dtype)))
                      .try_this(is_possible ? "Pass dtype=\"memory\" to save what is in memory, or dtype=\"base\" to "
                                              "round it to the base's dtype."
                                            : "Pass dtype=\"memory\"."));
      return asked;
    }
    return asked;
  }

  [[nodiscard]] bool can_become(DType memory, DType asked) const {
    const bool may_lose =
        options_.dtypes == FileDTypes::kBase || (options_.dtypes == FileDTypes::kGiven && asked == options_.dtype);
    return memory == asked ||
           (policy::cast_is_possible(memory, asked) && (may_lose || policy::is_wide_enough(memory, asked)));
  }

  [[nodiscard]] DType asked_dtype(std::size_t i, DType memory) const {
    const std::optional<DType>& base = wanted_[i].dtype;
    const bool is_given = options_.dtypes == FileDTypes::kGiven && policy::is_ordinary_float(memory);
    if (options_.dtypes == FileDTypes::kMemory || !base || is_dequantized_[i]) {
      return is_given ? *options_.dtype : memory;
    }
    const bool is_float = policy::is_ordinary_float(*base) || checkpoint::is_low_precision(*base);
    return is_given && is_float ? *options_.dtype : *base;
  }

  const SaveInputs& inputs_;
  const saving::Options& options_;
  std::vector<WantedKey> wanted_;      // by name
  std::vector<std::size_t> by_place_;  // into wanted_, in the order in which files are filled
  mapping::Resolved resolved_;
  std::vector<std::size_t> owners_;                 // of the expressions, into out_.tensors
  std::vector<std::vector<const Tensor*>> makers_;  // by wanted_
  std::vector<bool> left_out_keys_;                 // by wanted_
  std::vector<bool> is_dropped_;                    // by wanted_
  std::vector<bool> is_kept_;                       // by wanted_
  std::vector<bool> is_dequantized_;                // by wanted_: a payload whose scales the base has
  std::set<std::string, std::less<>> companions_;
  std::map<std::string, const Tensor*, std::less<>> unfit_;  // keys of non-persistent buffers of another form
  OutputKeys out_;
  Errors errors_;
};

}  // namespace

Result<OutputKeys, Errors> choose_keys(const SaveInputs& inputs) { return KeyChooser(inputs).run(); }

}  // namespace lading::planner
