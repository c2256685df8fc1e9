// The layout that a strategy makes of a model.
#pragma once

#include "lading/result.h"
#include "layout/device_choice.h"
#include "layout/strategy.h"
#include "model/skeleton.h"

namespace lading {

/// Notes of the strategy become warnings.
inline Result<layout::Layout, Errors> lay_out_by_strategy(const layout::ByStrategy& wanted,
                                                          const layout::ChosenDevices& devices,
                                                          const model::Skeleton& skeleton, Errors& warnings) {
  std::vector<layout::TensorToPlace> infos;
  infos.reserve(skeleton.tensors.size());
  for (const model::Tensor& tensor : skeleton.tensors) {
    infos.push_back({tensor.name, tensor.shape, model::is_laid_out_as_parameter(skeleton, tensor)});
  }
  LADING_ASSIGN_OR_RETURN(layout::StrategyLayout made,
                          layout::make_layout({wanted.strategy, wanted.mesh, devices.devices, wanted.tp_plan}, infos));
  for (std::string& note : made.notes) warnings.add(Error(Code::kLayout, std::move(note)));
  return std::move(made.layout);
}

}  // namespace lading
