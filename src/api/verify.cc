#include "lading/verify.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>

#include "api/open_checkpoint.h"
#include "api/read_ledger.h"
#include "api/refuse.h"
#include "exec/verify/verify.h"

namespace lading {

Result<Verification, Refusal> verify(const VerifyRequest& request) {
  const auto source = open_checkpoints(request.checkpoint, request.adapters);
  if (!source) return refuse(Stage::kCheckpoint, source.error());
  const auto ledger = read_ledgers(request.ledgers);
  if (!ledger) return refuse(Stage::kDocuments, ledger.error());
  if (ledger->adapters.size() != request.adapters.size()) {
    return refuse(
        Stage::kRequest,
        Error(Code::kUsage, "there must be a path for each adapter that the ledger names")
            .wanted(ledger->adapters.empty() ? "no adapter" : fmt::format("{}", fmt::join(ledger->adapters, ", ")))
            .got(std::to_string(request.adapters.size()))
            .try_this("Give the adapters in the order of the ledger: --adapter PATH, once for each."));
  }

  exec::VerifyInputs inputs{
      source->catalog(), [&](std::uint32_t file) { return source->open_file(source->shards()[file]); }, {}};
  for (const source::SourceFile& shard : source->shards()) inputs.identities.push_back(shard.identity);
  exec::VerifyOptions verify_options;
  verify_options.threads = request.threads;
  verify_options.cancelled = request.cancelled;
  auto report = exec::verify(*ledger, inputs, verify_options);
  if (!report) return refuse(Stage::kCheckpoint, std::move(report).error());
  Verification verification{report->tensors_verified, report->tensors_partly_verified, report->records_verified,
                            report->read_bytes,       std::move(report->differences),  {}};
  for (exec::NotVerified& one : report->not_verified) {
    verification.not_verified.emplace_back(std::move(one.tensor), std::move(one.reason));
  }
  return verification;
}

}  // namespace lading
