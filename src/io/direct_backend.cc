// Reads past the page cache. The kernel moves whole blocks to aligned addresses only, so a request is widened to
// blocks, and the blocks land in up to three segments of one system call:
//
//   address congruent to offset     [head block on the stack][straight into `out`][tail block on the stack]
//   any other address               [blocks inside `out`, moved into place afterwards][last blocks on the stack]
//   small                           [all on the stack]
//
// So there is no pool of bounce buffers to wait for, and no memory beyond the caller's and the stack's.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>

#include "base/checked.h"
#include "base/text.h"
#include "io/transport.h"

namespace lading::io {
namespace {

constexpr std::size_t kBlock = kDirectBlockBytes;
constexpr std::size_t kStackBytes = 16 * kBlock;

constexpr std::uint64_t down(std::uint64_t value) { return value - value % kBlock; }
constexpr std::uint64_t up(std::uint64_t value) { return down(value + kBlock - 1); }

struct Stack {
  alignas(kBlock) std::array<char, kStackBytes> bytes;  // filled by the kernel before it is looked at
};

// A request widened to blocks.
struct Blocks {
  std::uint64_t begin;  // in the file, a multiple of the block
  std::size_t skip;     // bytes of the first block that were not asked for
  std::size_t size;     // a multiple of the block
};

class Segments {
 public:
  void add(char* place, std::size_t size) {
    if (size > 0) list_[count_++] = {place, size};
  }
  [[nodiscard]] std::span<const iovec> all() const { return {list_.data(), count_}; }

 private:
  std::array<iovec, 3> list_{};
  std::size_t count_ = 0;
};

class DirectBackend final : public ReadBackend {
 public:
  DirectBackend(std::unique_ptr<Transport> transport, Notes& notes, std::string_view name)
      : transport_(std::move(transport)), notes_(notes), name_(name) {}

  [[nodiscard]] std::string_view name() const override { return name_; }

  [[nodiscard]] ReadSome read_some(const File& file, std::uint64_t offset_bytes, std::span<char> out) override {
    if (out.empty()) return {};
    const int fd = file.direct_descriptor();
    if (fd < 0) {
      note(file, -fd);
      return read_buffered(file, offset_bytes, out);
    }
    // Too near to the largest offset to be widened: no such byte exists, and the buffered read says so.
    if (!checked_add(offset_bytes, out.size() + 2 * kBlock)) return read_buffered(file, offset_bytes, out);
    const Blocks blocks = widen(offset_bytes, out.size());
    const ReadSome got = read_blocks(fd, blocks, out);
    if (got.error != EINVAL) return got;
    file.refuse_direct(EINVAL);
    note(file, EINVAL);
    return read_buffered(file, offset_bytes, out);
  }

 private:
  static Blocks widen(std::uint64_t offset_bytes, std::size_t size) {
    const std::uint64_t begin = down(offset_bytes);
    const std::size_t skip = offset_bytes - begin;
    return {begin, skip, up(skip + size)};
  }

  ReadSome read_blocks(int fd, const Blocks& blocks, std::span<char> out) {
    if (blocks.size <= kStackBytes) return read_small(fd, blocks, out);
    const std::uint64_t address = reinterpret_cast<std::uintptr_t>(out.data());
    if (address % kBlock == blocks.skip) return read_congruent(fd, blocks, out);
    return read_shifted(fd, blocks, out);
  }

  // What arrived of what was asked for, given what arrived of the blocks.
  static std::size_t asked_part(std::size_t arrived, const Blocks& blocks, std::size_t asked) {
    return arrived <= blocks.skip ? 0 : std::min(arrived - blocks.skip, asked);
  }

  ReadSome read_small(int fd, const Blocks& blocks, std::span<char> out) {
    Stack stack;
    Segments segments;
    segments.add(stack.bytes.data(), blocks.size);
    const ReadSome got = transport_->read(fd, blocks.begin, segments.all());
    const std::size_t part = asked_part(got.bytes, blocks, out.size());
    if (part > 0) std::memcpy(out.data(), stack.bytes.data() + blocks.skip, part);
    return {.bytes = part, .error = got.error};
  }

  ReadSome read_congruent(int fd, const Blocks& blocks, std::span<char> out) {
    Stack stack;
    char* const head = stack.bytes.data();
    char* const tail = head + kBlock;
    const std::size_t head_bytes = blocks.skip == 0 ? 0 : kBlock - blocks.skip;
    const std::size_t body_bytes = down(out.size() - head_bytes);
    const std::size_t tail_bytes = out.size() - head_bytes - body_bytes;
    Segments segments;
    if (head_bytes > 0) segments.add(head, kBlock);
    segments.add(out.data() + head_bytes, body_bytes);
    if (tail_bytes > 0) segments.add(tail, kBlock);
    const ReadSome got = transport_->read(fd, blocks.begin, segments.all());
    const std::size_t part = asked_part(got.bytes, blocks, out.size());
    std::memcpy(out.data(), head + blocks.skip, std::min(part, head_bytes));
    if (part > head_bytes + body_bytes) {
      std::memcpy(out.data() + head_bytes + body_bytes, tail, part - head_bytes - body_bytes);
    }
    return {.bytes = part, .error = got.error};
  }

  ReadSome read_shifted(int fd, const Blocks& blocks, std::span<char> out) {
    Stack stack;
    const std::uint64_t address = reinterpret_cast<std::uintptr_t>(out.data());
    char* const inside = out.data() + (up(address) - address);
    const std::size_t inside_bytes = std::min(blocks.size, down(address + out.size()) - up(address));
    Segments segments;
    segments.add(inside, inside_bytes);
    segments.add(stack.bytes.data(), blocks.size - inside_bytes);  // four blocks at most
    const ReadSome got = transport_->read(fd, blocks.begin, segments.all());
    const std::size_t part = asked_part(got.bytes, blocks, out.size());
    const std::size_t moved = std::min(part, inside_bytes - blocks.skip);
    std::memmove(out.data(), inside + blocks.skip, moved);
    if (part > moved) std::memcpy(out.data() + moved, stack.bytes.data(), part - moved);
    return {.bytes = part, .error = got.error};
  }

  ReadSome read_buffered(const File& file, std::uint64_t offset_bytes, std::span<char> out) {
    const iovec whole{out.data(), out.size()};
    return transport_->read(file.descriptor(), offset_bytes, {&whole, 1});
  }

  void note(const File& file, int error) {
    notes_.once("direct",
                fmt::format("{}: O_DIRECT does not work for this file ({}); lading reads it through the page cache",
                            quote(file.path()), errno_text(error)));
  }

  std::unique_ptr<Transport> transport_;
  Notes& notes_;
  std::string name_;
};

}  // namespace

std::unique_ptr<ReadBackend> make_direct_over(std::unique_ptr<Transport> transport, Notes& notes,
                                              std::string_view name) {
  return std::make_unique<DirectBackend>(std::move(transport), notes, name);
}

}  // namespace lading::io
