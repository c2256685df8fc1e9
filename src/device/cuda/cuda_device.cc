#include "device/cuda/cuda_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "device/cuda/cuda_gpu.h"
#include "device/cuda/cuda_lane.h"
#include "device/cuda/cuda_scales.h"

namespace lading::device::cuda {
namespace {

class CudaDevice : public Device {
 public:
  explicit CudaDevice(std::shared_ptr<Gpu> gpu) : gpu_(std::move(gpu)), scales_(gpu_) {}

  ~CudaDevice() override {
    if (sums_ != 0) gpu_->call_freely(gpu_->driver().free, sums_);
  }

  [[nodiscard]] std::string name() const override { return gpu_->name(); }
  [[nodiscard]] bool is_host() const override { return false; }

  [[nodiscard]] std::uint64_t lane_bytes(const LaneOptions& options) const override {
    return CudaLane::size_bytes(options);
  }

  Result<std::unique_ptr<Lane>> open_lane(const LaneOptions& options) override {
    if (accounts_ == nullptr && options.accounts != nullptr) LADING_TRY(open_accounts(*options.accounts));
    return CudaLane::open(gpu_, options, sums_, scales_);
  }

  [[nodiscard]] Result<void> check(std::span<const std::byte> memory) const override {
    const auto address = reinterpret_cast<Address>(memory.data());
    if (memory.empty() || is_known(address, memory.size())) return {};
    LADING_ASSIGN_OR_RETURN(const Whereabouts first, look_at(address));
    LADING_ASSIGN_OR_RETURN(const Whereabouts last, look_at(address + memory.size() - 1));
    const auto is_ours = [&](const Whereabouts& at) { return at.kind == kMemoryOfDevice && at.index == gpu_->index(); };
    if (is_ours(first) && is_ours(last)) {
      known_begin_ = first.begin;
      known_bytes_ = first.size_bytes;
      return {};
    }
    const Whereabouts& wrong = is_ours(first) ? last : first;
    return fail(Error(Code::kUsage, "the given memory is not on the tensor's device")
                    .by_rule("R34")
                    .wanted(fmt::format("memory of {}", name()))
                    .got(wrong.kind == kMemoryOfDevice ? fmt::format("memory of cuda:{}", wrong.index)
                         : is_ours(first)              ? "memory that ends before the tensor does"
                                                       : "memory that no GPU owns")
                    .try_this("Allocate it on the device that the layout gives to this rank."));
  }

  Result<std::shared_ptr<std::byte>> allocate(std::uint64_t size_bytes) override {
    if (size_bytes == 0) return std::shared_ptr<std::byte>();
    const Driver& driver = gpu_->driver();
    std::size_t free_bytes = 0;
    std::size_t total_bytes = 0;
    LADING_TRY(gpu_->call("asking for free memory", driver.memory_info, &free_bytes, &total_bytes));
    if (size_bytes > free_bytes) return fail(gpu_->short_of(size_bytes, free_bytes));
    Address address = 0;
    const Status status = gpu_->call_freely(driver.allocate, &address, std::size_t{size_bytes});
    if (status == kOutOfMemory) return fail(gpu_->short_of(size_bytes, free_bytes));
    LADING_TRY(gpu_->judge("allocating memory", status));
    return std::shared_ptr<std::byte>(reinterpret_cast<std::byte*>(address), [gpu = gpu_](std::byte* memory) {
      gpu->call_freely(gpu->driver().free, reinterpret_cast<Address>(memory));
    });
  }

  Result<void> take_scales(const BlockScales& scales) override { return scales_.take(scales); }
  void forget_scales(const BlockScales& scales) override { scales_.forget(scales); }

  Result<void> collect_digests() override {
    if (accounts_ == nullptr) return {};
    std::vector<std::uint64_t> sums(2 * accounts_->count());
    const Driver& driver = gpu_->driver();
    LADING_TRY(gpu_->call("fetching digests", driver.copy_to_host, static_cast<void*>(sums.data()), sums_,
                          sums.size() * sizeof(std::uint64_t), Stream{nullptr}));
    LADING_TRY(gpu_->call("fetching digests", driver.synchronize_context));
    for (std::size_t i = 0; i < accounts_->count(); ++i) {
      accounts_->add(static_cast<std::uint32_t>(i), {{sums[2 * i], sums[2 * i + 1]}});
    }
    return {};
  }

  [[nodiscard]] std::vector<std::string> take_notes() override { return gpu_->notes(); }

 private:
  struct Whereabouts {
    unsigned kind = 0;
    int index = 0;
    Address begin = 0;  ///< of its allocation
    std::size_t size_bytes = 0;
  };

  // Of an address that it does not know, the driver answers zeros.
  [[nodiscard]] Result<Whereabouts> look_at(Address address) const {
    Whereabouts at;
    int attributes[] = {kPointerMemoryType, kPointerOrdinal, kPointerRangeStart, kPointerRangeSize};
    void* values[] = {&at.kind, &at.index, &at.begin, &at.size_bytes};
    LADING_TRY(gpu_->call("looking up the given memory", gpu_->driver().pointer_attributes, 4U,
                          static_cast<int*>(attributes), static_cast<void**>(values), address));
    return at;
  }

  // Frameworks cut tensors out of large allocations: what is known of one is known of all tensors in it.
  [[nodiscard]] bool is_known(Address begin, std::uint64_t size_bytes) const {
    return begin >= known_begin_ && size_bytes <= known_bytes_ && begin - known_begin_ <= known_bytes_ - size_bytes;
  }

  Result<void> open_accounts(DigestAccounts& accounts) {
    const Driver& driver = gpu_->driver();
    const std::size_t size_bytes = std::max<std::size_t>(1, accounts.count()) * sizeof(Digest);
    if (sums_ == 0) {
      const Status status = gpu_->call_freely(driver.allocate, &sums_, size_bytes);
      if (status == kOutOfMemory) return fail(gpu_->short_of(size_bytes, 0));
      LADING_TRY(gpu_->judge("allocating memory for digests", status));
    }
    LADING_TRY(gpu_->call("clearing digests", driver.set_bytes, sums_, static_cast<unsigned char>(0), size_bytes,
                          Stream{nullptr}));
    LADING_TRY(gpu_->call("clearing digests", driver.synchronize_context));
    accounts_ = &accounts;
    return {};
  }

  std::shared_ptr<Gpu> gpu_;
  DigestAccounts* accounts_ = nullptr;
  Address sums_ = 0;
  CudaScales scales_;
  mutable Address known_begin_ = 0;  ///< an allocation of this device that check() has met
  mutable std::uint64_t known_bytes_ = 0;
};

}  // namespace

Result<std::unique_ptr<Device>> open_gpu(int index) {
  LADING_ASSIGN_OR_RETURN(std::shared_ptr<Gpu> gpu, Gpu::open(index));
  return std::unique_ptr<Device>(std::make_unique<CudaDevice>(std::move(gpu)));
}

}  // namespace lading::device::cuda
