#include "source/blob_hash.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

namespace lading::source {
namespace {

constexpr std::size_t kPieceBytes = 4 << 20;

struct ContextDeleter {
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
};

bool is_lower_hex(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); }

}  // namespace

std::optional<PromisedHash> promised_hash(std::string_view resolved_path) {
  constexpr std::string_view kBlobs = "blobs";
  const std::size_t slash = resolved_path.rfind('/');
  if (slash == std::string_view::npos) return std::nullopt;
  const std::string_view folder = resolved_path.substr(0, slash);
  if (folder != kBlobs && !folder.ends_with(std::string("/") + std::string(kBlobs))) return std::nullopt;
  const std::string_view hex = resolved_path.substr(slash + 1);
  if (!std::all_of(hex.begin(), hex.end(), is_lower_hex)) return std::nullopt;
  if (hex.size() == 64) return PromisedHash{HashKind::kSha256, std::string(hex)};
  if (hex.size() == 40) return PromisedHash{HashKind::kGitSha1, std::string(hex)};
  return std::nullopt;
}

Result<std::string> hash_file(const io::File& file, HashKind kind) {
  const std::unique_ptr<EVP_MD_CTX, ContextDeleter> context(EVP_MD_CTX_new());
  const EVP_MD* algorithm = kind == HashKind::kSha256 ? EVP_sha256() : EVP_sha1();
  bool ok = context != nullptr && EVP_DigestInit_ex(context.get(), algorithm, nullptr) == 1;
  if (kind == HashKind::kGitSha1) {
    const std::string prefix = fmt::format("blob {}", file.size_bytes());
    ok = ok && EVP_DigestUpdate(context.get(), prefix.c_str(), prefix.size() + 1) == 1;  // with its NUL
  }
  std::vector<char> piece(std::min<std::uint64_t>(kPieceBytes, file.size_bytes()));
  for (std::uint64_t done = 0; ok && done < file.size_bytes();) {
    const std::size_t size = std::min<std::uint64_t>(piece.size(), file.size_bytes() - done);
    LADING_TRY(file.read_exact(done, std::span(piece).first(size)));
    ok = EVP_DigestUpdate(context.get(), piece.data(), size) == 1;
    done += size;
  }
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  ok = ok && EVP_DigestFinal_ex(context.get(), digest.data(), &size) == 1;
  if (!ok) return fail(Error(Code::kInternal, "OpenSSL could not compute a hash").in_file(file.path()));
  std::string hex;
  for (unsigned i = 0; i < size; ++i) hex += fmt::format("{:02x}", digest[i]);
  return hex;
}

}  // namespace lading::source
