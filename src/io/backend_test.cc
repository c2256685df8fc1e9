// One suite for every backend, on a disk and in memory; then what is particular to some.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "io/read_backend.h"
#include "io/read_exact.h"
#include "io/transport.h"
#include "support/sanitizers.h"
#include "support/temp_dir.h"

namespace lading::io {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::size_t kBlock = kDirectBlockBytes;

int refuse_rings(unsigned, ::io_uring*, unsigned) { return -EPERM; }

// As a file system that opens with O_DIRECT and then does not read so.
class NoDirectReads final : public Transport {
 public:
  ReadSome read(int fd, std::uint64_t offset_bytes, std::span<const iovec> segments) override {
    if ((::fcntl(fd, F_GETFL) & O_DIRECT) != 0) {
      ++refused;
      return {.bytes = 0, .error = EINVAL};
    }
    return inner_->read(fd, offset_bytes, segments);
  }
  inline static std::atomic<int> refused = 0;

 private:
  std::unique_ptr<Transport> inner_ = make_pread_transport();
};

std::unique_ptr<Transport> refused_uring(Notes& notes) {
  return make_uring_transport(notes, {.max_rings = 4, .queue_init = &refuse_rings});
}

struct Way {
  std::string name;
  std::function<std::unique_ptr<ReadBackend>(Notes&)> make;
};

const Way kWays[] = {
    {"pread", [](Notes&) { return std::make_unique<PreadBackend>(); }},
    {"direct", [](Notes& notes) { return make_direct_backend(notes); }},
    {"uring", [](Notes& notes) { return make_uring_backend(notes); }},
    {"uring_direct", [](Notes& notes) { return make_uring_direct_backend(notes); }},
    {"uring_refused", [](Notes& notes) { return make_buffered_over(refused_uring(notes), "uring"); }},
    {"uring_direct_refused",
     [](Notes& notes) { return make_direct_over(refused_uring(notes), notes, "uring_direct"); }},
    {"direct_refused",
     [](Notes& notes) { return make_direct_over(std::make_unique<NoDirectReads>(), notes, "direct"); }},
    {"one_ring",
     [](Notes& notes) {
       return make_buffered_over(make_uring_transport(notes, {.max_rings = 1, .queue_init = nullptr}), "uring");
     }},
};

std::string noise(std::size_t size) {
  std::mt19937_64 random(size);
  std::string bytes(size, '\0');
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(random() >> 40);
  return bytes;
}

Result<File> open_file(const std::string& path) {
  return File::adopt(Fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC)), path);
}

// Memory at a chosen distance from a block boundary, with a fence on both sides.
class Buffer {
 public:
  Buffer(std::size_t shift, std::size_t size)
      : memory_(static_cast<char*>(std::aligned_alloc(kBlock, (shift + size + 3 * kBlock) / kBlock * kBlock))),
        out_(memory_ + kBlock + shift, size) {
    std::fill(memory_, out_.data() + size + kFence, kMark);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { std::free(memory_); }

  [[nodiscard]] std::span<char> out() const { return out_; }
  [[nodiscard]] std::string text() const { return {out_.data(), out_.size()}; }
  [[nodiscard]] bool fences_stand() const {
    for (std::size_t i = 1; i <= kFence; ++i) {
      if (*(out_.data() - i) != kMark || *(out_.data() + out_.size() + i - 1) != kMark) return false;
    }
    return true;
  }

 private:
  static constexpr char kMark = 'M';
  static constexpr std::size_t kFence = 64;
  char* memory_;
  std::span<char> out_;
};

class BackendTest : public ::testing::TestWithParam<std::tuple<Way, bool>> {
 protected:
  BackendTest() {
    if (std::get<1>(GetParam())) ::setenv("TMPDIR", "/dev/shm", 1);
    dir_ = std::make_unique<test::TempDir>();
    ::unsetenv("TMPDIR");
    backend_ = std::get<0>(GetParam()).make(notes_);
  }

  void make_file(std::size_t size) {
    content_ = noise(size);
    auto file = open_file(dir_->write("f", content_));
    ASSERT_TRUE(file.has_value());
    file_ = std::make_unique<File>(*std::move(file));
  }

  void expect_exact(std::size_t offset, std::size_t size, std::size_t shift) {
    const Buffer buffer(shift, size);
    const auto result = read_exact(*file_, *backend_, offset, buffer.out());
    ASSERT_TRUE(result.has_value()) << result.error().text();
    ASSERT_TRUE(content_.compare(offset, size, buffer.text()) == 0) << offset << "+" << size << " at " << shift;
    ASSERT_TRUE(buffer.fences_stand()) << offset << "+" << size << " at " << shift;
  }

  Notes notes_;
  std::unique_ptr<test::TempDir> dir_;
  std::unique_ptr<ReadBackend> backend_;
  std::string content_;
  std::unique_ptr<File> file_;
};

INSTANTIATE_TEST_SUITE_P(Backends, BackendTest, ::testing::Combine(::testing::ValuesIn(kWays), ::testing::Bool()),
                         [](const auto& chosen) {
                           return std::get<0>(chosen.param).name +
                                  (std::get<1>(chosen.param) ? "_in_memory" : "_on_disk");
                         });

TEST_P(BackendTest, WholeFile) {
  for (const std::size_t size : {std::size_t{1}, kBlock - 1, kBlock, kBlock + 1, 5 * kBlock, std::size_t{300'007}}) {
    make_file(size);
    expect_exact(0, size, 0);
    expect_exact(0, size, 1);
  }
}

// Offsets, lengths and addresses on both sides of block boundaries, and on both sides of what is "small".
TEST_P(BackendTest, Fault32_OddOffsetsLengthsAndAddresses) {
  make_file(40 * kBlock + 777);
  const std::size_t offsets[] = {0, 1, 511, 512, kBlock - 1, kBlock, kBlock + 1, 3 * kBlock + 64};
  const std::size_t sizes[] = {1,           7,           kBlock - 1,  kBlock,          kBlock + 1,
                               15 * kBlock, 16 * kBlock, 17 * kBlock, 17 * kBlock + 5, 30 * kBlock - 1};
  const std::size_t shifts[] = {0, 1, 64, 512, kBlock - 1};
  for (const std::size_t offset : offsets) {
    for (const std::size_t size : sizes) {
      for (const std::size_t shift : shifts) expect_exact(offset, size, shift);
      expect_exact(offset, size, offset % kBlock);  // congruent
    }
  }
}

TEST_P(BackendTest, TheTailOfTheFile) {
  make_file(40 * kBlock + 777);
  for (const std::size_t size : {std::size_t{1}, std::size_t{776}, std::size_t{777}, std::size_t{778}, kBlock,
                                 2 * kBlock, 17 * kBlock, 20 * kBlock + 777}) {
    const std::size_t offset = content_.size() - size;
    for (const std::size_t shift : {std::size_t{0}, std::size_t{1}, offset % kBlock}) expect_exact(offset, size, shift);
  }
}

TEST_P(BackendTest, RandomReads) {
  make_file(1'000'003);
  std::mt19937_64 random(7);
  for (int i = 0; i < 300; ++i) {
    const std::size_t offset = random() % content_.size();
    const std::size_t size = 1 + random() % (content_.size() - offset);
    expect_exact(offset, size, random() % kBlock);
  }
}

TEST_P(BackendTest, PastTheEndIsZeroBytesAndNoError) {
  make_file(kBlock + 10);
  for (const std::size_t offset : {kBlock + 10, kBlock + 11, 2 * kBlock, 9 * kBlock + 1}) {
    for (const std::size_t size : {std::size_t{1}, kBlock, 40 * kBlock}) {
      const Buffer buffer(3, size);
      const ReadSome got = backend_->read_some(*file_, offset, buffer.out());
      EXPECT_EQ(got.bytes, 0U) << offset;
      EXPECT_EQ(got.error, 0) << offset;
    }
  }
  // Across the end: what is there, then nothing; as an exact read an error that knows where.
  for (const std::size_t size : {2 * kBlock, 40 * kBlock}) {
    for (const std::size_t shift : {0U, 5U}) {
      const Buffer buffer(shift, size);
      const auto result = read_exact(*file_, *backend_, 5, buffer.out());
      ASSERT_FALSE(result.has_value());
      EXPECT_EQ(result.error().code, Code::kFileTruncated);
      EXPECT_EQ(result.error().bytes->begin, kBlock + 10);
      EXPECT_EQ(result.error().bytes->end, 5 + size);
      EXPECT_TRUE(content_.compare(5, kBlock + 5, buffer.text().substr(0, kBlock + 5)) == 0);
      EXPECT_TRUE(buffer.fences_stand());
    }
  }
}

TEST_P(BackendTest, ZeroBytesAndImpossibleOffsets) {
  make_file(100);
  const Buffer nothing(0, 0);
  for (const std::uint64_t offset : {0U, 50U, 100U, 200U}) {
    const ReadSome got = backend_->read_some(*file_, offset, nothing.out());
    EXPECT_EQ(got.bytes, 0U);
    EXPECT_EQ(got.error, 0);
    EXPECT_TRUE(read_exact(*file_, *backend_, offset, nothing.out()).has_value());
  }
  const Buffer two(0, 2);
  EXPECT_FALSE(read_exact(*file_, *backend_, (std::uint64_t{1} << 63) - 3, two.out()).has_value());
  EXPECT_FALSE(read_exact(*file_, *backend_, (std::uint64_t{1} << 63) - 1, two.out()).has_value());
}

TEST_P(BackendTest, BigReads) {
  make_file((std::size_t{20} << 20) + 321);
  expect_exact(0, content_.size(), 0);
  expect_exact(1, content_.size() - 1, 0);
  expect_exact(1, content_.size() - 1, 1);
  expect_exact(4097, std::size_t{8} << 20, 64);
  expect_exact(std::size_t{3} << 20, std::size_t{8} << 20, 0);
}

TEST_P(BackendTest, ManyThreadsAtOnce) {
  make_file((std::size_t{4} << 20) + 5);
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(t);
      for (int i = 0; i < 40; ++i) {
        const std::size_t offset = random() % content_.size();
        const std::size_t size = 1 + random() % std::min<std::size_t>(content_.size() - offset, 2'500'000);
        const Buffer buffer(random() % 2 == 0 ? offset % kBlock : random() % kBlock, size);
        if (!read_exact(*file_, *backend_, offset, buffer.out()) ||
            content_.compare(offset, size, buffer.text()) != 0 || !buffer.fences_stand()) {
          ++wrong;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_LE(notes_.take().size(), 2U) << "one note of a kind, however many threads and reads";
}

TEST_P(BackendTest, Fault37_TruncatedBetweenAndDuringReads) {
  make_file(std::size_t{8} << 20);
  std::atomic<bool> stop = false;
  std::thread writer([&] {
    const std::string path = dir_->path("f");
    while (!stop) {
      EXPECT_EQ(::truncate(path.c_str(), 100'000), 0);
      EXPECT_EQ(::truncate(path.c_str(), 8 << 20), 0);
    }
  });
  for (int i = 0; i < 30; ++i) {
    const Buffer buffer(0, content_.size());
    const auto result = read_exact(*file_, *backend_, 0, buffer.out());
    if (!result) {
      EXPECT_EQ(result.error().code, Code::kFileTruncated) << result.error().text();
    }
  }
  stop = true;
  writer.join();
  ASSERT_EQ(::truncate(dir_->path("f").c_str(), 100'000), 0);
  const Buffer buffer(0, content_.size());
  const auto result = read_exact(*file_, *backend_, 0, buffer.out());
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code, Code::kFileTruncated);
  EXPECT_EQ(result.error().bytes->begin, 100'000U);
  EXPECT_FALSE(file_->check_unchanged().has_value());
}

TEST_P(BackendTest, ADescriptorThatMayNotReadIsAnError) {
  const std::string path = dir_->write("f", noise(200'000));
  const auto file = File::adopt(Fd(::open(path.c_str(), O_PATH | O_CLOEXEC)), path);
  ASSERT_TRUE(file.has_value());
  const Buffer buffer(0, 100'000);
  const ReadSome got = backend_->read_some(*file, 0, buffer.out());
  if (std::get<0>(GetParam()).name.find("direct") == std::string::npos) {
    EXPECT_EQ(got.error, EBADF);
  } else {
    EXPECT_TRUE(got.error == EBADF || got.bytes > 0) << "the direct descriptor is opened anew, and may read";
  }
}

TEST(UringTransport, Fault41_ARefusedRingIsNotedOnceAndNotAskedForAgain) {
  const test::TempDir dir;
  const std::string content = noise(100'000);
  const auto file = open_file(dir.write("f", content));
  ASSERT_TRUE(file.has_value());
  Notes notes;
  static std::atomic<int> asked = 0;
  const auto refuse = [](unsigned, ::io_uring*, unsigned) {
    ++asked;
    return -ENOSYS;
  };
  const auto backend = make_buffered_over(make_uring_transport(notes, {.max_rings = 4, .queue_init = refuse}), "uring");
  for (int i = 0; i < 5; ++i) {
    const Buffer buffer(0, content.size());
    ASSERT_TRUE(read_exact(*file, *backend, 0, buffer.out()).has_value());
    EXPECT_EQ(buffer.text(), content);
  }
  EXPECT_LE(asked, 1);
  EXPECT_THAT(notes.take(), ElementsAre(HasSubstr("lading reads with preadv")));
  EXPECT_THAT(notes.take(), IsEmpty());
}

std::size_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

TEST(UringTransport, RingsEndWithTheBackendNotWithTheThreads) {
  const test::TempDir dir;
  const std::string content = noise(3'000'000);
  const auto file = open_file(dir.write("f", content));
  ASSERT_TRUE(file.has_value());
  const std::size_t before = open_descriptors();
  {
    Notes notes;
    const auto backend = make_uring_backend(notes);
    for (int round = 0; round < 20; ++round) {
      std::vector<std::thread> threads;
      for (int t = 0; t < 3; ++t) {
        threads.emplace_back([&] {
          const Buffer buffer(0, content.size());
          EXPECT_TRUE(read_exact(*file, *backend, 0, buffer.out()).has_value());
        });
      }
      for (std::thread& thread : threads) thread.join();
    }
    EXPECT_LE(open_descriptors(), before + 3) << "as many rings as there were readers at once";
  }
  EXPECT_EQ(open_descriptors(), before);
}

class DirectTest : public ::testing::Test {
 protected:
  void read_all(ReadBackend& backend, const File& file, const std::string& content) {
    const Buffer buffer(0, content.size());
    const auto result = read_exact(file, backend, 0, buffer.out());
    ASSERT_TRUE(result.has_value()) << result.error().text();
    EXPECT_TRUE(buffer.text() == content);
  }
  test::TempDir dir_;
  Notes notes_;
};

TEST_F(DirectTest, ReallyReadsWithODirect) {
  const std::string content = noise(200'000);
  const auto file = open_file(dir_.write("f", content));
  ASSERT_TRUE(file.has_value());
  if (file->direct_descriptor() < 0) GTEST_SKIP() << "this file system has no O_DIRECT";
  EXPECT_NE(::fcntl(file->direct_descriptor(), F_GETFL) & O_DIRECT, 0);
  EXPECT_NE(::fcntl(file->direct_descriptor(), F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_NE(file->direct_descriptor(), file->descriptor());
  EXPECT_EQ(::fcntl(file->descriptor(), F_GETFL) & O_DIRECT, 0);
  const auto backend = make_direct_backend(notes_);
  read_all(*backend, *file, content);
  EXPECT_THAT(notes_.take(), IsEmpty());
}

TEST_F(DirectTest, Fault41_EinvalIsNotedOnceAndNotTriedAgain) {
  const std::string content = noise(200'000);
  const auto file = open_file(dir_.write("f", content));
  const auto other = open_file(dir_.write("g", content));
  ASSERT_TRUE(file.has_value() && other.has_value());
  if (file->direct_descriptor() < 0) GTEST_SKIP() << "this file system has no O_DIRECT";
  NoDirectReads::refused = 0;
  const auto backend = make_direct_over(std::make_unique<NoDirectReads>(), notes_, "direct");
  for (int i = 0; i < 3; ++i) read_all(*backend, *file, content);
  EXPECT_EQ(NoDirectReads::refused, 1);
  read_all(*backend, *other, content);
  EXPECT_THAT(notes_.take(), ElementsAre(HasSubstr("O_DIRECT does not work")));
}

TEST_F(DirectTest, Fault44_NoDescriptorLeftMeansBuffered) {
  if (LADING_HAS_ASAN) GTEST_SKIP() << "UBSan, which comes with ASan here, needs descriptors to look up classes";
  const std::string content = noise(200'000);
  const auto file = open_file(dir_.write("f", content));
  ASSERT_TRUE(file.has_value());
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const Fd lowest_free(::dup(file->descriptor()));
  rlimit none = before;
  none.rlim_cur = static_cast<rlim_t>(lowest_free.get());
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const auto backend = make_direct_backend(notes_);
  read_all(*backend, *file, content);
  const auto rings = make_uring_backend(notes_);
  read_all(*rings, *file, content);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(file->direct_descriptor(), -EMFILE);
  EXPECT_THAT(notes_.take(), ElementsAre(HasSubstr("(24)"), HasSubstr("reads with preadv")));
}

}  // namespace
}  // namespace lading::io
