// What all ranks must agree on, as 128 bits: XXH3 over a sequence in which every text and list says its length.
//
// In it: lading's version, mesh, devices, seed, every statement, and the catalog's part in them. Not in it: the
// rank plans, the order in which files and sources were met, sentences for people, and what may differ from
// rank to rank or from node to node (where a kept value is now, the budget).
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <memory>
#include <tuple>
#include <utility>

#include "base/version.h"
#include "plan/plan.h"

namespace lading::plan {
namespace {

using mapping::Expression;
using mapping::Op;

class Hasher {
 public:
  Hasher() : state_(XXH3_createState(), &XXH3_freeState) {
    LADING_CHECK(state_ != nullptr && XXH3_128bits_reset(state_.get()) == XXH_OK);
  }

  void number(std::uint64_t number) {
    if constexpr (std::endian::native == std::endian::big) number = __builtin_bswap64(number);
    add(&number, sizeof number);
  }
  // -0 and 0 are different values; all NaNs are one.
  void fraction(double value) {
    number(std::bit_cast<std::uint64_t>(value == value ? value : std::numeric_limits<double>::quiet_NaN()));
  }
  void text(std::string_view text) {
    number(text.size());
    add(text.data(), text.size());
  }
  template <class Enum>
  void word(Enum value) {
    number(static_cast<std::uint64_t>(value));
  }
  template <class List, class Add>
  void list(const List& list, const Add& add) {
    number(list.size());
    for (const auto& element : list) add(element);
  }
  template <class Numbers>
  void numbers(const Numbers& values) {
    list(values, [this](std::uint64_t value) { number(value); });
  }
  void texts(const std::vector<std::string>& values) {
    list(values, [this](const std::string& value) { text(value); });
  }

  std::string hex() {
    flush();
    const XXH128_hash_t hash = XXH3_128bits_digest(state_.get());
    return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
  }

 private:
  // Most are a few bytes: they are gathered, which costs less than a call for each.
  void add(const void* bytes, std::size_t size) {
    if (size > gathered_.size() - gathered_bytes_) flush();
    if (size > gathered_.size()) return update(bytes, size);
    if (size > 0) std::memcpy(gathered_.data() + gathered_bytes_, bytes, size);
    gathered_bytes_ += size;
  }
  void flush() { update(gathered_.data(), std::exchange(gathered_bytes_, 0)); }
  void update(const void* bytes, std::size_t size) {
    LADING_CHECK(XXH3_128bits_update(state_.get(), bytes, size) == XXH_OK);
  }

  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state_;
  std::array<unsigned char, 4096> gathered_{};
  std::size_t gathered_bytes_ = 0;
};

void add_decoding(Hasher& hash, const Decoding& decoding) {
  hash.text(decoding.code ? name(*decoding.code) : "");
  hash.number(decoding.per_element);
  hash.text(decoding.scale_dtype ? name(*decoding.scale_dtype) : "");
  hash.number(decoding.zero);
  hash.number(decoding.zeros_dim);
  hash.word(decoding.tensor_scale);
  hash.numbers(decoding.scale_order);
  hash.number(decoding.groups_dim);
}

void add_expression(Hasher& hash, const Expression& e) {
  hash.word(e.op);
  hash.text(e.key);
  if (e.op == Op::kDequantize) {
    hash.text(e.scales);
    hash.text(e.product ? name(*e.product) : "");
    hash.text(e.zeros);
    hash.text(e.tensor_scale);
    hash.text(e.groups);
    add_decoding(hash, e.decoding);
  }
  hash.number(e.dim);
  hash.number(e.begin);
  hash.number(e.end);
  hash.numbers(e.factors);
  hash.numbers(e.order);
  hash.numbers(e.shape.dims());
  hash.fraction(e.fill);
  hash.list(e.parts, [&](const Expression& part) { add_expression(hash, part); });
}

void add_recipe(Hasher& hash, const model::Recipe& recipe) {
  hash.word(recipe.kind);
  for (const double value : {recipe.value, recipe.low, recipe.high, recipe.mean, recipe.std}) hash.fraction(value);
  hash.number(recipe.zero_row ? 1 : 0);
  hash.number(recipe.zero_row.value_or(0));
  hash.texts(recipe.inputs);
}

void add_cut(Hasher& hash, const layout::Cut& cut) {
  hash.word(cut.kind);
  hash.numbers(cut.axes);
  hash.number(cut.dim);
  hash.number(cut.split_factor);
  hash.number(cut.even ? 1 : 0);
  hash.number(cut.pad_multiple);
  hash.text(cut.flat_parameter);
  hash.number(cut.group_offset_elems);
  hash.number(cut.group_elems);
  hash.numbers(cut.owners);
}

void add_placement(Hasher& hash, const layout::Placement& placement) {
  hash.list(placement.slots, [&](const layout::Slot& slot) {
    hash.text(slot.name);
    hash.list(slot.cuts, [&](const layout::Cut& cut) { add_cut(hash, cut); });
  });
  hash.word(placement.device);
  hash.text(placement.fsdp_group);
}

void add_statement(Hasher& hash, const Statement& s) {
  hash.text(s.name);
  hash.word(s.kind);
  hash.numbers(s.shape.dims());
  hash.word(s.provenance);
  add_expression(hash, s.expression);
  hash.list(s.must_equal, [&](const Expression& other) { add_expression(hash, other); });
  hash.text(s.alias_of);
  add_recipe(hash, s.recipe);
  hash.number(s.checkpoint_dtype ? 1 : 0);
  hash.text(s.checkpoint_dtype ? name(*s.checkpoint_dtype) : std::string_view());
  hash.text(name(s.storage));
  hash.text(name(s.compute));
  add_placement(hash, s.placement);
  hash.text(s.rule);
  hash.text(s.mapping_rule);
}

void add_devices(Hasher& hash, const layout::DeviceMap& devices) {
  hash.list(devices.list, [&](const layout::Device& device) { hash.text(device.text()); });
  hash.text(layout::word(devices.type));
  hash.number(devices.per_node);
}

std::vector<const PlannedFile*> files_in_order(const Plan& plan) {
  std::vector<const PlannedFile*> files;
  for (const PlannedFile& file : plan.files) files.push_back(&file);
  std::sort(files.begin(), files.end(), [](const PlannedFile* a, const PlannedFile* b) {
    return std::tie(a->checkpoint, a->name) < std::tie(b->checkpoint, b->name);
  });
  return files;
}

std::vector<const Source*> sources_in_order(const Plan& plan) {
  std::vector<const Source*> sources;
  sources.reserve(plan.sources.size());
  for (const Source& source : plan.sources) sources.push_back(&source);
  const auto by_key = [&](const Source* a, const Source* b) {
    return std::tie(plan.files[a->file].checkpoint, a->key) < std::tie(plan.files[b->file].checkpoint, b->key);
  };
  if (!std::is_sorted(sources.begin(), sources.end(), by_key)) std::sort(sources.begin(), sources.end(), by_key);
  return sources;
}

void add_sources(Hasher& hash, const Plan& plan) {
  hash.list(files_in_order(plan), [&](const PlannedFile* file) {
    hash.text(file->name);
    hash.number(file->size_bytes);
  });
  hash.list(sources_in_order(plan), [&](const Source* source) {
    hash.text(source->key);
    hash.text(plan.files[source->file].name);
    hash.number(source->bytes.begin);
    hash.number(source->bytes.end);
    hash.text(name(source->dtype));
    hash.numbers(source->shape.dims());
  });
}

// Which checkpoint each file, source and statement is of. Plans without adapters have nothing here.
void add_checkpoints(Hasher& hash, const Plan& plan) {
  const auto is_of_adapter = [](const auto& one) { return one.checkpoint > 0; };
  const bool has_adapters = std::any_of(plan.files.begin(), plan.files.end(), is_of_adapter) ||
                            std::any_of(plan.statements.begin(), plan.statements.end(), is_of_adapter);
  if (!has_adapters && plan.ignored_adapter_keys.empty()) return;
  hash.list(files_in_order(plan), [&](const PlannedFile* file) { hash.number(file->checkpoint); });
  hash.list(sources_in_order(plan), [&](const Source* source) { hash.number(plan.files[source->file].checkpoint); });
  hash.list(plan.statements, [&](const Statement& s) { hash.number(s.checkpoint); });
  hash.list(plan.ignored_adapter_keys, [&](const IgnoredAdapterKey& ignored) {
    hash.number(ignored.checkpoint);
    hash.text(ignored.key);
    hash.text(ignored.rule);
  });
}

}  // namespace

std::string digest(const Plan& plan) {
  Hasher hash;
  hash.text("lading.plan/1");
  hash.text(kVersion);
  hash.list(plan.mesh.axes(), [&](const layout::Axis& axis) {
    hash.text(axis.name);
    hash.number(axis.size);
  });
  add_devices(hash, plan.devices);
  hash.number(plan.seed);
  add_sources(hash, plan);
  hash.list(plan.statements, [&](const Statement& s) { add_statement(hash, s); });
  hash.list(plan.call_order, [&](StatementId s) { hash.number(s.number()); });
  hash.list(plan.ignored_keys, [&](const auto& ignored) {
    hash.text(ignored.first);
    hash.text(ignored.second);
  });
  hash.texts(plan.unexpected_keys);
  add_checkpoints(hash, plan);
  return hash.hex();
}

}  // namespace lading::plan
