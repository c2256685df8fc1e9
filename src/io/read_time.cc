#include "io/read_time.h"

#include <fcntl.h>

#include <chrono>
#include <vector>

namespace lading::io {

Result<double> seconds_to_read(const File& file, ByteRange range) {
  static_cast<void>(::posix_fadvise(file.descriptor(), 0, 0, POSIX_FADV_RANDOM));  // a refusal only makes it slower
  std::vector<char> bytes(range.size_bytes());
  const auto begin = std::chrono::steady_clock::now();
  LADING_TRY(file.read_exact(range.begin, bytes));
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace lading::io
