#include "api/c/request.h"

#include <array>
#include <string_view>
#include <utility>

#include "api/c/request_reader.h"

namespace lading::c_api {
namespace {

constexpr std::array<std::pair<std::string_view, ExchangeScope>, 4> kScopes = {{{"never", ExchangeScope::kNever},
                                                                                {"node", ExchangeScope::kNode},
                                                                                {"job", ExchangeScope::kJob},
                                                                                {"auto", ExchangeScope::kAuto}}};

}  // namespace

Result<InspectRequest, Errors> parse_inspect_request(std::string_view json) {
  LADING_ASSIGN_OR_RETURN(const JsonDocument document, parse_request(json));
  RequestReader reader(json, document);
  InspectRequest request;
  reader.checkpoint(request.checkpoint);
  bool verify_hash = false;
  reader.fields().optional_boolean("verify_hash", verify_hash);
  request.hash = verify_hash ? HashCheck::kVerify : HashCheck::kSkip;
  return reader.finish(std::move(request));
}

Result<LoadRequest, Errors> parse_load_request(std::string_view json) {
  LADING_ASSIGN_OR_RETURN(const JsonDocument document, parse_request(json));
  RequestReader reader(json, document);
  LoadRequest request;
  PlanRequest& plan = request.plan;
  reader.checkpoint(plan);
  reader.document("skeleton", plan.skeleton);
  reader.layout(plan.layout);
  reader.document("mapping", plan.mapping);
  reader.adapters(plan.adapters);
  reader.document("policy", plan.policy);
  JsonFields& fields = reader.fields();
  fields.optional_boolean("part_of_model", plan.is_part_of_model);
  bool compares_ties = true;
  fields.optional_boolean("compare_ties", compares_ties);
  plan.tied_keys = compares_ties ? TiedKeys::kCompare : TiedKeys::kAssumeEqual;
  reader.ranks(plan.ranks);
  reader.threads(request.threads);
  fields.optional_word("read_method", kReadMethods, request.read_method);
  bool digests = true;
  fields.optional_boolean("digests", digests);
  request.digests = digests ? Digests::kOn : Digests::kOff;
  bool poison = false;
  fields.optional_boolean("poison", poison);
  request.poison = poison ? PoisonFirst::kYes : PoisonFirst::kNo;
  return reader.finish(std::move(request));
}

Result<DTypesRequest, Errors> parse_dtypes_request(std::string_view json) {
  LADING_ASSIGN_OR_RETURN(const JsonDocument document, parse_request(json));
  RequestReader reader(json, document);
  DTypesRequest request;
  CheckpointRef checkpoint;
  reader.fields().optional_string("checkpoint", checkpoint.path);
  RequestReader::beside_checkpoint(reader.fields(), checkpoint);
  if (!checkpoint.path.empty()) request.checkpoint = std::move(checkpoint);
  reader.document("skeleton", request.skeleton);
  reader.document("mapping", request.mapping);
  reader.document("policy", request.policy);
  reader.units(request);
  return reader.finish(std::move(request));
}

Result<ExchangeFacts, Errors> parse_owners_request(std::string_view json) {
  LADING_ASSIGN_OR_RETURN(const JsonDocument document, parse_request(json));
  RequestReader reader(json, document);
  ExchangeFacts facts;
  JsonFields& fields = reader.fields();
  fields.optional_word("exchange", kScopes, facts.scope);
  fields.each("nodes", [&](const JsonValue& node, const std::string&) {
    if (!node.is_string()) fields.problem(node, "nodes", "not a string", "the name of a node for each rank");
    facts.nodes.emplace_back(node.is_string() ? node.text() : "");
  });
  reader.speeds("read_speeds", facts.read_speeds);
  reader.speeds("sent_speeds", facts.sent_speeds);
  fields.optional_uint64("least_bytes", facts.least_bytes);
  return reader.finish(std::move(facts));
}

Result<VerifyRequest, Errors> parse_verify_request(std::string_view json) {
  LADING_ASSIGN_OR_RETURN(const JsonDocument document, parse_request(json));
  RequestReader reader(json, document);
  VerifyRequest request;
  reader.checkpoint(request.checkpoint);
  reader.adapters(request.adapters);
  reader.required_document("ledger", request.ledgers.emplace_back());
  reader.threads(request.threads);
  return reader.finish(std::move(request));
}

}  // namespace lading::c_api
