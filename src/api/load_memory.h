// OwnMemory: the destinations' memory where a request brings none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "lading/load.h"

namespace lading {

/// One stretch per device, so that huge pages are well used.
class OwnMemory {
 public:
  /// Refuses before anything is allocated on the host if it has too little; `staging_bytes` are needed beside.
  Result<void> allocate(const std::vector<DestinationInfo>& destinations, std::uint64_t staging_bytes);

  [[nodiscard]] std::span<std::byte> of(std::size_t i, const DestinationInfo& d) const {
    return d.size_bytes == 0 ? std::span<std::byte>()
                             : std::span(stretches_.at(d.device).get() + begins_[i], d.size_bytes);
  }

 private:
  static constexpr std::uint64_t kAlignment = 64;
  using Key = std::tuple<std::uint64_t, std::string, std::string>;
  static Key key(const DestinationInfo& d) { return {d.rank, d.unit, d.slot}; }

  std::map<Key, std::uint64_t> units_;
  std::vector<std::uint64_t> begins_;
  std::map<std::string, std::shared_ptr<std::byte>> stretches_;
};

}  // namespace lading
