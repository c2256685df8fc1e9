// Fills the shards of an FSDP2 model, all ranks in one process, from a layout that is made here and not in JSON: each
// tensor with a dim is cut along dim 0, as fully_shard() does it, and scalars are whole on every rank.
//
//   fill_fsdp2_shards CHECKPOINT RANKS
#include <lading/inspect.h>
#include <lading/load.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace {

// FNV-1a of what is in our memory; any other program can compute it to compare.
std::uint64_t checksum(std::span<const std::byte> bytes) {
  std::uint64_t sum = 0xcbf29ce484222325;
  for (const std::byte byte : bytes) sum = (sum ^ std::to_integer<std::uint64_t>(byte)) * 0x100000001b3;
  return sum;
}

int complain(const lading::Errors& problems, lading::Exit code) {
  for (const lading::Error& error : problems) std::fprintf(stderr, "%s\n", error.text().c_str());
  return static_cast<int>(code);
}

lading::layout::Layout fsdp2_layout(const std::vector<lading::model::Tensor>& tensors, std::uint64_t ranks) {
  using namespace lading::layout;
  Layout layout;
  layout.mesh = Mesh({{"dp", ranks}});
  for (const lading::model::Tensor& tensor : tensors) {
    if (tensor.shape.rank() == 0) continue;
    Placement placement;
    placement.slots = {{.name = "", .cuts = {Cut::shard({0}, 0)}}};  // axis 0 of the mesh, dim 0 of the tensor
    layout.rules.push_back({lading::NamePattern::exact(tensor.name), placement});
  }
  return layout;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: fill_fsdp2_shards CHECKPOINT RANKS\n");
    return 2;
  }
  const auto inspection = lading::inspect({argv[1]});
  if (!inspection) return complain(inspection.error(), lading::Exit::kCheckpoint);

  // A framework knows its own parameters; here they are those of the checkpoint.
  std::vector<lading::model::Tensor> tensors;
  for (const lading::TensorInfo& info : inspection->tensors) {
    if (!info.dtype) continue;
    lading::model::Tensor tensor;
    tensor.name = info.name;
    tensor.shape = info.shape;
    tensor.dtype = *info.dtype;
    tensors.push_back(std::move(tensor));
  }
  lading::LoadRequest request;
  request.plan.checkpoint.path = argv[1];
  request.plan.layout = fsdp2_layout(tensors, std::strtoull(argv[2], nullptr, 10));
  auto skeleton = lading::model::make_skeleton(std::move(tensors), {}, {});
  if (!skeleton) return complain(skeleton.error(), lading::Exit::kPlan);
  request.plan.skeleton = *std::move(skeleton);
  request.plan.ranks = std::nullopt;  // all of them

  std::map<std::pair<std::uint64_t, std::string>, std::vector<std::byte>> shards;
  request.memory = [&](const lading::DestinationInfo& shard) -> lading::Result<std::span<std::byte>> {
    return std::span(shards[{shard.rank, shard.name}] = std::vector<std::byte>(shard.size_bytes));
  };
  const auto report = lading::materialize(request);
  if (!report) return complain(report.error().problems, report.error().exit_code());
  for (const lading::LoadedTensor& tensor : report->tensors) {
    const lading::DestinationInfo& info = tensor.destination;
    std::printf("rank %llu %s %s of %s, checksum %016llx\n", static_cast<unsigned long long>(info.rank),
                info.name.c_str(), info.local_shape.text().c_str(), info.shape.text().c_str(),
                static_cast<unsigned long long>(checksum(shards.at({info.rank, info.name}))));
  }
  return 0;
}
