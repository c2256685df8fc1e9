// `lading.ledger/1`, docs/schema/ledger.md. A tensor and a record are a line each, so that a diff of two ledgers shows
// them.
#include "base/json_writer.h"
#include "layout/layout_json_write.h"
#include "ledger/ledger.h"
#include "model/skeleton_json.h"
#include "plan/plan_json.h"
#include "plan/words.h"

namespace lading::ledger {
namespace {

constexpr auto kOneLine = JsonWriter::Lines::kOne;

void write_text(JsonWriter& json, std::string_view key, std::string_view text) {
  if (!text.empty()) json.key(key).string(text);
}

void write_shape(JsonWriter& json, const Shape& shape) {
  json.begin_array();
  for (const std::uint64_t dim : shape) json.number(dim);
  json.end_array();
}

// The base checkpoint's number is left out.
void write_checkpoint(JsonWriter& json, std::uint32_t checkpoint) {
  if (checkpoint > 0) json.key("checkpoint").number(checkpoint);
}

void write_file(JsonWriter& json, const File& file) {
  json.begin_object(kOneLine).key("name").string(file.name);
  json.key("size_bytes").number(file.size_bytes);
  write_checkpoint(json, file.checkpoint);
  if (file.identity) {
    json.key("inode").number(file.identity->inode);
    json.key("mtime_s").number(file.identity->mtime_s);
    json.key("mtime_ns").number(file.identity->mtime_ns);
  }
  json.end_object();
}

void write_sources(JsonWriter& json, const Tensor& tensor, const std::vector<File>& files) {
  json.key("sources").begin_array();
  for (const Source& source : tensor.sources) {
    json.begin_object().key("key").string(source.key);
    json.key("file").string(files[source.file].name);
    json.key("bytes").begin_array().number(source.bytes.begin).number(source.bytes.end).end_array();
    json.key("dtype").string(name(source.dtype));
    write_shape(json.key("shape"), source.shape);
    json.end_object();
  }
  json.end_array();
}

void write_tensor(JsonWriter& json, const Tensor& tensor, const Ledger& ledger) {
  json.begin_object(kOneLine).key("name").string(tensor.name);
  json.key("kind").string(model::word(tensor.kind));
  write_shape(json.key("shape"), tensor.shape);
  json.key("storage_dtype").string(name(tensor.storage));
  if (tensor.checkpoint_dtype) json.key("checkpoint_dtype").string(name(*tensor.checkpoint_dtype));
  json.key("provenance").string(word(tensor.provenance));
  if (tensor.provenance == Provenance::kFile) {
    write_checkpoint(json, tensor.checkpoint);
    plan::write_expression(json.key("expression"), tensor.expression);
    if (!tensor.must_equal.empty()) {
      json.key("must_equal").begin_array();
      for (const mapping::Expression& other : tensor.must_equal) plan::write_expression(json, other);
      json.end_array();
    }
    write_sources(json, tensor, ledger.files);
  }
  if (plan::has_recipe(tensor.provenance)) model::write_recipe(json.key("recipe"), tensor.recipe);
  if (tensor.provenance == Provenance::kAlias) json.key("alias_of").string(tensor.alias_of);
  plan::write_placement(json.key("placement"), tensor.placement, ledger.mesh);
  json.key("rule").string(tensor.rule);
  write_text(json, "mapping_rule", tensor.mapping_rule);
  json.end_object();
}

void write_region(JsonWriter& json, const RecordedRegion& region) {
  json.begin_object().key("runs").begin_array();
  for (const std::vector<RecordedRun>& dim : region.runs) {
    json.begin_array();
    for (const RecordedRun& run : dim) json.begin_array().number(run.begin).number(run.size).end_array();
    json.end_array();
  }
  json.end_array();
  if (region.flat) {
    json.key("flat").begin_array().number(region.flat->begin).number(region.flat->end).end_array();
  }
  json.end_object();
}

void write_record(JsonWriter& json, const Record& record, const Ledger& ledger) {
  const Tensor& tensor = ledger.tensors[record.tensor];
  json.begin_object(kOneLine).key("rank").number(record.rank);
  json.key("tensor").string(tensor.name);
  json.key("slot").string(record.slot);
  json.key("kind").string(model::word(tensor.kind));
  json.key("provenance").string(word(record.provenance));
  if (record.provenance == Provenance::kAlias) json.key("alias_of").string(record.alias_of);
  if (!record.reads.empty()) {
    json.key("reads").begin_array();
    for (const TakenBytes& taken : record.reads) {
      json.begin_array().number(taken.file).number(taken.begin_bytes).number(taken.size_bytes);
      // Innermost first (docs/schema/ledger.md).
      for (auto loop = taken.loops.rbegin(); loop != taken.loops.rend(); ++loop) {
        json.number(loop->count).number(loop->stride_bytes);
      }
      json.end_array();
    }
    json.end_array();
  }
  if (record.received_from) json.key("received_from").number(*record.received_from);
  write_text(json, "cast", cast_text(record, tensor.storage));
  write_region(json.key("region"), record.region);
  json.key("device").string(record.device);
  json.key("owned_elems").number(record.owned_elems);
  json.key("bytes").number(record.bytes);
  json.key("written_bytes").number(record.written_bytes);
  json.key("expected_bytes").number(record.expected_bytes);
  json.key("complete").boolean(record.complete);
  if (record.digest) json.key("digest").string(record.digest->text());
  json.end_object();
}

}  // namespace

std::string ledger_json(const Ledger& ledger) {
  JsonWriter json;
  json.begin_object();
  json.key("schema").string("lading.ledger/1");
  json.key("lading").string(ledger.version);
  json.key("complete").boolean(ledger.complete);
  json.key("checkpoint").string(ledger.checkpoint);
  if (!ledger.adapters.empty()) {
    json.key("adapters").begin_array();
    for (const std::string& adapter : ledger.adapters) json.string(adapter);
    json.end_array();
  }
  json.key("plan_digest").string(ledger.plan_digest);
  layout::write_mesh(json.key("mesh"), ledger.mesh);
  json.key("seed").number(ledger.seed);
  json.key("ranks").begin_array(kOneLine);
  for (const std::uint64_t rank : ledger.ranks) json.number(rank);
  json.end_array();
  json.key("files").begin_array();
  for (const File& file : ledger.files) write_file(json, file);
  json.end_array();
  json.key("tensors").begin_array();
  for (const Tensor& tensor : ledger.tensors) write_tensor(json, tensor, ledger);
  json.end_array();
  json.key("records").begin_array();
  for (const Record& record : ledger.records) write_record(json, record, ledger);
  json.end_array();
  json.key("ignored_keys").begin_array();
  for (const auto& [key, rule] : ledger.ignored_keys) {
    json.begin_object(kOneLine).key("key").string(key).key("rule").string(rule).end_object();
  }
  for (const plan::IgnoredAdapterKey& ignored : ledger.ignored_adapter_keys) {
    json.begin_object(kOneLine).key("key").string(ignored.key).key("rule").string(ignored.rule);
    write_checkpoint(json, ignored.checkpoint);
    json.end_object();
  }
  json.end_array();
  json.key("unexpected_keys").begin_array();
  for (const std::string& key : ledger.unexpected_keys) json.string(key);
  json.end_array();
  json.end_object();
  return json.take();
}

}  // namespace lading::ledger
