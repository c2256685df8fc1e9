// The types of a plan, as this room calls them: it reads nothing else of plan's.
#pragma once

#include "plan/plan.h"

namespace lading::checker {

using plan::Destination;
using plan::DestinationId;
using plan::FileId;
using plan::Plan;
using plan::PlannedFile;
using plan::RankPlan;
using plan::Read;
using plan::ScaleRead;
using plan::Source;
using plan::SourceId;
using plan::Statement;
using plan::StatementId;
using plan::Transfer;
using plan::TransferRef;

}  // namespace lading::checker
