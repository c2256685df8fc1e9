// InlineVector for the rooms. Programs do not see it: a Shape has one inside.
#pragma once

#include "lading/detail/inline_vector.h"

namespace lading {

using detail::InlineVector;

}  // namespace lading
