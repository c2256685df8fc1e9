// The host as a device: everything is done by the calling thread, before the call returns.
#include <algorithm>
#include <array>

#include "device/cast.h"
#include "device/device.h"
#include "device/move.h"
#include "device/quantized/dequantize.h"
#include "device/slab.h"

namespace lading::device {
namespace {

class HostLane : public Lane {
 public:
  HostLane(Slab buffer, DigestAccounts* accounts) : buffer_(std::move(buffer)), accounts_(accounts) {}

  Result<std::span<std::byte>> acquire_staging_buffer() override { return buffer_.bytes(); }
  Result<void> release_staging_buffer() override { return {}; }

  Result<void> move(const Move& move) override {
    if (move.scaling != nullptr) {
      dequantize_on_host(move);
    } else {
      move_on_host(move);
    }
    return {};
  }

  Result<void> fill(const Fill& fill) override {
    fill_on_host(fill);
    return {};
  }

  Result<void> sample(const Sample& job) override {
    constexpr std::uint64_t kAtOnce = 4096;
    const Cast cast = job.dtype == DType::kF32 ? nullptr : find_cast(DType::kF32, job.dtype);
    LADING_CHECK(job.dtype == DType::kF32 || cast != nullptr);
    const std::uint64_t element_bytes = bits(job.dtype) / 8;
    std::array<float, kAtOnce> values;
    for (std::uint64_t done = 0; done < job.elems; done += kAtOnce) {
      const std::uint64_t count = std::min(kAtOnce, job.elems - done);
      device::sample(job.parameters, job.key, job.first_elem + done, std::span(values).first(count));
      const auto* const made = reinterpret_cast<const std::byte*>(values.data());
      std::byte* const target = job.target + done * element_bytes;
      if (cast != nullptr) {
        cast(made, target, count);
      } else {
        std::copy_n(made, count * sizeof(float), target);
      }
    }
    return {};
  }

  Result<void> digest(const DigestJob& job) override {
    accounts_->add(job.account, digest_of({job.memory, job.size_bytes}, job.global_begin_bytes));
    return {};
  }

  Result<void> fetch(const std::byte* memory, std::span<std::byte> out) override {
    std::copy_n(memory, out.size(), out.data());
    return {};
  }

  Result<void> finish() override { return {}; }

 private:
  Slab buffer_;
  DigestAccounts* accounts_;
};

class HostDevice : public Device {
 public:
  [[nodiscard]] std::string name() const override { return "cpu"; }
  [[nodiscard]] bool is_host() const override { return true; }

  [[nodiscard]] std::uint64_t lane_bytes(const LaneOptions& options) const override {
    return options.staging_buffer_bytes + kStagingAlignmentBytes;
  }

  Result<std::unique_ptr<Lane>> open_lane(const LaneOptions& options) override {
    LADING_ASSIGN_OR_RETURN(Slab buffer, Slab::allocate(lane_bytes(options)));
    return std::unique_ptr<Lane>(new HostLane(std::move(buffer), options.accounts));
  }

  // Nothing can be told of a host address without touching what is there.
  [[nodiscard]] Result<void> check(std::span<const std::byte>) const override { return {}; }

  Result<std::shared_ptr<std::byte>> allocate(std::uint64_t size_bytes) override {
    LADING_ASSIGN_OR_RETURN(Slab slab, Slab::allocate(size_bytes));
    const auto owner = std::make_shared<Slab>(std::move(slab));
    return std::shared_ptr<std::byte>(owner, owner->bytes().data());
  }

  Result<void> take_scales(const BlockScales&) override { return {}; }
  void forget_scales(const BlockScales&) override {}
  Result<void> collect_digests() override { return {}; }
  [[nodiscard]] std::vector<std::string> take_notes() override { return {}; }
};

}  // namespace

std::unique_ptr<Device> host_device() { return std::make_unique<HostDevice>(); }

}  // namespace lading::device
