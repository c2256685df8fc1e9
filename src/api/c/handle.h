// Handles of the C ABI, for the files that implement a part of it.
#pragma once

#include <string>

#include "lading/error.h"
#include "lading/lading_c.h"
#include "lading/load.h"

namespace lading::c_api {

/// An answer that is only a text. May throw for want of memory.
[[nodiscard]] lading_handle* make_handle(Exit exit_code, std::string text);

/// What the last callback on this thread said with lading_set_error().
[[nodiscard]] std::string take_callback_error();

/// Of a handle of lading_load(); null if it is none, or failed.
[[nodiscard]] const LoadReport* load_report_of(const lading_handle* handle);

}  // namespace lading::c_api
