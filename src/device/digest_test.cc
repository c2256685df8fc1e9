#include "device/digest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <random>
#include <set>
#include <vector>

#include "device/digest_keys.h"
#include "device/random_test_support.h"

namespace lading::device {
namespace {

using Bytes = std::vector<std::byte>;

Bytes random_bytes(std::size_t size, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Bytes bytes(size);
  for (auto& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

Digest whole(const Bytes& bytes) { return digest_of(bytes, 0); }

// The definition, a byte at a time.
Digest reference(std::span<const std::byte> bytes, std::uint64_t begin) {
  Digest digest;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const std::uint64_t word = (begin + i) / 4;
    const std::uint64_t value = std::to_integer<std::uint64_t>(bytes[i]) << (8 * ((begin + i) % 4));
    for (std::size_t lane = 0; lane < 2; ++lane) {
      digest.lanes[lane] += value * kDigestTables.of_lane[lane][word % 1024] * digest_block_key(lane, word / 1024);
    }
  }
  return digest;
}

TEST(Digest, TheKeysAreThoseOfTheDocument) {
  EXPECT_EQ(splitmix64(0, 0), 0xe220a8397b1dcdafU) << "splitmix64's published first number";
  std::set<std::uint32_t> entries;
  std::set<std::uint64_t> keys;
  for (std::size_t lane = 0; lane < 2; ++lane) {
    for (const std::uint32_t entry : kDigestTables.of_lane[lane]) {
      EXPECT_EQ(entry % 2, 1U);
      EXPECT_TRUE(entries.insert(entry).second) << "twice in the tables: " << entry;
    }
    for (std::uint64_t block = 0; block < 10'000; ++block) {
      EXPECT_EQ(digest_block_key(lane, block) % 2, 1U);
      EXPECT_TRUE(keys.insert(digest_block_key(lane, block)).second);
    }
  }
  EXPECT_EQ(kDigestTables.of_lane[0][0], 0x2cb0f69fU);
  EXPECT_EQ(kDigestTables.of_lane[1][1023], 0x5928021bU);
  EXPECT_EQ(digest_block_key(0, 0), 0x433ebf21b5f33f3U);
  EXPECT_EQ(digest_block_key(1, 1), 0x10fe4cbd474c57e9U);
}

// Frozen: a digest that changes makes every ledger that was ever written useless.
TEST(Digest, VectorsOfTheDocument) {
  Bytes bytes(10'000);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 256);
  const std::span<const std::byte> all(bytes);
  EXPECT_EQ(digest_of({}, 5).text(), "00000000000000000000000000000000");
  EXPECT_EQ(digest_of(all.subspan(1, 1), 0).text(), "4ce9a061c1c9697bfb17e12a0a0e0ab9");
  EXPECT_EQ(digest_of(all.first(8), 4096).text(), "03d4759fcfeec11c9467797b369c21c4");
  EXPECT_EQ(digest_of(all, 0).text(), "2ef4692cb2ea71ccc295005af984d22e");
  EXPECT_EQ(digest_of(all, 0x123456789abcdefU).text(), "77a7a4b4c892dce62a51a70c5b6f23a8");
}

TEST(Digest, EveryTargetIsTheDefinition) {
  const Bytes bytes = random_bytes(70'000, 1);
  for_each_target([&](const char* target) {
    std::mt19937_64 random(2);
    for (int trial = 0; trial < 400; ++trial) {
      const std::size_t size = trial < 300 ? random() % 300 : random() % 60'000;
      const std::size_t offset = random() % 9'000;
      const std::uint64_t begin = trial % 3 == 0 ? random() >> (random() % 30) : random() % 20'000;
      const auto part = std::span(bytes).subspan(offset, size);
      ASSERT_EQ(digest_of(part, begin), reference(part, begin)) << target << " " << size << " at " << begin;
    }
  });
}

TEST(Digest, AnyCutsInAnyOrderAddUp) {
  std::mt19937_64 random(3);
  for (int trial = 0; trial < 300; ++trial) {
    const Bytes bytes = random_bytes(1 + random() % 40'000, random());
    const std::uint64_t begin = random() % 100'000;
    std::vector<std::size_t> cuts = {0, bytes.size()};
    for (std::uint64_t i = random() % 40; i > 0; --i) cuts.push_back(random() % (bytes.size() + 1));
    std::sort(cuts.begin(), cuts.end());
    std::vector<std::size_t> order(cuts.size() - 1);
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), random);
    Digest sum;
    for (const std::size_t i : order) {
      sum += digest_of(std::span(bytes).subspan(cuts[i], cuts[i + 1] - cuts[i]), begin + cuts[i]);
    }
    ASSERT_EQ(sum, digest_of(bytes, begin));
  }
}

TEST(Digest, ColumnsOfAMatrixAddUpToIt) {
  constexpr std::size_t kRows = 37;
  constexpr std::size_t kRowBytes = 1'366;
  const Bytes bytes = random_bytes(kRows * kRowBytes, 4);
  Digest sum;
  for (const auto& [begin, end] : {std::pair<std::size_t, std::size_t>{0, 455}, {455, 910}, {910, kRowBytes}}) {
    for (std::size_t row = 0; row < kRows; ++row) {
      const std::size_t at = row * kRowBytes + begin;
      sum += digest_of(std::span(bytes).subspan(at, end - begin), at);
    }
  }
  EXPECT_EQ(sum, whole(bytes));
}

TEST(Digest, AChangeOfOneWordAlwaysShowsInBothLanes) {
  Bytes bytes = random_bytes(20'000, 5);
  const Digest before = whole(bytes);
  std::mt19937_64 random(6);
  for (int trial = 0; trial < 2'000; ++trial) {
    const std::size_t at = random() % (bytes.size() / 4) * 4;
    std::uint32_t word = 0;
    std::memcpy(&word, &bytes[at], 4);
    const std::uint32_t changed =
        word ^ (trial % 2 == 0 ? 1U << (random() % 32) : static_cast<std::uint32_t>(random() | 1));
    std::memcpy(&bytes[at], &changed, 4);
    const Digest after = whole(bytes);
    ASSERT_NE(after.lanes[0], before.lanes[0]);
    ASSERT_NE(after.lanes[1], before.lanes[1]);
    std::memcpy(&bytes[at], &word, 4);
  }
  EXPECT_EQ(whole(bytes), before);
}

// What loaders get wrong, many times each with other sizes and places.
class DigestAccident : public testing::Test {
 protected:
  static constexpr std::size_t kSize = 64 << 10;

  void always_shows(const std::function<void(Bytes&, std::mt19937_64&)>& accident) {
    std::mt19937_64 random(7);
    for (int trial = 0; trial < 300; ++trial) {
      const Bytes before = random_bytes(kSize, random());
      Bytes after = before;
      accident(after, random);
      if (after == before) continue;
      const Digest a = whole(before);
      const Digest b = whole(after);
      ASSERT_NE(a.lanes[0], b.lanes[0]) << trial;
      ASSERT_NE(a.lanes[1], b.lanes[1]) << trial;
    }
  }

  static void swap(Bytes& bytes, std::size_t a, std::size_t b, std::size_t size) {
    std::swap_ranges(bytes.begin() + static_cast<std::ptrdiff_t>(a),
                     bytes.begin() + static_cast<std::ptrdiff_t>(a + size),
                     bytes.begin() + static_cast<std::ptrdiff_t>(b));
  }
};

TEST_F(DigestAccident, TwoPartsOfAnySizeSwapped) {
  for (const std::size_t size : {2U, 4U, 8U, 64U, 1'000U, 4'096U, 8'192U}) {
    always_shows([&](Bytes& bytes, std::mt19937_64& random) {
      const std::size_t count = kSize / size;
      swap(bytes, random() % count * size, random() % count * size, size);
    });
  }
}

TEST_F(DigestAccident, SignsOfManyElementsFlipped) {
  for (const std::size_t elem_bytes : {2U, 4U, 8U}) {
    always_shows([&](Bytes& bytes, std::mt19937_64& random) {
      const std::size_t step = elem_bytes * (1 + random() % 7);
      const std::size_t begin = random() % 1'000 * elem_bytes;
      const std::size_t count = 2 * (1 + random() % 1'000);
      for (std::size_t i = 0; i < count && begin + i * step < kSize; ++i) {
        bytes[begin + i * step + elem_bytes - 1] ^= std::byte{0x80};
      }
    });
  }
}

TEST_F(DigestAccident, RowsShiftedOrRotated) {
  always_shows([](Bytes& bytes, std::mt19937_64& random) {
    const std::size_t by = 1 + random() % (kSize - 1);
    std::rotate(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(by), bytes.end());
  });
}

TEST_F(DigestAccident, ATransposedMatrix) {
  always_shows([](Bytes& bytes, std::mt19937_64& /*random*/) {
    for (std::size_t row = 0; row < 128; ++row) {
      for (std::size_t column = 0; column < row; ++column)
        swap(bytes, 4 * (128 * row + column), 4 * (128 * column + row), 4);
    }
  });
}

TEST_F(DigestAccident, AStretchLeftAsItWas) {
  for (const auto stale : {std::byte{0}, std::byte{0xcd}, std::byte{0xff}}) {
    always_shows([&](Bytes& bytes, std::mt19937_64& random) {
      const std::size_t size = 1 + random() % 9'000;
      std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(random() % (kSize - size)), size, stale);
    });
  }
}

TEST_F(DigestAccident, TheSameRowWrittenTwice) {
  always_shows([](Bytes& bytes, std::mt19937_64& random) {
    const std::size_t row = 1 + random() % (kSize / 512 - 1);
    std::copy_n(bytes.begin(), 512, bytes.begin() + static_cast<std::ptrdiff_t>(512 * row));
  });
}

TEST(Digest, ZerosDoNotShow) {
  EXPECT_EQ(whole(Bytes(10'000)), Digest{}) << "so completeness must be counted in bytes";
  Bytes bytes = random_bytes(5'000, 8);
  const Digest before = whole(bytes);
  bytes.resize(9'000);
  EXPECT_EQ(whole(bytes), before);
}

TEST(Digest, APlantedErrorIsFoundByHalving) {
  Bytes bytes = random_bytes(1 << 20, 9);
  const Bytes good = bytes;
  constexpr std::size_t kPlace = 777'777;
  bytes[kPlace] ^= std::byte{0x10};
  std::size_t begin = 0;
  std::size_t end = bytes.size();
  while (end - begin > 1) {
    const std::size_t middle = begin + (end - begin) / 2;
    const auto differs = [&](std::size_t from, std::size_t to) {
      return digest_of(std::span(bytes).subspan(from, to - from), from) !=
             digest_of(std::span(good).subspan(from, to - from), from);
    };
    ASSERT_NE(differs(begin, middle), differs(middle, end));
    (differs(begin, middle) ? end : begin) = middle;
  }
  EXPECT_EQ(begin, kPlace);
}

}  // namespace
}  // namespace lading::device
