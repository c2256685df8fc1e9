// The buffered backends, and the transport of plain system calls.
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "io/read_backend.h"
#include "io/transport.h"

namespace lading::io {
namespace {

class PreadTransport final : public Transport {
 public:
  ReadSome read(int fd, std::uint64_t offset_bytes, std::span<const iovec> segments) override {
    const ssize_t got =
        ::preadv(fd, segments.data(), static_cast<int>(segments.size()), static_cast<off_t>(offset_bytes));
    if (got < 0) return {.bytes = 0, .error = errno};
    return {.bytes = static_cast<std::size_t>(got), .error = 0};
  }
};

class BufferedBackend final : public ReadBackend {
 public:
  BufferedBackend(std::unique_ptr<Transport> transport, std::string_view name)
      : transport_(std::move(transport)), name_(name) {}

  [[nodiscard]] std::string_view name() const override { return name_; }

  [[nodiscard]] ReadSome read_some(const File& file, std::uint64_t offset_bytes, std::span<char> out) override {
    if (out.empty()) return {};
    const iovec whole{out.data(), out.size()};
    return transport_->read(file.descriptor(), offset_bytes, {&whole, 1});
  }

 private:
  std::unique_ptr<Transport> transport_;
  std::string name_;
};

}  // namespace

ReadSome PreadBackend::read_some(const File& file, std::uint64_t offset_bytes, std::span<char> out) {
  const ssize_t got = ::pread(file.descriptor(), out.data(), out.size(), static_cast<off_t>(offset_bytes));
  if (got < 0) return {.bytes = 0, .error = errno};
  return {.bytes = static_cast<std::size_t>(got), .error = 0};
}

std::unique_ptr<Transport> make_pread_transport() { return std::make_unique<PreadTransport>(); }

std::unique_ptr<ReadBackend> make_buffered_over(std::unique_ptr<Transport> transport, std::string_view name) {
  return std::make_unique<BufferedBackend>(std::move(transport), name);
}

std::unique_ptr<ReadBackend> make_direct_backend(Notes& notes) {
  return make_direct_over(make_pread_transport(), notes, "direct");
}

std::unique_ptr<ReadBackend> make_uring_backend(Notes& notes) {
  return make_buffered_over(make_uring_transport(notes, {}), "uring");
}

std::unique_ptr<ReadBackend> make_uring_direct_backend(Notes& notes) {
  return make_direct_over(make_uring_transport(notes, {}), notes, "uring_direct");
}

}  // namespace lading::io
