#include "exec/save/write_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <map>
#include <memory>
#include <new>
#include <set>
#include <span>
#include <utility>

#include "base/element_bytes.h"
#include "device/device.h"
#include "exec/crew.h"
#include "exec/save/gather.h"
#include "exec/save/host_bytes.h"
#include "exec/save/write_task.h"
#include "exec/thread_count.h"
#include "io/new_directory.h"

namespace lading::exec {
namespace {

using plan::FileId;
using plan::RankPlan;
using plan::Source;
using plan::SourceId;
using plan::Write;

using Clock = std::chrono::steady_clock;

// Large enough that a write call costs little, small enough that threads share the work.
constexpr std::uint64_t kTaskBytes = 8ULL << 20;
// A call for each short run would cost more than it brings.
constexpr std::uint64_t kLeastSyncedBytes = 1ULL << 20;
// Files that are open at the same time: a checkpoint may have more than a process may have descriptors.
constexpr std::size_t kFilesAtOnce = 64;

double seconds_from(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

Error save_cancelled() { return Error(Code::kCancelled, "the save was cancelled"); }
Error save_out_of_memory() {
  return Error(Code::kOutOfMemory, "not enough memory").try_this("Free memory, or save with fewer threads.");
}

class Saving {
 public:
  Saving(const SaveInputs& inputs, const SaveOptions& options)
      : inputs_(inputs),
        options_(options),
        crew_({options.cancelled, &options.progress, &save_cancelled, &save_out_of_memory, "the save"}),
        digests_(inputs.plan.load.sources.size()),
        bytes_(inputs.plan.load.sources.size()) {}

  SaveOutcome run() {
    try {
      if (!check_memory() || !open_crew()) return finish();
      list_tasks();
      for (auto next = by_file_.begin(); next != by_file_.end() && !crew_.stopped();) {
        auto end = std::next(next);
        const auto goes_along = [&] { return end != by_file_.end() && !alone_.contains(end->first); };
        if (!alone_.contains(next->first)) {
          for (std::size_t i = 1; i < kFilesAtOnce && goes_along(); ++i) ++end;
        }
        write_some(next, end);
        next = end;
      }
    } catch (const std::bad_alloc&) {
      crew_.add_error(save_out_of_memory());
    }
    return finish();
  }

 private:
  using TasksByFile = std::map<FileId, std::vector<WriteTask>>;

  [[nodiscard]] const RankPlan& rank_plan(std::uint32_t r) const { return inputs_.plan.load.ranks[inputs_.ranks[r]]; }
  [[nodiscard]] const Write& write_of(const WriteTask& task) const {
    return inputs_.plan.ranks[inputs_.ranks[task.rank]].writes[task.write];
  }

  bool check_memory() {
    for (std::uint32_t r = 0; r < inputs_.ranks.size(); ++r) {
      const RankPlan& rank = rank_plan(r);
      std::vector<bool> is_needed(rank.destinations.size());
      for (const Write& write : inputs_.plan.ranks[inputs_.ranks[r]].writes) {
        is_needed[write.transfer.destination.number()] = true;
      }
      for (const plan::DestinationId d : rank.destinations.ids()) {
        if (is_needed[d.number()]) check(rank, rank.destinations[d], inputs_.memory[r][d.number()]);
      }
    }
    return !crew_.stopped();
  }

  void check(const RankPlan& rank, const plan::Destination& destination, const DestinationMemory& memory) {
    const std::string& name = inputs_.plan.load.statements[destination.statement].name;
    const auto refuse = [&](Error error) {
      crew_.add_error(std::move(error).of_tensor(name).on_rank(static_cast<int>(rank.rank)));
    };
    if (memory.size_bytes < destination.buffer_bytes || (memory.data == nullptr && destination.buffer_bytes > 0)) {
      refuse(Error(Code::kUsage, "the tensor's memory is missing or too small")
                 .wanted(fmt::format("{} bytes", destination.buffer_bytes))
                 .got(memory.data == nullptr ? "none" : fmt::format("{} bytes", memory.size_bytes))
                 .try_this("Pass the memory of every destination."));
    }
  }

  [[nodiscard]] std::string device_of(const plan::Destination& destination) const {
    return options_.memory == MemoryPlace::kHost ? "cpu" : destination.device;
  }

  // The host, and the devices of what these ranks write.
  Result<void> open_devices_of_writes() {
    devices_.emplace_back();
    devices_.back().device = device::host_device();
    lanes_.emplace("cpu", kHostLane);
    for (std::uint32_t r = 0; r < inputs_.ranks.size(); ++r) {
      const RankPlan& rank = rank_plan(r);
      for (const Write& write : inputs_.plan.ranks[inputs_.ranks[r]].writes) {
        const plan::Destination& destination = rank.destinations[write.transfer.destination];
        const std::string place = device_of(destination);
        if (lanes_.emplace(place, devices_.size()).second) {
          LADING_ASSIGN_OR_RETURN(auto device, device::open_device(place));
          devices_.emplace_back().device = std::move(device);
        }
        const DestinationMemory& memory = inputs_.memory[r][write.transfer.destination.number()];
        const device::Device& device = *devices_[lanes_.at(place)].device;
        if (auto checked = device.check({memory.data, memory.size_bytes}); !checked) {
          return fail(std::move(checked).error().of_tensor(inputs_.plan.load.statements[destination.statement].name));
        }
      }
    }
    return {};
  }

  bool open_crew() {
    if (auto opened = open_devices_of_writes(); !opened) {
      crew_.add_error(std::move(opened).error());
      return false;
    }
    std::uint64_t each_bytes = 0;
    for (LoadDevice& device : devices_) {
      device.lane_options.staging_buffer_bytes = options_.staging_buffer_bytes;
      device.lane_options.accounts = &digests_;
      each_bytes += device.device->lane_bytes(device.lane_options);
    }
    std::uint64_t budget_bytes = 0;
    for (std::uint32_t r = 0; r < inputs_.ranks.size(); ++r) budget_bytes += rank_plan(r).staging_bytes;
    const std::uint32_t wanted = thread_count(options_.threads, usable_processors());
    const auto threads = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(budget_bytes / each_bytes, 1, wanted));
    auto opened = crew_.open(devices_, threads);
    if (!opened) crew_.add_error(std::move(opened).error());
    outcome_.threads = static_cast<std::uint32_t>(crew_.threads());
    outcome_.staging_bytes = crew_.threads() * each_bytes;
    return opened.has_value();
  }

  void list_tasks() {
    std::uint64_t total = 0;
    for (std::uint32_t r = 0; r < inputs_.ranks.size(); ++r) {
      const plan::RankWrites& writes = inputs_.plan.ranks[inputs_.ranks[r]];
      total += writes.bytes;
      for (std::uint32_t w = 0; w < writes.writes.size(); ++w) {
        const Source& source = inputs_.plan.source_of(rank_plan(r), writes.writes[w]);
        add_tasks(writes.writes[w], source.dtype, {r, w, 0, 0}, kTaskBytes, by_file_[source.file]);
        if (is_fetched_whole(rank_plan(r), writes.writes[w])) alone_.insert(source.file);
      }
    }
    crew_.set_total(total);
  }

  [[nodiscard]] bool is_fetched_whole(const RankPlan& rank, const Write& write) const {
    if (lanes_.at(device_of(rank.destinations[write.transfer.destination])) == kHostLane) return false;
    return HostBytes::may_fetch_whole(write, inputs_.plan.memory_dtype(rank, write), options_.staging_buffer_bytes);
  }

  void write_some(TasksByFile::const_iterator begin, TasksByFile::const_iterator end) {
    std::vector<OutputFile> files;
    // From one file after the other: threads that write to one file wait for each other.
    std::vector<std::pair<const WriteTask*, std::size_t>> tasks;
    std::size_t longest = 0;
    for (auto file = begin; file != end; ++file) {
      auto opened = inputs_.open(file->first);
      if (!opened) return crew_.add_error(std::move(opened).error());
      files.push_back(*std::move(opened));
      longest = std::max(longest, file->second.size());
    }
    for (std::size_t i = 0; i < longest; ++i) {
      std::size_t number = 0;
      for (auto file = begin; file != end; ++file, ++number) {
        if (i < file->second.size()) tasks.emplace_back(&file->second[i], number);
      }
    }
    const Clock::time_point writing = Clock::now();
    crew_.run(tasks.size(),
              [&](const Lanes& lanes, std::size_t t) { return write(lanes, *tasks[t].first, files[tasks[t].second]); });
    outcome_.writing_seconds += seconds_from(writing);
    host_bytes_.clear();
    if (options_.sync == Sync::kNo) return;
    const Clock::time_point syncing = Clock::now();
    crew_.run(files.size(),
              [&](const Lanes&, std::size_t f) { return io::sync_file(files[f].fd.get(), files[f].path); });
    outcome_.sync_seconds += seconds_from(syncing);
  }

  Result<void> write(const Lanes& lanes, const WriteTask& task, const OutputFile& file) {
    const RankPlan& rank = rank_plan(task.rank);
    const Write& write = write_of(task);
    const plan::DestinationId d = write.transfer.destination;
    const SourceId source = rank.at(write.transfer).source;
    const Source& key = inputs_.plan.load.sources[source];
    const DestinationMemory& destination = inputs_.memory[task.rank][d.number()];
    const SavedMemory memory{destination.data, destination.size_bytes, lanes_.at(device_of(rank.destinations[d]))};
    const DType memory_dtype = inputs_.plan.memory_dtype(rank, write);
    const unsigned most_bits = std::max(bits(key.dtype), bits(memory_dtype));
    const GatherInputs inputs{write, key.dtype, memory_dtype, options_.staging_buffer_bytes / most_bits * 8,
                              memory.lane == kHostLane};
    return for_each_stretch(inputs, task.begin_elem, task.end_elem, [&](const Stretch& stretch) -> Result<void> {
      LADING_ASSIGN_OR_RETURN(const std::span<const std::byte> bytes, host_bytes_.of(lanes, inputs, stretch, memory));
      LADING_TRY(lanes[kHostLane]->digest(
          {bytes.data(), bytes.size(), stretch.file_begin_bytes - key.bytes.begin, source.number()}));
      LADING_TRY(io::write_exact(file.fd.get(), stretch.file_begin_bytes, bytes, file.path));
      // The disk is at work while the next bytes are fetched.
      if (options_.sync == Sync::kYes && bytes.size() >= kLeastSyncedBytes)
        io::begin_sync(file.fd.get(), stretch.file_begin_bytes, bytes.size());
      bytes_[source.number()].fetch_add(bytes.size(), std::memory_order_relaxed);
      crew_.add_done(bytes.size());
      return {};
    });
  }

  SaveOutcome finish() {
    crew_.close();
    crew_.report_progress();
    outcome_.errors = crew_.take_errors();
    for (const SourceId source : inputs_.plan.load.sources.ids()) {
      const std::uint64_t bytes = bytes_[source.number()];
      outcome_.written_bytes += bytes;
      if (bytes > 0) outcome_.keys.push_back({source, bytes, digests_.of(source.number())});
    }
    return std::move(outcome_);
  }

  const SaveInputs& inputs_;
  const SaveOptions& options_;
  Crew crew_;
  std::vector<LoadDevice> devices_;
  std::map<std::string, std::size_t> lanes_;  // by device: into devices_
  HostBytes host_bytes_;
  device::DigestAccounts digests_;
  std::vector<std::atomic<std::uint64_t>> bytes_;  // by source
  TasksByFile by_file_;
  std::set<FileId> alone_;  // what is fetched whole for a file is kept until the file is written
  SaveOutcome outcome_;
};

}  // namespace

SaveOutcome write_files(const SaveInputs& inputs, const SaveOptions& options) { return Saving(inputs, options).run(); }

}  // namespace lading::exec
