#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <tuple>

#include "base/checked.h"
#include "base/text.h"
#include "ledger/parse_fields.h"
#include "ledger/parse_parts.h"
#include "model/skeleton_json.h"
#include "plan/words.h"

namespace lading::ledger {
namespace {

bool comes_before(const Record& a, const Record& b) {
  return std::tie(a.rank, a.tensor, a.slot) < std::tie(b.rank, b.tensor, b.slot);
}

class RecordReader {
 public:
  RecordReader(const Ledger& ledger, Errors& errors) : ledger_(ledger), errors_(errors) {}

  Record read(const JsonValue& value, const std::string& path) {
    const std::uint64_t before = count(errors_);
    Record record;
    std::string tensor_name;
    std::string kind;
    std::string provenance;
    JsonFields fields(value, path, errors_);
    fields.uint64("rank", record.rank);
    fields.string("tensor", tensor_name);
    fields.string("slot", record.slot);
    fields.string("kind", kind);
    fields.string("provenance", provenance);
    if (count(errors_) != before) return record;
    const auto tensor = ledger_.find(tensor_name);
    if (!tensor) {
      add_problem(errors_, value, fields.path_of("tensor"),
                  Error(Code::kSchema, "not one of the tensors").got(quote(tensor_name)));
      return record;
    }
    record.tensor = *tensor;
    if (!std::binary_search(ledger_.ranks.begin(), ledger_.ranks.end(), record.rank)) {
      wrong(value, fields.path_of("rank"), "not one of the ranks", "a rank that is listed",
            std::to_string(record.rank));
    }
    if (kind != model::word(what(record).kind)) {
      wrong(value, fields.path_of("kind"), "not the tensor's kind", std::string(model::word(what(record).kind)), kind);
    }
    read_provenance(fields, value, provenance, record);
    read_rest(fields, value, record);
    fields.finish();
    return record;
  }

 private:
  [[nodiscard]] const Tensor& what(const Record& record) const { return ledger_.tensors[record.tensor]; }

  void wrong(const JsonValue& value, const std::string& path, std::string message, std::string wanted,
             std::string got = "") {
    Error error = Error(Code::kSchema, std::move(message)).wanted(std::move(wanted));
    error.found = std::move(got);
    add_problem(errors_, value, path, std::move(error));
  }

  void read_provenance(JsonFields& fields, const JsonValue& value, std::string_view said, Record& record) {
    const Provenance own = ledger_.tensors[ledger_.root_of(record.tensor)].provenance;
    if (said == word(Provenance::kAlias)) {
      record.provenance = Provenance::kAlias;
      fields.string("alias_of", record.alias_of);
      return;
    }
    record.provenance = own;
    if (said != word(own)) {
      wrong(value, fields.path_of("provenance"), "not the tensor's provenance", fmt::format("{}, or alias", word(own)),
            std::string(said));
    }
    const auto& slots = what(record).placement.slots;
    const auto is_this = [&](const layout::Slot& slot) { return slot.name == record.slot; };
    if (std::none_of(slots.begin(), slots.end(), is_this)) {
      wrong(value, fields.path_of("slot"), "not a slot of the tensor's placement", "one that is listed there",
            quote(record.slot));
    }
  }

  void read_rest(JsonFields& fields, const JsonValue& value, Record& record) {
    const std::uint64_t before = count(errors_);
    const bool is_alias = record.provenance == Provenance::kAlias;
    if (record.provenance == Provenance::kFile) {
      fields.optional_each("reads", [&](const JsonValue& taken, const std::string& path) {
        record.reads.push_back(read_taken(taken, path));
      });
      read_received(fields, record);
      read_cast(fields, record);
    }
    if (const auto region = fields.require("region")) record.region = read_region(*region, fields, record);
    fields.string("device", record.device);
    fields.uint64("owned_elems", record.owned_elems);
    fields.uint64("bytes", record.bytes);
    fields.uint64("written_bytes", record.written_bytes);
    fields.uint64("expected_bytes", record.expected_bytes);
    fields.boolean("complete", record.complete);
    read_digest(fields, record);
    if (count(errors_) != before) return;
    if (record.owned_elems != record.region.elems()) {
      wrong(value, fields.path_of("owned_elems"), "not the number of elements in the region",
            std::to_string(record.region.elems()), std::to_string(record.owned_elems));
      return;
    }
    const auto size_bytes = is_alias ? 0 : Shape{record.owned_elems}.size_bytes(what(record).storage);
    if (size_bytes != record.bytes) {
      wrong(value, fields.path_of("bytes"), "not the size of the owned elements",
            size_bytes ? std::to_string(*size_bytes) : "whole bytes", std::to_string(record.bytes));
    }
    if (is_alias && (record.written_bytes != 0 || record.expected_bytes != 0)) {
      wrong(value, fields.path_of("written_bytes"), "an alias must have 0 written bytes", "0");
    }
    if (!is_alias && record.complete != (record.written_bytes == record.expected_bytes)) {
      wrong(value, fields.path_of("complete"), "it contradicts the number of bytes",
            record.complete ? "false" : "true");
    }
  }

  TakenBytes read_taken(const JsonValue& value, const std::string& path) {
    TakenBytes taken;
    const auto numbers = read_numbers(value, path, errors_);
    if (!numbers) return taken;
    bool good = numbers->size() >= 3 && numbers->size() % 2 == 1 && (*numbers)[0] < ledger_.files.size();
    std::optional<std::uint64_t> end = 0;
    if (good) {
      taken.file = static_cast<std::uint32_t>((*numbers)[0]);
      taken.begin_bytes = (*numbers)[1];
      taken.size_bytes = (*numbers)[2];
      end = checked_add(taken.begin_bytes, taken.size_bytes);
      good = taken.size_bytes > 0;
    }
    for (std::size_t i = 3; good && end && i < numbers->size(); i += 2) {
      taken.loops.push_back({(*numbers)[i], (*numbers)[i + 1]});
      const auto further = checked_mul((*numbers)[i] - 1, (*numbers)[i + 1]);
      good = (*numbers)[i] > 0;
      end = further ? checked_add(*end, *further) : std::nullopt;
    }
    if (!good || !end || *end > ledger_.files[taken.file].size_bytes) {
      wrong(value, path, "not bytes of a file", "[file, begin, size], then pairs of count and stride, in the file");
      return {};
    }
    std::reverse(taken.loops.begin(), taken.loops.end());  // a document has the innermost first
    return taken;
  }

  void read_received(JsonFields& fields, Record& record) {
    const auto value = fields.find("received_from");
    if (!value) return;
    record.received_from = value->as_uint64();
    const std::uint64_t ranks = ledger_.mesh.ranks();
    if (!record.received_from || *record.received_from >= ranks || record.received_from == record.rank) {
      fields.problem(*value, "received_from", "not a rank to receive from", "another rank of the mesh");
    }
  }

  void read_cast(JsonFields& fields, Record& record) {
    const auto value = fields.find("cast");
    if (!value) return;
    const std::string_view text = value->is_string() ? value->text() : "";
    const std::size_t arrow = text.find(" -> ");
    std::string_view from = text.substr(0, arrow);
    while (!from.empty()) {
      const std::size_t comma = from.find(", ");
      if (const auto dtype = dtype_from_name(from.substr(0, comma))) record.cast_from.push_back(*dtype);
      from = comma == std::string_view::npos ? "" : from.substr(comma + 2);
    }
    const auto out_of_order = [](DType a, DType b) { return name(a) >= name(b); };
    const bool sorted =
        std::adjacent_find(record.cast_from.begin(), record.cast_from.end(), out_of_order) == record.cast_from.end();
    if (record.cast_from.empty() || !sorted || cast_text(record, what(record).storage) != text) {
      fields.problem(*value, "cast", "not a cast to the tensor's storage dtype",
                     fmt::format("such as \"F32 -> {}\"", name(what(record).storage)));
    }
  }

  RecordedRegion read_region(const JsonValue& value, const JsonFields& owner, const Record& record) {
    const std::uint64_t before = count(errors_);
    RecordedRegion region;
    JsonFields fields(value, owner.path_of("region"), errors_);
    fields.each("runs", [&](const JsonValue& dim, const std::string& path) {
      auto& runs = region.runs.emplace_back();
      if (!dim.is_array()) return wrong(dim, path, "not an array", "an array of runs");
      for (const JsonMember member : dim) {
        const auto run = read_numbers(member.value, path, errors_);
        if (!run) return;
        if (run->size() != 2) return wrong(member.value, path, "not a run", "[begin, size]");
        runs.push_back({(*run)[0], (*run)[1]});
      }
    });
    if (const auto flat = fields.find("flat")) {
      const auto ends = read_numbers(*flat, fields.path_of("flat"), errors_);
      if (ends && ends->size() == 2) {
        region.flat = RecordedRegion::Stretch{(*ends)[0], (*ends)[1]};
      } else if (ends) {
        fields.problem(*flat, "flat", "not a stretch", "[begin, end]");
      }
    }
    fields.finish();
    if (count(errors_) != before) return {};
    if (!satisfies_invariants(region, what(record).shape)) {
      wrong(value, fields.path(), "not a region of the tensor",
            fmt::format("ascending runs of each dim of {}, apart from each other", what(record).shape.text()));
      return {};
    }
    return region;
  }

  void read_digest(JsonFields& fields, Record& record) {
    const auto value = fields.find("digest");
    if (!value) return;
    if (!value->is_string() || !is_hex_128(value->text())) {
      fields.problem(*value, "digest", "not a digest", "32 hexadecimal digits");
      return;
    }
    const std::string_view text = value->text();
    device::Digest digest;
    std::from_chars(text.data(), text.data() + 16, digest.lanes[0], 16);
    std::from_chars(text.data() + 16, text.data() + 32, digest.lanes[1], 16);
    record.digest = digest;
  }

  const Ledger& ledger_;
  Errors& errors_;
};

// An alias says of its memory what the record says that it shares it with.
void check_aliases(const Ledger& ledger, const JsonFields& fields, Errors& errors) {
  for (std::size_t i = 0; i < ledger.records.size(); ++i) {
    const Record& alias = ledger.records[i];
    if (alias.provenance != Provenance::kAlias) continue;
    const auto tensor = ledger.find(alias.alias_of);
    bool good = tensor && ledger.root_of(*tensor) == ledger.root_of(alias.tensor);
    if (good) {
      Record key;
      key.rank = alias.rank;
      key.tensor = *tensor;
      key.slot = alias.slot;
      const auto owner = std::lower_bound(ledger.records.begin(), ledger.records.end(), key, comes_before);
      good = owner != ledger.records.end() && !comes_before(key, *owner) && owner->provenance != Provenance::kAlias &&
             owner->region == alias.region && owner->complete == alias.complete && owner->digest == alias.digest &&
             owner->device == alias.device;
    }
    if (!good) {
      errors.add(Error(Code::kSchema, fmt::format("{}[{}]: the rank has no record that it can share its memory with",
                                                  fields.path_of("records"), i))
                     .of_tensor(ledger.tensors[alias.tensor].name)
                     .by_rule("R49")
                     .wanted(fmt::format("a record of {} with the same region, device, digest and completeness",
                                         quote(alias.alias_of))));
    }
  }
}

}  // namespace

void read_records(JsonFields& fields, Ledger& ledger, Errors& errors) {
  RecordReader reader(ledger, errors);
  fields.each("records", [&](const JsonValue& value, const std::string& path) {
    const std::uint64_t before = count(errors);
    ledger.records.push_back(reader.read(value, path));
    const std::size_t size = ledger.records.size();
    if (count(errors) == before && size > 1 && !comes_before(ledger.records[size - 2], ledger.records[size - 1])) {
      add_problem(errors, value, path,
                  Error(Code::kSchema, "the records are not sorted by rank, tensor and slot, each once"));
    }
  });
  if (errors.empty()) check_aliases(ledger, fields, errors);
}

}  // namespace lading::ledger
