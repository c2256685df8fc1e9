// How long a file takes to hand over some of its bytes.
#pragma once

#include <cstdint>

#include "io/file.h"
#include "lading/byte_range.h"
#include "lading/result.h"

namespace lading::io {

/// Seconds for reading the range once, through the page cache. The kernel is told not to read ahead, or it would be
/// timed for more bytes than these.
[[nodiscard]] Result<double> seconds_to_read(const File& file, ByteRange range);

}  // namespace lading::io
