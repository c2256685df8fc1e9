// The C ABI's part for saving: wiring between include/lading/lading_c.h and include/lading/save.h.
#include <atomic>
#include <chrono>
#include <memory>
#include <span>
#include <utility>

#include "api/c/handle_parts.h"
#include "api/c/request.h"
#include "api/save/save_answers.h"
#include "lading/lading_c.h"
#include "lading/save.h"

namespace {

using lading::answer_of;
using lading::Code;
using lading::DestinationInfo;
using lading::Error;
using lading::Errors;
using lading::Result;
using lading::Stage;
using lading::c_api::answered;
using lading::c_api::DestinationsInC;
using lading::c_api::guarded;
using lading::c_api::Handle;
using lading::c_api::misused;
using lading::c_api::ReadySave;
using lading::c_api::refused;
using lading::c_api::SavePlanRequest;
using lading::c_api::SaveStepRequest;
using lading::c_api::with_request;

using SaveClock = std::chrono::steady_clock;

// What goes wrong with files is the save's failure; a place that cannot be is the request's.
Handle save_failed(std::string_view kind, Errors problems, bool begun) {
  const bool is_request = !problems.empty() && problems.front().code == Code::kUsage;
  if (is_request) return refused(kind, {Stage::kRequest, std::move(problems)});
  return refused({kind, std::nullopt, begun, lading::Exit::kLoad}, problems);
}

Handle make_save_plan(const SavePlanRequest& request) {
  const SaveClock::time_point begin = SaveClock::now();
  auto report = lading::plan_save(request.save);
  if (!report) return refused("save_plan", report.error());
  const double seconds = std::chrono::duration<double>(SaveClock::now() - begin).count();
  auto save = std::make_unique<ReadySave>();
  save->threads = request.threads;
  save->report = *std::move(report);
  save->destinations = std::make_unique<DestinationsInC>(destinations_of(save->report));
  Handle handle = answered(answer_of(save->report, save->destinations->infos(), seconds));
  handle->save = std::move(save);
  return handle;
}

// The caller's functions while a save writes.
class SaveCallbacks {
 public:
  explicit SaveCallbacks(const lading_callbacks* given) : given_(given != nullptr ? *given : lading_callbacks{}) {
    look_at_flag();
  }

  void connect(lading::SaveWriting& writing) {
    writing.cancelled = &cancelled_;
    writing.progress = [this](const lading::LoadProgress& progress) {
      look_at_flag();
      if (given_.progress == nullptr) return;
      if (given_.progress(given_.user, progress.done_bytes, progress.total_bytes, 0) != 0) cancelled_ = true;
    };
  }

 private:
  // C has no atomics of the engine's kind: the flag is looked at ten times a second.
  void look_at_flag() {
    if (given_.cancelled != nullptr && __atomic_load_n(given_.cancelled, __ATOMIC_RELAXED) != 0) cancelled_ = true;
  }

  const lading_callbacks given_;
  std::atomic<bool> cancelled_ = false;
};

struct SaveMemories {
  const lading_memory* list = nullptr;
  std::uint64_t count = 0;
};

Handle write_share(const ReadySave& save, const SaveStepRequest& step, const SaveMemories& memories,
                   const lading_callbacks* given) {
  const std::size_t wanted = save.destinations->infos().size();
  if (memories.count != wanted || (memories.list == nullptr && wanted > 0)) {
    Error error(Code::kUsage, "the number of memories is not the number of destinations");
    error.expected = std::to_string(wanted);
    error.found = memories.list == nullptr ? "none" : std::to_string(memories.count);
    error.remedy = "Pass one memory for each destination, in the plan's order.";
    return refused("save_write", {Stage::kRequest, std::move(error)});
  }
  lading::SaveWriting writing;
  writing.threads = step.threads.value_or(save.threads);
  writing.from = step.from;
  writing.memory = [next = memories.list](const DestinationInfo&) mutable -> Result<std::span<const std::byte>> {
    const lading_memory& memory = *next++;
    return std::span(static_cast<const std::byte*>(memory.data), memory.size_bytes);
  };
  SaveCallbacks callbacks(given);
  callbacks.connect(writing);
  auto written = write_save(save.report, step.place, step.temporary, writing);
  if (!written) return save_failed("save_write", std::move(written).error(), true);
  return answered(answer_of(*written));
}

// A step of a save that was planned.
template <class Use>
lading_handle* with_save(std::string_view kind, const lading_handle* plan, const char* request, const Use& use) {
  return with_request(kind, request, lading::c_api::parse_save_step_request, [&](const SaveStepRequest& step) {
    if (plan == nullptr || !plan->save) return misused(kind, "the handle is not a planned save");
    return use(*plan->save, step);
  });
}

}  // namespace

lading_handle* lading_save_plan(const char* request) {
  return with_request("save_plan", request, lading::c_api::parse_save_plan_request, make_save_plan);
}

lading_handle* lading_save_prepare(const lading_handle* plan, const char* request) {
  return with_save("save_prepare", plan, request, [](const ReadySave& save, const SaveStepRequest& step) {
    auto prepared = prepare_save(save.report, step.place);
    if (!prepared) return save_failed("save_prepare", prepared.error(), false);
    Handle handle = answered(answer_of(*prepared));
    const std::lock_guard guard(save.mutex);
    save.lock = std::move(prepared->lock);
    return handle;
  });
}

lading_handle* lading_save_write(const lading_handle* plan, const lading_memory* memories, uint64_t memory_count,
                                 const char* request, const lading_callbacks* callbacks) {
  return with_save("save_write", plan, request, [&](const ReadySave& save, const SaveStepRequest& step) {
    return write_share(save, step, {memories, memory_count}, callbacks);
  });
}

lading_handle* lading_save_finish(const lading_handle* plan, const char* request) {
  return with_save("save_finish", plan, request, [](const ReadySave& save, const SaveStepRequest& step) {
    auto finished = finish_save(save.report, step.place, step.temporary);
    return finished ? answered(answer_of(*finished)) : save_failed("save_finish", std::move(finished).error(), true);
  });
}

lading_handle* lading_save_commit(const char* request) {
  return with_request("save_commit", request, lading::c_api::parse_save_step_request, [](const SaveStepRequest& step) {
    const auto replaced = commit_save(step.place, step.temporary);
    if (!replaced) return save_failed("save_commit", replaced.error(), true);
    return answered(lading::answer_of_commit(step.place, *replaced));
  });
}

lading_handle* lading_save_discard(const char* request) {
  return with_request("save_discard", request, lading::c_api::parse_save_step_request, [](const SaveStepRequest& step) {
    const auto removed = discard_save(step.place, step.temporary);
    if (!removed) return save_failed("save_discard", removed.error(), true);
    return answered(lading::answer_of_discard(*removed));
  });
}
