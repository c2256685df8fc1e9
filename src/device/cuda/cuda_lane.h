// CudaLane: two streams of one GPU, and the pinned staging buffers that one thread reads files into.
//
// What may go as it is (dense bytes, rows) is copied from the buffer to its place; what must be cast, dequantized or
// scattered is copied to a twin of the buffer on the GPU in one piece, and a kernel distributes it. Digests are taken
// by kernels that read device memory. Copies have a stream of their own, so that none waits for a kernel but one that
// would overwrite what the kernel reads.
#pragma once

#include <memory>
#include <vector>

#include "device/cuda/cuda_gpu.h"
#include "device/cuda/cuda_scales.h"
#include "device/cuda/job_pages.h"
#include "device/cuda/kernel_jobs.h"
#include "device/device.h"
#include "device/slab.h"

namespace lading::device::cuda {

[[nodiscard]] inline Address device_address(const std::byte* memory) { return reinterpret_cast<Address>(memory); }

class CudaLane : public Lane {
 public:
  /// `sums` is device memory with two numbers for each account, or 0. `scales` outlive the lane.
  static Result<std::unique_ptr<Lane>> open(std::shared_ptr<Gpu> gpu, const LaneOptions& options, Address sums,
                                            const CudaScales& scales);
  /// Of host memory.
  static std::size_t size_bytes(const LaneOptions& options);
  ~CudaLane() override;

  void attach() override { gpu_->attach(); }
  void detach() override { gpu_->detach(); }

  Result<std::span<std::byte>> acquire_staging_buffer() override;
  Result<void> release_staging_buffer() override;
  Result<void> move(const Move& move) override;
  Result<void> fill(const Fill& fill) override;
  Result<void> sample(const Sample& sample) override;
  Result<void> digest(const DigestJob& job) override;
  Result<void> fetch(const std::byte* memory, std::span<std::byte> out) override;
  Result<void> finish() override;

 private:
  struct StagingBuffer {
    std::byte* data = nullptr;
    Event copied = nullptr;       ///< the GPU has read the buffer
    Event distributed = nullptr;  ///< kernels have read its twin
    Address twin = 0;             ///< on the GPU
    bool twin_is_read = false;    ///< kernels may still read it
    bool is_busy = false;         ///< the GPU may still read it
    bool is_pinned = false;
  };

  struct Streams {
    Stream copies = nullptr;
    Stream kernels = nullptr;
  };

  CudaLane(std::shared_ptr<Gpu> gpu, const LaneOptions& options, Address sums, const CudaScales& scales);

  /// From one buffer to the next.
  static std::size_t stride_bytes(const LaneOptions& options);
  [[nodiscard]] StagingBuffer& current_buffer() { return buffers_[current_]; }
  Result<void> open_streams();
  /// Takes the memory for buffers and jobs, and pins it. By the thread that will use it: touching new pages is most of
  /// the cost, and this way all threads do it at the same time.
  Result<void> prepare();
  Result<void> wait_for(StagingBuffer& buffer);
  Result<void> make_event(Event& event);
  Result<void> record(Event event, Stream stream);
  /// What is issued on the stream from now on begins after the event.
  Result<void> order(Stream stream, Event event);
  /// Kernels that are launched from now on begin after the copies that are out.
  Result<void> order_after_copies();
  Status pin(std::byte* memory, std::size_t size_bytes);
  Result<void> pin_what_can_be(Status refusal);
  Result<void> copy(Address target, const std::byte* source, std::uint64_t size_bytes);
  Result<void> move_from_staging_buffer(const Move& move);
  Result<void> move_from_elsewhere(const Move& move);
  Result<void> end_bounce();
  void add_move_jobs(const Move& move);
  void add_dequantize_jobs(const Move& move);
  void add_in_two_parts(const Move& move, std::uint32_t job_loop, std::uint32_t multiple);
  [[nodiscard]] DequantizeJob dequantize_job(const Move& move);
  /// Jobs read what this move reads of the buffer.
  void note_read(const Move& move);
  [[nodiscard]] bool has_jobs() const { return !moves_.empty() || !dequantizations_.empty(); }
  Result<void> release();
  Result<void> launch_moves(Address source);
  Result<void> launch_dequantizations(Address source);
  Result<void> wait();
  void drop_moves();
  Result<Address> source_of_kernels();
  Result<void> flush_digests();
  Result<void> launch(Function kernel, std::uint64_t blocks, void** parameters);
  /// What a call answers, remembered for finish(). After an error the caller issues nothing more.
  Result<void> keep(Result<void> result);

  std::shared_ptr<Gpu> gpu_;
  LaneOptions options_;
  Address sums_;
  const CudaScales& scales_;
  Streams streams_;
  Event all_copied_ = nullptr;  ///< all copies that were out when kernels last had to know
  bool copies_are_out_ = false;
  JobPages pages_;
  Slab slab_;               ///< buffers, then pages for jobs
  bool is_pinned_ = false;  ///< all of it, in one piece
  bool is_prepared_ = false;
  std::vector<StagingBuffer> buffers_;
  std::size_t buffers_in_use_;
  std::size_t current_ = 0;
  bool is_lent_ = false;
  bool is_bouncing_ = false;  ///< the buffer that is lent collects values of the caller's
  std::uint64_t bounced_bytes_ = 0;
  bool has_failed_ = false;
  // From the buffer that is lent; `source` counts from its start.
  std::vector<MoveJob> moves_;
  std::vector<DequantizeJob> dequantizations_;
  std::uint64_t moves_begin_bytes_ = 0;  ///< what of the buffer they read
  std::uint64_t moves_end_bytes_ = 0;
  std::vector<DigestRange> ranges_;
  std::uint64_t ranges_bytes_ = 0;
};

}  // namespace lading::device::cuda
