#include "api/c/handle_parts.h"

namespace lading::c_api {

DestinationsInC::DestinationsInC(std::vector<DestinationInfo> infos) : infos_(std::move(infos)) {
  aliases_.reserve(infos_.size());
  in_c_.reserve(infos_.size());
  for (const DestinationInfo& d : infos_) {
    std::vector<const char*>& aliases = aliases_.emplace_back();
    for (const std::string& alias : d.aliases) aliases.push_back(alias.c_str());
    const std::string& device = *devices_.insert(d.device.text()).first;
    in_c_.push_back({d.rank, d.name.c_str(), d.slot.c_str(), d.flat_parameter.c_str(), device.c_str(),
                     word(d.provenance).data(), name(d.dtype).data(), d.shape.dims().data(), d.shape.rank(),
                     d.local_shape.dims().data(), d.local_shape.rank(), d.size_bytes, aliases.data(), aliases.size()});
  }
}

Handle answered(std::string text) {
  auto handle = std::make_unique<lading_handle>();
  handle->text = std::move(text);
  return handle;
}

Handle refused(const RefusalAnswer& refusal, const Errors& problems) {
  Handle handle = answered(answer_of(refusal, problems));
  handle->exit_code = refusal.exit_code;
  return handle;
}

Handle refused(std::string_view kind, const Refusal& refusal) {
  return refused({kind, refusal.stage, false, refusal.exit_code()}, refusal.problems);
}

Handle misused(std::string_view kind, std::string message) {
  return refused(
      kind, Refusal{Stage::kRequest,
                    Error(Code::kUsage, std::move(message)).try_this("Correct the call (docs/reference/c-api.md).")});
}

}  // namespace lading::c_api
