// What the stages that read files share: tasks made of the plan's reads, and the reading of their bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "exec/file_set.h"
#include "exec/load.h"
#include "exec/read_task.h"

namespace lading::exec {

/// Tasks by batch (RankPlan::batch_ends), each batch in file order.
using Batches = std::vector<std::vector<ReadTask>>;

/// The plan's reads that `wanted` asks for, as tasks that fit in this load's buffers. What another load hands over is
/// left out. `use`: kCompare reads nothing in place.
enum class ReadUse : std::uint8_t { kWrite, kCompare };
[[nodiscard]] Batches tasks_of(const Load& load, ReadUse use,
                               const std::function<bool(const plan::RankPlan&, const plan::Read&)>& wanted);

/// What is done with a task, on one of the crew's threads.
using UseTask = std::function<Result<void>(const Lanes& lanes, const io::File& file, const ReadTask& task)>;

/// Reads the scales that the first batch needs.
void begin_tasks(const Load& load, const Batches& batches);

/// After begin_tasks(): does every task with its file open, one batch after the other, and reads the next one's scales
/// meanwhile. Returns the files of which check_unchanged cannot tell whether they changed (io::File::is_doubtful).
FileSet run_tasks(const Load& load, const Batches& batches, const UseTask& use);

/// Where in the buffer a task's bytes go: as they stand in the file.
[[nodiscard]] std::byte* place_in(std::span<std::byte> buffer, const ReadTask& task);

/// Reads a task's rows, `stride_bytes` from one to the next.
Result<void> read_rows(const Load& load, const io::File& file, const ReadTask& task, std::byte* out,
                       std::uint64_t stride_bytes);

}  // namespace lading::exec
