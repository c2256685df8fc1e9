// What a handle of the C ABI is, and how answers come about. Internal to api/c.
#pragma once

#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/answers.h"
#include "lading/lading_c.h"
#include "lading/load.h"
#include "lading/save.h"

namespace lading::c_api {

/// Destinations in the words of C.
class DestinationsInC {
 public:
  explicit DestinationsInC(std::vector<DestinationInfo> infos);
  DestinationsInC(const DestinationsInC&) = delete;  // the list in C borrows from the others
  DestinationsInC& operator=(const DestinationsInC&) = delete;

  [[nodiscard]] const std::vector<DestinationInfo>& infos() const { return infos_; }
  [[nodiscard]] const std::vector<lading_destination>& in_c() const { return in_c_; }

 private:
  std::vector<DestinationInfo> infos_;
  std::vector<std::vector<const char*>> aliases_;
  std::set<std::string> devices_;
  std::vector<lading_destination> in_c_;
};

/// A plan that is ready to be loaded.
struct ReadyPlan {
  LoadRequest request;  ///< how to load it
  PlanReport report;
  double planning_seconds = 0;
  std::unique_ptr<const DestinationsInC> destinations;
};

/// A save that is planned.
struct ReadySave {
  SavePlanReport report;
  std::unique_ptr<const DestinationsInC> destinations;
  std::uint32_t threads = 0;
  mutable std::mutex mutex;
  mutable std::shared_ptr<const void> lock;  ///< of the directory that was prepared last
};

}  // namespace lading::c_api

struct lading_handle {
  lading::Exit exit_code = lading::Exit::kOk;
  std::string text;
  std::unique_ptr<const lading::c_api::ReadyPlan> plan;  // of lading_plan()
  std::unique_ptr<const lading::c_api::ReadySave> save;  // of lading_save_plan()
  std::optional<const lading::LoadReport> loaded;        // of lading_load()
  std::string ledger;                                    // of lading_load(), if it failed and something was written

  // Null if it is not a plan.
  [[nodiscard]] const lading::c_api::DestinationsInC* destinations() const {
    if (plan) return plan->destinations.get();
    return save ? save->destinations.get() : nullptr;
  }
};

namespace lading::c_api {

using Handle = std::unique_ptr<lading_handle>;

[[nodiscard]] Handle answered(std::string text);
[[nodiscard]] Handle refused(const RefusalAnswer& refusal, const Errors& problems);
[[nodiscard]] Handle refused(std::string_view kind, const Refusal& refusal);
[[nodiscard]] Handle misused(std::string_view kind, std::string message);

/// Runs what makes an answer. Memory that runs out is a problem like any other, unless there is none for telling it.
/// `refusal` is what is known about a failure then, exit code aside.
template <class Make>
lading_handle* guarded(RefusalAnswer refusal, const Make& make) noexcept {
  try {
    try {
      return make().release();
    } catch (const std::bad_alloc&) {
      const Error error(Code::kOutOfMemory, "not enough memory");
      refusal.exit_code = refusal.stage ? lading::exit_code(error.code) : Exit::kLoad;
      return refused(refusal, error).release();
    } catch (const std::exception& e) {
      return refused(refusal, Error(Code::kInternal, e.what())).release();
    }
  } catch (...) {
    return nullptr;
  }
}

/// Parses a request and hands it on, or says why not.
template <class Parse, class Use>
lading_handle* with_request(std::string_view kind, const char* json, const Parse& parse, const Use& use) noexcept {
  return guarded({kind, Stage::kRequest}, [&]() -> Handle {
    if (json == nullptr) return misused(kind, "the request is NULL");
    auto request = parse(json);
    if (!request) return refused(kind, {Stage::kRequest, std::move(request).error()});
    return use(*std::move(request));
  });
}

}  // namespace lading::c_api
