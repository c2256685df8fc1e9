// Loads a checkpoint into memory of its own, one vector per tensor, and says what it now holds.
//
//   load_into_vectors CHECKPOINT      a safetensors file, an index, a directory, or "org/name" in the Hugging Face
//   cache
#include <lading/load.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace {

// FNV-1a of what is in our memory; any other program can compute it to compare.
std::uint64_t checksum(std::span<const std::byte> bytes) {
  std::uint64_t sum = 0xcbf29ce484222325;
  for (const std::byte byte : bytes) sum = (sum ^ std::to_integer<std::uint64_t>(byte)) * 0x100000001b3;
  return sum;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: load_into_vectors CHECKPOINT\n");
    return 2;
  }
  std::map<std::string, std::vector<std::byte>> tensors;
  lading::LoadRequest request;
  request.plan.checkpoint.path = argv[1];
  request.memory = [&](const lading::DestinationInfo& destination) -> lading::Result<std::span<std::byte>> {
    return std::span(tensors[destination.name] = std::vector<std::byte>(destination.size_bytes));
  };
  const auto report = lading::materialize(request);
  if (!report) {
    for (const lading::Error& error : report.error().problems) std::fprintf(stderr, "%s\n", error.text().c_str());
    return static_cast<int>(report.error().exit_code());
  }
  for (const lading::LoadedTensor& tensor : report->tensors) {
    const lading::DestinationInfo& info = tensor.destination;
    const std::vector<std::byte>& bytes = tensors.at(info.name);
    std::printf("%s %s %s %zu bytes, digest %s, checksum %016llx\n", info.name.c_str(),
                std::string(lading::name(info.dtype)).c_str(), info.local_shape.text().c_str(), bytes.size(),
                tensor.digest.c_str(), static_cast<unsigned long long>(checksum(bytes)));
  }
  return 0;
}
