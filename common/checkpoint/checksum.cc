#include "common/checkpoint/checksum.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>

#include "common/base/check.h"
#include "fmt/format.h"

namespace phub::checkpoint {

constexpr std::size_t kDigestBytes = 32;

// These OpenSSL calls fail only if OpenSSL was built or configured without SHA-256.
Sha256::Sha256() : context_(EVP_MD_CTX_new()) { Begin(); }
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::Free::operator()(evp_md_ctx_st* context) const { EVP_MD_CTX_free(context); }

void Sha256::Begin() {
  PHUB_CHECK(context_ != nullptr);
  PHUB_CHECK(EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
}

void Sha256::Update(std::span<const std::byte> bytes) {
  PHUB_CHECK(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1);
}

std::string Sha256::Finish() {
  std::array<unsigned char, kDigestBytes> digest{};
  PHUB_CHECK(EVP_DigestFinal_ex(context_.get(), digest.data(), nullptr) == 1);
  Begin();
  std::string text;
  for (const unsigned char byte : digest) text += fmt::format("{:02x}", byte);
  return text;
}

std::string Sha256Of(std::string_view text) {
  Sha256 sum;
  sum.Update(std::as_bytes(std::span(text)));
  return sum.Finish();
}

bool IsSha256(std::string_view text) {
  return text.size() == 2 * kDigestBytes && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

}  // namespace phub::checkpoint
