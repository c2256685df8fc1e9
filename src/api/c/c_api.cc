// The C ABI: wiring between include/lading/lading_c.h and the C++ API. Requests are read in request.cc, answers
// written in api/answers.cc.
//
// Invariants: nothing throws out of here; a handle is complete before the caller sees it and is not changed afterwards.
#include <atomic>
#include <chrono>
#include <memory>
#include <new>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "api/answers.h"
#include "api/c/handle.h"
#include "api/c/handle_parts.h"
#include "api/c/request.h"
#include "device/digest.h"
#include "device/gpus.h"
#include "lading/help.h"
#include "lading/lading_c.h"
#include "lading/load.h"
#include "lading/version.h"

namespace {

using lading::answer_of;
using lading::Code;
using lading::DestinationInfo;
using lading::Error;
using lading::Errors;
using lading::RefusalAnswer;
using lading::Result;
using lading::Stage;
using lading::c_api::answered;
using lading::c_api::DestinationsInC;
using lading::c_api::guarded;
using lading::c_api::Handle;
using lading::c_api::misused;
using lading::c_api::ReadyPlan;
using lading::c_api::refused;
using lading::c_api::with_request;

using Clock = std::chrono::steady_clock;

// What a callback that fails has to say, between its call of lading_set_error() and its return.
thread_local std::string callback_error;

Handle make_plan(lading::LoadRequest request) {
  const Clock::time_point begin = Clock::now();
  auto report = lading::make_plan(request.plan);
  if (!report) return refused("plan", report.error());
  auto plan = std::make_unique<ReadyPlan>();
  plan->planning_seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  plan->request = std::move(request);
  plan->report = *std::move(report);
  plan->destinations = std::make_unique<DestinationsInC>(destinations_of(plan->report));
  Handle handle =
      answered(answer_of(lading::PlanAnswer{plan->report, plan->destinations->infos(), plan->planning_seconds}));
  handle->plan = std::move(plan);
  return handle;
}

// The caller's functions, as the C++ API calls them. Lives as long as the load.
class Callbacks {
 public:
  explicit Callbacks(const lading_callbacks* given) : given_(given != nullptr ? *given : lading_callbacks{}) {
    look_at_flag();
  }

  void connect(lading::LoadRequest& request) {
    request.cancelled = &cancelled_;
    request.progress = [this](const lading::LoadProgress& progress) { report(progress); };
    if (given_.value != nullptr) {
      request.value = [this](const std::string& name, std::uint64_t rank) { return value(name, rank, {}); };
      request.deferred_value = [this](const std::string& name, std::uint64_t rank, const lading::HostTensor& deferred) {
        return value(name, rank, {nullptr, deferred.deferred_bytes, lading::name(deferred.dtype).data()});
      };
    }
  }

 private:
  // The engine looks at an atomic, C has none: the flag is looked at whenever this thread comes by, ten times a second.
  void look_at_flag() {
    if (given_.cancelled != nullptr && __atomic_load_n(given_.cancelled, __ATOMIC_RELAXED) != 0) cancelled_ = true;
  }

  void report(const lading::LoadProgress& progress) {
    look_at_flag();
    if (given_.progress == nullptr) return;
    if (given_.progress(given_.user, progress.done_bytes, progress.total_bytes, progress.read_bytes) != 0) {
      cancelled_ = true;
    }
  }

  Result<lading::HostTensor> value(const std::string& name, std::uint64_t rank, lading_value value) {
    if (name.find('\0') != std::string::npos) {
      return lading::fail(Error(Code::kUsage, "the name contains a NUL, so that its value cannot be requested")
                              .try_this("Rename the tensor."));
    }
    callback_error.clear();
    const int failed = given_.value(given_.user, name.c_str(), rank, &value);
    look_at_flag();
    if (failed != 0) {
      return lading::fail(
          Error(Code::kUsage, callback_error.empty() ? "the callback did not supply the value" : callback_error)
              .try_this("Supply the value in the callback `value`."));
    }
    const auto dtype = lading::dtype_from_name(value.dtype != nullptr ? value.dtype : "");
    if (!dtype) {
      return lading::fail(Error(Code::kUsage, "the supplied value has an unknown dtype")
                              .wanted("a name as in safetensors, such as BF16")
                              .try_this("Set the dtype of the value."));
    }
    if (value.data == nullptr) return lading::HostTensor{{}, *dtype, {}, value.size_bytes};
    return lading::HostTensor{{static_cast<const std::byte*>(value.data), value.size_bytes}, *dtype};
  }

  const lading_callbacks given_;
  std::atomic<bool> cancelled_ = false;
};

struct Memories {
  const lading_memory* list = nullptr;
  std::uint64_t count = 0;
};

// What is exchanged, as the C++ API has it.
Result<void> connect(const lading_exchange& exchange, std::size_t destinations, lading::LoadRequest& request) {
  if (exchange.owners == nullptr || exchange.receive == nullptr) {
    return lading::fail(Error(Code::kUsage, "the exchange lacks owners or a receive function")
                            .try_this("Set `owners` and `receive`, or pass NULL instead of the exchange."));
  }
  for (std::size_t i = 0; i < destinations; ++i) {
    const std::int64_t owner = exchange.owners[i];
    request.owners.push_back(owner < 0 ? std::nullopt : std::optional(static_cast<std::uint64_t>(owner)));
  }
  request.receive = [exchange](const lading::LoadReport&) -> Result<void> {
    callback_error.clear();
    if (exchange.receive(exchange.user) == 0) return {};
    return lading::fail(Error(Code::kIncomplete, callback_error.empty()
                                                     ? "the bytes that other ranks read could not be received"
                                                     : callback_error));
  };
  return {};
}

Handle load(const ReadyPlan& plan, const Memories& memories, const lading_callbacks* given,
            const lading_exchange* exchange) {
  if (memories.count != plan.destinations->infos().size() || (memories.list == nullptr && memories.count > 0)) {
    Error error(Code::kUsage, "the number of memories is not the number of destinations");
    error.expected = std::to_string(plan.destinations->infos().size());
    error.found = memories.list == nullptr ? "none" : std::to_string(memories.count);
    error.remedy = "Pass one memory for each destination, in the plan's order.";
    return refused("load", {Stage::kRequest, std::move(error)});
  }
  lading::LoadRequest request = plan.request;
  request.memory = [next = memories.list](const DestinationInfo&) mutable -> Result<std::span<std::byte>> {
    const lading_memory& memory = *next++;
    return std::span(static_cast<std::byte*>(memory.data), memory.size_bytes);
  };
  if (exchange != nullptr) {
    auto connected = connect(*exchange, plan.destinations->infos().size(), request);
    if (!connected) return refused("load", {Stage::kRequest, std::move(connected).error()});
  }
  Callbacks callbacks(given);
  callbacks.connect(request);
  auto report = load_plan(request, plan.report);
  if (!report) {
    lading::LoadFailure& failure = report.error();
    Handle handle = refused({"load", failure.refused, failure.begun, failure.exit_code()}, failure.problems);
    handle->ledger = std::move(failure.ledger);
    return handle;
  }
  report->planning_seconds = plan.planning_seconds;
  Handle handle = answered(answer_of(lading::LoadAnswer{*report, true}));
  handle->loaded.emplace(*std::move(report));
  return handle;
}

}  // namespace

lading_handle* lading::c_api::make_handle(lading::Exit exit_code, std::string text) {
  Handle handle = answered(std::move(text));
  handle->exit_code = exit_code;
  return handle.release();
}

const lading::LoadReport* lading::c_api::load_report_of(const lading_handle* handle) {
  return handle != nullptr && handle->loaded ? &*handle->loaded : nullptr;
}

std::string lading::c_api::take_callback_error() { return std::exchange(callback_error, {}); }

int lading_abi_version() { return LADING_ABI_VERSION; }

const char* lading_version() { return lading::version(); }

int lading_exit_code(const lading_handle* handle) {
  return static_cast<int>(handle != nullptr ? handle->exit_code : lading::Exit::kInternal);
}

const char* lading_text(const lading_handle* handle, uint64_t* size_bytes) {
  if (size_bytes != nullptr) *size_bytes = handle != nullptr ? handle->text.size() : 0;
  return handle != nullptr ? handle->text.c_str() : nullptr;
}

void lading_free(lading_handle* handle) { delete handle; }

void lading_set_error(const char* text) {
  try {
    callback_error = text != nullptr ? text : "";
  } catch (...) {
    callback_error.clear();
  }
}

lading_handle* lading_inspect(const char* request) {
  const auto use = [](const lading::c_api::InspectRequest& parsed) {
    const auto inspection = lading::inspect(parsed.checkpoint, parsed.hash);
    return inspection ? answered(answer_of(*inspection, lading::ListTensors::kYes))
                      : refused("inspect", {Stage::kCheckpoint, inspection.error()});
  };
  return with_request("inspect", request, lading::c_api::parse_inspect_request, use);
}

lading_handle* lading_plan(const char* request) {
  return with_request("plan", request, lading::c_api::parse_load_request, make_plan);
}

lading_handle* lading_dtypes(const char* request) {
  const auto use = [](const lading::DTypesRequest& parsed) {
    const auto report = lading::resolve_dtypes(parsed);
    return report ? answered(answer_of(*report)) : refused("dtypes", report.error());
  };
  return with_request("dtypes", request, lading::c_api::parse_dtypes_request, use);
}

const lading_destination* lading_destinations(const lading_handle* plan, uint64_t* count) {
  const DestinationsInC* const destinations = plan != nullptr ? plan->destinations() : nullptr;
  if (count != nullptr) *count = destinations != nullptr ? destinations->in_c().size() : 0;
  return destinations != nullptr ? destinations->in_c().data() : nullptr;
}

const uint64_t* lading_replicas(const lading_handle* plan, uint64_t destination, uint64_t* count) {
  const DestinationsInC* const destinations = plan != nullptr ? plan->destinations() : nullptr;
  const bool is_there = destinations != nullptr && destination < destinations->infos().size();
  const std::vector<std::uint64_t>* const ranks =
      is_there ? destinations->infos()[destination].replicas.get() : nullptr;
  if (count != nullptr) *count = is_there ? ranks->size() : 0;
  return is_there ? ranks->data() : nullptr;
}

lading_handle* lading_owners(const lading_handle* plan, const char* request) {
  const auto use = [&](const lading::ExchangeFacts& facts) {
    if (plan == nullptr || !plan->plan) return misused("owners", "the handle is not a plan");
    const auto choice = choose_exchange(plan->plan->report, facts);
    if (!choice) return refused("owners", {Stage::kRequest, choice.error()});
    lading::Owners owners(plan->plan->destinations->infos().size());
    if (choice->verdict == lading::ExchangeChoice::Verdict::kYes) {
      owners = owners_of(plan->plan->report, choice->nodes).value();  // the choice saw as many nodes as ranks
    }
    return answered(answer_of(*choice, owners));
  };
  return with_request("owners", request, lading::c_api::parse_owners_request, use);
}

lading_handle* lading_read_speed(const lading_handle* plan) {
  return guarded({"read_speed", Stage::kCheckpoint}, [&] {
    if (plan == nullptr || !plan->plan) return misused("read_speed", "the handle is not a plan");
    const auto speed = read_speed(plan->plan->report);
    if (!speed) return refused("read_speed", {Stage::kCheckpoint, speed.error()});
    return answered(lading::answer_of_speed(*speed));
  });
}

lading_handle* lading_plan_document(const lading_handle* plan) {
  return guarded({"plan", Stage::kRequest}, [&] {
    if (plan == nullptr || !plan->plan) return misused("plan", "the handle is not a plan");
    return answered(plan_json(plan->plan->report));
  });
}

lading_handle* lading_sampled_contents(const lading_handle* plan) {
  return guarded({"contents", Stage::kCheckpoint}, [&] {
    if (plan == nullptr || !plan->plan) return misused("contents", "the handle is not a plan");
    auto contents = sampled_contents(plan->plan->report);
    if (!contents) return refused("contents", {Stage::kCheckpoint, std::move(contents).error()});
    return answered(lading::answer_of_contents(*contents));
  });
}

lading_handle* lading_load(const lading_handle* plan, const lading_memory* memories, uint64_t memory_count,
                           const lading_callbacks* callbacks) {
  return lading_load_exchanged(plan, memories, memory_count, callbacks, nullptr);
}

lading_handle* lading_load_exchanged(const lading_handle* plan, const lading_memory* memories, uint64_t memory_count,
                                     const lading_callbacks* callbacks, const lading_exchange* exchange) {
  // Who runs out of memory here may have filled some already.
  return guarded({"load", std::nullopt, true}, [&] {
    if (plan == nullptr || !plan->plan) return misused("load", "the handle is not a plan");
    return load(*plan->plan, {memories, memory_count}, callbacks, exchange);
  });
}

lading_handle* lading_ledger(const lading_handle* load) {
  return guarded({"ledger", Stage::kRequest}, [&] {
    if (load != nullptr && load->loaded) return answered(ledger_json(*load->loaded));
    if (load != nullptr && !load->ledger.empty()) return answered(load->ledger);
    return misused("ledger", "the handle is not a load, or its load wrote nothing");
  });
}

lading_handle* lading_verify(const char* request) {
  const auto use = [](const lading::VerifyRequest& parsed) {
    const auto verification = lading::verify(parsed);
    if (!verification) return refused("verify", verification.error());
    Handle handle = answered(answer_of(*verification));
    handle->exit_code = verification->exit_code();
    return handle;
  };
  return with_request("verify", request, lading::c_api::parse_verify_request, use);
}

lading_handle* lading_digest(const void* data, uint64_t size_bytes, uint64_t begin_bytes) {
  return guarded({"digest", Stage::kRequest}, [&] {
    if (data == nullptr && size_bytes > 0) return misused("digest", "the address of the bytes is NULL");
    const std::span bytes(static_cast<const std::byte*>(data), size_bytes);
    return answered(lading::answer_of_digest(lading::device::digest_of(bytes, begin_bytes).text()));
  });
}

lading_handle* lading_check_memory(const char* device, uint64_t needed_bytes) {
  return guarded({"memory", std::nullopt}, [&]() -> Handle {
    if (device == nullptr) return misused("memory", "the device is NULL");
    const auto parsed = lading::layout::parse_device(device);
    if (!parsed) return refused("memory", {Stage::kRequest, parsed.error()});
    const auto available = lading::available_memory(*parsed);
    if (!available) return refused({"memory", std::nullopt, false, lading::Exit::kLoad}, available.error());
    const auto enough = lading::check_memory(*parsed, needed_bytes);
    if (!enough) return refused({"memory", std::nullopt, false, lading::Exit::kLoad}, enough.error());
    return answered(answer_of(*available));
  });
}

lading_handle* lading_help(const char* topic) {
  return guarded({"help", Stage::kRequest}, [&]() -> Handle {
    if (topic == nullptr) return answered(lading::answer_of_help(lading::help_topics(), lading::help_overview()));
    const auto topics = lading::help(topic);
    if (!topics) return refused("help", {Stage::kRequest, topics.error()});
    return answered(lading::answer_of_help(*topics, lading::help_text(*topics)));
  });
}

lading_handle* lading_gpus() {
  return guarded({"gpus", Stage::kRequest}, [] { return answered(answer_of(lading::device::survey_gpus())); });
}
