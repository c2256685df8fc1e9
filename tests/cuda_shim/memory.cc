#include "cuda_shim/memory.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace lading::cuda_shim {
namespace {

constexpr std::uint64_t kGuardBytes = 16 * kPageBytes;

std::uint64_t whole_pages(std::uint64_t size_bytes) { return (size_bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

Address number_of(const void* memory) { return reinterpret_cast<Address>(memory); }

}  // namespace

Pages::Pages(std::uint64_t size_bytes, Use use) : mapped_bytes_(whole_pages(size_bytes) + 2 * kGuardBytes) {
  void* const mapping = ::mmap(nullptr, mapped_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) std::abort();
  mapping_ = static_cast<std::byte*>(mapping);
  if (use == Use::kForbidden) return;
  if (::mprotect(begin(), whole_pages(size_bytes), PROT_READ | PROT_WRITE) != 0) std::abort();
}

Pages::Pages(Pages&& other) noexcept
    : mapping_(std::exchange(other.mapping_, nullptr)), mapped_bytes_(std::exchange(other.mapped_bytes_, 0)) {}

Pages& Pages::operator=(Pages&& other) noexcept {
  std::swap(mapping_, other.mapping_);
  std::swap(mapped_bytes_, other.mapped_bytes_);
  return *this;
}

Pages::~Pages() {
  if (mapping_ != nullptr) ::munmap(mapping_, mapped_bytes_);
}

std::byte* Pages::begin() const { return mapping_ + kGuardBytes; }

bool holds(const Region& region, Address address, std::uint64_t size_bytes) {
  return address >= region.address && size_bytes <= region.size_bytes &&
         address - region.address <= region.size_bytes - size_bytes;
}

std::string Region::text() const {
  if (kind == Kind::kRegistered) return fmt::format("{} registered bytes", size_bytes);
  return fmt::format("{} bytes of GPU {}", size_bytes, gpu);
}

std::shared_ptr<Region> Memory::allocate(int gpu, std::uint64_t size_bytes) {
  auto region = std::make_shared<Region>();
  region->size_bytes = size_bytes;
  region->gpu = gpu;
  region->owner = gpu;
  region->forbidden = Pages(size_bytes, Pages::Use::kForbidden);
  region->alias = Pages(size_bytes, Pages::Use::kReadWrite);
  region->address = number_of(region->forbidden.begin());
  region->bytes = region->alias.begin();
  std::memset(region->bytes, static_cast<int>(kFreshByte), whole_pages(size_bytes));
  const std::lock_guard lock(mutex_);
  regions_[region->address] = region;
  return region;
}

std::shared_ptr<Region> Memory::register_host(const Registration& wanted) {
  auto region = std::make_shared<Region>();
  region->size_bytes = wanted.size_bytes;
  region->gpu = wanted.gpu;
  region->owner = wanted.owner;
  region->mapped = wanted.mapped;
  region->kind = Region::Kind::kRegistered;
  region->forbidden = Pages(wanted.size_bytes, Pages::Use::kForbidden);
  region->address = number_of(region->forbidden.begin());
  region->bytes = static_cast<std::byte*>(wanted.memory);
  const std::lock_guard lock(mutex_);
  regions_[region->address] = region;
  return region;
}

std::shared_ptr<Region> Memory::take(Address address) {
  const std::lock_guard lock(mutex_);
  const auto found = regions_.find(address);
  if (found == regions_.end() || found->second->kind != Region::Kind::kDevice) return nullptr;
  return regions_.extract(found).mapped();
}

std::shared_ptr<Region> Memory::take_registered(const void* memory) {
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(regions_.begin(), regions_.end(), [&](const auto& entry) {
    return entry.second->kind == Region::Kind::kRegistered && entry.second->bytes == memory;
  });
  return found == regions_.end() ? nullptr : regions_.extract(found).mapped();
}

std::shared_ptr<Region> Memory::find(int gpu, Address address, std::uint64_t size_bytes) const {
  const std::lock_guard lock(mutex_);
  auto after = regions_.upper_bound(address);
  if (after == regions_.begin()) return nullptr;
  const std::shared_ptr<Region>& region = (--after)->second;
  const bool reachable = region->mapped && (region->gpu == kAnyGpu || gpu == kAnyGpu || region->gpu == gpu);
  return reachable && holds(*region, address, size_bytes) ? region : nullptr;
}

std::shared_ptr<Region> Memory::find_registered(const void* memory) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [address, region] : regions_) {
    if (region->kind != Region::Kind::kRegistered) continue;
    if (memory >= region->bytes && memory < region->bytes + region->size_bytes) return region;
  }
  return nullptr;
}

bool Memory::is_registered(const void* memory, std::uint64_t size_bytes) const {
  const Address begin = number_of(memory);
  const std::lock_guard lock(mutex_);
  return std::any_of(regions_.begin(), regions_.end(), [&](const auto& entry) {
    const Region& region = *entry.second;
    const Address other = number_of(region.bytes);
    return region.kind == Region::Kind::kRegistered && begin < other + whole_pages(region.size_bytes) &&
           other < begin + whole_pages(size_bytes);
  });
}

std::uint64_t Memory::allocated_bytes(int gpu) const {
  const std::lock_guard lock(mutex_);
  std::uint64_t sum = 0;
  for (const auto& [address, region] : regions_) {
    if (region->kind == Region::Kind::kDevice && region->gpu == gpu) sum += region->size_bytes;
  }
  return sum;
}

std::uint64_t Memory::registered_bytes() const {
  const std::lock_guard lock(mutex_);
  std::uint64_t sum = 0;
  for (const auto& [address, region] : regions_) {
    if (region->kind == Region::Kind::kRegistered) sum += region->size_bytes;
  }
  return sum;
}

std::vector<std::shared_ptr<Region>> Memory::all() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Region>> all;
  for (const auto& [address, region] : regions_) all.push_back(region);
  return all;
}

void Memory::clear() {
  const std::lock_guard lock(mutex_);
  regions_.clear();
}

bool is_overrun(const Region& region) {
  if (region.kind != Region::Kind::kDevice) return false;
  const std::byte* const end = region.bytes + region.size_bytes;
  const std::byte* const end_of_pages = region.bytes + whole_pages(region.size_bytes);
  return std::any_of(end, end_of_pages, [](std::byte b) { return b != kFreshByte; });
}

}  // namespace lading::cuda_shim
