#include "base/base64.h"

#include <gtest/gtest.h>

namespace lading {
namespace {

std::vector<std::byte> bytes_of(std::string_view text) {
  std::vector<std::byte> bytes;
  for (const char c : text) bytes.push_back(static_cast<std::byte>(c));
  return bytes;
}

TEST(Base64, IsThatOfTheStandard) {  // RFC 4648, section 10
  const std::pair<std::string_view, std::string_view> cases[] = {
      {"", ""},
      {"f", "Zg=="},
      {"fo", "Zm8="},
      {"foo", "Zm9v"},
      {"foob", "Zm9vYg=="},
      {"fooba", "Zm9vYmE="},
      {"foobar", "Zm9vYmFy"},
      {"\xfb\xff", "+/8="},
  };
  for (const auto& [plain, coded] : cases) {
    EXPECT_EQ(encode_base64(bytes_of(plain)), coded);
    EXPECT_EQ(decode_base64(coded), bytes_of(plain));
  }
}

TEST(Base64, EveryByteComesBack) {
  std::vector<std::byte> bytes;
  for (int i = 0; i < 259; ++i) {
    EXPECT_EQ(decode_base64(encode_base64(bytes)), bytes);
    bytes.push_back(static_cast<std::byte>(i * 37));
  }
}

TEST(Base64, NothingElseIsTaken) {
  for (const std::string_view text : {"Z", "Zg", "Zg=", "Zg===", "====", "=g==", "Z===", "Zh==", "Zm9=", "Zm9v\n",
                                      " Zm9", "Zm-v", "Zm_v", "Zg==Zg==", "Zm=v", "\xff\xff\xff\xff"}) {
    EXPECT_EQ(decode_base64(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace lading
