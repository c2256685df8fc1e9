#include "lading/verify.h"

#include "api/read_ledger.h"
#include "exec/verify.h"
#include "source/checkpoint_source.h"

namespace lading {
namespace {

Unexpected<PlanRefusal> refuse(PlanStage stage, Errors problems) { return {PlanRefusal{stage, std::move(problems)}}; }

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
  const auto ledger = read_ledgers(request.ledgers);
  if (!ledger) return refuse(PlanStage::kDocuments, ledger.error());

  exec::VerifyInputs inputs{
      source->catalog(), [&](std::uint32_t file) { return source->open_file(source->shards()[file]); }, {}};
  for (const source::SourceFile& shard : source->shards()) inputs.identities.push_back(shard.identity);
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
