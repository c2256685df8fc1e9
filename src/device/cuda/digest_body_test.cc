#include "device/cuda/digest_body.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "device/digest.h"

namespace lading::device::cuda {
namespace {

Digest digest_by_body(const DigestRange& range) {
  Digest all;
  for (std::uint32_t thread = 0; thread < kBlockThreads; ++thread) {
    const DigestSums sums =
        digest_body(range, reinterpret_cast<std::uint64_t>(&kDigestTables), {thread, kBlockThreads});
    all += Digest{{sums.lane0, sums.lane1}};
  }
  return all;
}

void expect_digest(std::span<const std::byte> bytes, std::uint64_t global_begin_bytes) {
  const DigestRange range = {reinterpret_cast<std::uint64_t>(bytes.data()), bytes.size(), global_begin_bytes, 0};
  EXPECT_EQ(digest_by_body(range), digest_of(bytes, global_begin_bytes))
      << bytes.size() << " bytes at " << global_begin_bytes << ", address " << range.memory % 16;
}

std::vector<std::byte> noise(std::size_t size) {
  std::mt19937_64 random(size);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

TEST(DigestBody, AnySizeAtAnyPlaceAndAddress) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 1500; ++i) {
    const std::size_t size = random() % (i % 3 == 0 ? 40 : i % 3 == 1 ? 5000 : 30000);
    const std::size_t offset = random() % 32;
    // Of its own size, so that a sanitizer sees a byte too many.
    const std::vector<std::byte> bytes = noise(size + offset);
    const std::uint64_t place = i % 2 == 0 ? random() % 9000 : random() >> 8;
    expect_digest(std::span(bytes).subspan(offset), place);
  }
}

TEST(DigestBody, WholeJobs) {
  const std::vector<std::byte> bytes = noise(kJobBytes + 64);
  for (const unsigned offset : {0U, 4U, 8U, 15U}) {
    for (const unsigned place : {0U, 4096U, 4100U, 16U, 7U}) {
      expect_digest(std::span(bytes).subspan(offset, kJobBytes), place);
    }
  }
}

}  // namespace
}  // namespace lading::device::cuda
