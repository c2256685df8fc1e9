// Payloads of quantized weights are never loaded without their scales, whatever else is allowed (R48). Internal to
// the room.
#pragma once

#include <set>
#include <string_view>

#include "planner/decide.h"
#include "planner/planner.h"
#include "planner/quantized/dequantize.h"

namespace lading::planner {

struct QuantizedProblems {
  Errors errors;                         ///< one for all payloads of a pattern
  std::set<std::string_view> left_over;  ///< the scales that these are about: borrowed from the catalog
};

/// After sources are chosen: payloads that are read, while a scale or zero point of theirs is not. Refuses their
/// statements.
QuantizedProblems check_companions(const PlanInputs& inputs, const NotDequantized& reasons, Decisions& decisions);

/// The same where the payload has no scale that is known as one, and the checkpoint calls itself quantized, or has
/// beside it what may be a scale: in a tensor of ordinary floats it can only be wrong.
Errors check_lost_scales(const PlanInputs& inputs, Decisions& decisions);

/// After dtypes are chosen: in a checkpoint that calls itself quantized, payloads without any scale that would be cast.
Errors check_payload_casts(const PlanInputs& inputs, Decisions& decisions);

/// Of a plan that is refused, and not for payloads without scales: one problem if keys that the model does not have are
/// payloads that lading does not dequantize. It explains the others.
Errors name_unread_payloads(const PlanInputs& inputs, const mapping::Resolution& names, const NotDequantized& reasons,
                            const Errors& refused);

}  // namespace lading::planner
