// Casts the elements on standard input and writes them to standard output. For tests/casts.
//
//   cast_probe FROM TO PATH    dtype names as in safetensors; PATH as cast_probe paths prints them
//   cast_probe paths           the instruction sets of this machine, one per line
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <string_view>
#include <vector>

#include "device/cast.h"
#include "device/cast_paths.h"

namespace lading::device {
namespace {

int refuse(std::string_view why) {
  fmt::print(stderr, "cast_probe: {}\n", why);
  return EXIT_FAILURE;
}

std::vector<std::byte> read_all() {
  std::vector<std::byte> bytes;
  std::byte block[1 << 16];
  while (const std::size_t got = std::fread(block, 1, sizeof(block), stdin)) {
    bytes.insert(bytes.end(), std::begin(block), std::begin(block) + got);
  }
  return bytes;
}

int answer(std::string_view from_name, std::string_view to_name, std::string_view path_name) {
  const std::optional<DType> from = dtype_from_name(from_name);
  const std::optional<DType> to = dtype_from_name(to_name);
  if (!from || !to) return refuse("no such dtype");
  const std::vector<CastPath> paths = cast_paths();
  const auto path = std::find_if(paths.begin(), paths.end(), [&](const CastPath& p) { return p.name == path_name; });
  if (path == paths.end()) return refuse("no such path on this machine");
  use_cast_path(*path);
  const Cast cast = find_cast(*from, *to);
  if (cast == nullptr) return refuse("no such cast");

  const std::vector<std::byte> source = read_all();
  const std::size_t elems = source.size() / (bits(*from) / 8);
  std::vector<std::byte> target(elems * (bits(*to) / 8));
  cast(source.data(), target.data(), elems);
  return std::fwrite(target.data(), 1, target.size(), stdout) == target.size() ? EXIT_SUCCESS : refuse("cannot write");
}

int list_paths() {
  for (const CastPath& path : cast_paths()) fmt::print("{}\n", path.name);
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace lading::device

int main(int count, char** words) {
  using namespace lading::device;
  if (count == 2 && std::string_view(words[1]) == "paths") return list_paths();
  if (count != 4) return refuse("say FROM TO PATH, or paths");
  return answer(words[1], words[2], words[3]);
}
