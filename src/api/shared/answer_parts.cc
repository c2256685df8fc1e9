#include "api/shared/answer_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "base/error_json.h"
#include "lading/version.h"

namespace lading {
namespace {

using Lines = JsonWriter::Lines;

// Answers that the command line gives too have a schema of their own.
std::string schema_of(std::string_view kind) {
  constexpr std::array<std::string_view, 5> kOwn = {"convert", "help", "inspect", "load", "verify"};
  const bool has_own = std::find(kOwn.begin(), kOwn.end(), kind) != kOwn.end();
  return has_own ? fmt::format("lading.{}/1", kind) : "lading.answer/1";
}

// The lists of ranks that destinations share, each once.
class ReplicaSets {
 public:
  explicit ReplicaSets(const std::vector<DestinationInfo>& destinations) {
    for (const DestinationInfo& d : destinations) {
      if (places_.emplace(d.replicas.get(), places_.size()).second) sets_.push_back(d.replicas.get());
    }
  }
  [[nodiscard]] std::uint64_t place_of(const DestinationInfo& d) const { return places_.at(d.replicas.get()); }
  void write(JsonWriter& json) const {
    json.key("replica_sets").begin_array();
    for (const std::vector<std::uint64_t>* ranks : sets_) {
      json.begin_array(Lines::kOne);
      for (const std::uint64_t rank : *ranks) json.number(rank);
      json.end_array();
    }
    json.end_array();
  }

 private:
  std::map<const void*, std::uint64_t> places_;
  std::vector<const std::vector<std::uint64_t>*> sets_;
};

void write_destination(JsonWriter& json, const DestinationInfo& d, const ReplicaSets& replicas,
                       const plan::Statement* statement) {
  json.begin_object(Lines::kOne);
  json.key("rank").number(d.rank);
  json.key("name").string(d.name);
  json.key("slot").string(d.slot);
  json.key("unit").string(d.flat_parameter);
  json.key("device").string(d.device.text());
  json.key("provenance").string(word(d.provenance));
  if (d.checkpoint > 0) json.key("checkpoint").number(d.checkpoint);
  json.key("dtype").string(name(d.dtype));
  if (statement != nullptr && statement->checkpoint_dtype.value_or(d.dtype) != d.dtype) {
    json.key("checkpoint_dtype").string(name(*statement->checkpoint_dtype));
  }
  write_dims(json, "shape", d.shape);
  write_dims(json, "local_shape", d.local_shape);
  json.key("size_bytes").number(d.size_bytes);
  write_strings(json, "aliases", d.aliases, Lines::kOne);
  json.key("replicas").number(replicas.place_of(d));
  json.end_object();
}

}  // namespace

void begin_answer(JsonWriter& json, std::string_view kind, Exit exit_code) {
  json.begin_object();
  json.key("schema").string(schema_of(kind));
  json.key("lading").string(version());
  json.key("kind").string(kind);
  json.key("ok").boolean(exit_code == Exit::kOk);
  json.key("exit_code").number(static_cast<std::uint64_t>(exit_code));
}

std::string end_answer(JsonWriter& json, const Errors& warnings, const Errors& problems) {
  write_errors(json, "warnings", warnings, Remedies::kOwn);
  write_errors(json, "problems", problems);
  json.end_object();
  return json.take();
}

void write_dims(JsonWriter& json, std::string_view key, const Shape& shape) {
  json.key(key).begin_array(Lines::kOne);
  for (const std::uint64_t dim : shape) json.number(dim);
  json.end_array();
}

void write_strings(JsonWriter& json, std::string_view key, const std::vector<std::string>& strings,
                   JsonWriter::Lines lines) {
  json.key(key).begin_array(lines);
  for (const std::string& string : strings) json.string(string);
  json.end_array();
}

void write_destinations(JsonWriter& json, const std::vector<DestinationInfo>& destinations, const plan::Plan& plan) {
  const ReplicaSets replicas(destinations);
  json.key("destinations").begin_array();
  for (const DestinationInfo& d : destinations) write_destination(json, d, replicas, plan.find(d.name));
  json.end_array();
  replicas.write(json);
}

}  // namespace lading
