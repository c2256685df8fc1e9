#include "lading/verify.h"

#include "api/document.h"
#include "exec/verify.h"
#include "ledger/ledger.h"
#include "source/checkpoint_source.h"

namespace lading {
namespace {

constexpr std::uint64_t kMaxLedgerBytes = 4'000'000'000;

Unexpected<PlanRefusal> refuse(PlanStage stage, Errors problems) { return {PlanRefusal{stage, std::move(problems)}}; }

Result<ledger::Ledger, Errors> read_ledger(const PlanDocument& document) {
  const DocumentLimits limits{"ledger", kMaxLedgerBytes};
  LADING_ASSIGN_OR_RETURN(const JsonDocument json, read_document(document, limits));
  auto ledger = ledger::parse_ledger(json);
  if (!ledger) ledger.error().relocate(document_name(document, limits), 0);
  return ledger;
}

}  // namespace

Result<Verification, PlanRefusal> verify(const VerifyRequest& request) {
  source::OpenOptions options;
  options.locate.root = request.root;
  options.locate.revision = request.revision;
  if (request.trailing_bytes == TrailingBytesPolicy::kAllow) {
    options.trailing_bytes = checkpoint::TrailingBytes::kAllow;
  }
  const auto source = source::CheckpointSource::open(request.checkpoint, options);
  if (!source) return refuse(PlanStage::kCheckpoint, source.error());
  const auto ledger = read_ledger(request.ledger);
  if (!ledger) return refuse(PlanStage::kDocuments, ledger.error());

  const exec::VerifyInputs inputs{
      source->catalog(), [&](std::uint32_t file) { return source->open_file(source->shards()[file]); }, {}};
  exec::VerifyOptions verify_options;
  verify_options.threads = request.threads;
  verify_options.cancelled = request.cancelled;
  auto report = exec::verify(*ledger, inputs, verify_options);
  if (!report) return refuse(PlanStage::kCheckpoint, std::move(report).error());
  Verification verification{report->tensors_verified, report->tensors_partly_verified, report->records_verified,
                            report->read_bytes,       std::move(report->differences),  {}};
  for (exec::NotVerified& one : report->not_verified) {
    verification.not_verified.emplace_back(std::move(one.tensor), std::move(one.reason));
  }
  return verification;
}

}  // namespace lading
