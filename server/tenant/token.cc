#include "server/tenant/token.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <array>
#include <span>

#include "common/base/check.h"

namespace phub::server {
namespace {

std::string Hexadecimal(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

bool IsHexadecimal(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

}  // namespace

std::string TokenKeyId(std::string_view key) {
  constexpr std::size_t kKeyIdBytes = 4;
  return Hexadecimal(KeyedHash(key, "phub token key id").substr(0, kKeyIdBytes));
}

std::string TokenText::ToString() const { return fmt::format("{}{}_{}", kTokenPrefix, id, secret); }

std::string DrawBytes(Random& random, std::size_t count) {
  std::string bytes(count, '\0');
  random.Fill(std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

TokenText DrawToken(Random& random) {
  return {Hexadecimal(DrawBytes(random, kTokenIdBytes)),
          Hexadecimal(DrawBytes(random, kTokenSecretBytes))};
}

std::optional<TokenText> ParseToken(std::string_view text) {
  constexpr std::size_t kIdDigits = 2 * kTokenIdBytes;
  constexpr std::size_t kSecretDigits = 2 * kTokenSecretBytes;
  if (text.size() != kTokenPrefix.size() + kIdDigits + 1 + kSecretDigits) return std::nullopt;
  if (text.substr(0, kTokenPrefix.size()) != kTokenPrefix) return std::nullopt;
  text.remove_prefix(kTokenPrefix.size());
  const std::string_view id = text.substr(0, kIdDigits);
  const std::string_view secret = text.substr(kIdDigits + 1);
  if (text[kIdDigits] != '_' || !IsHexadecimal(id) || !IsHexadecimal(secret)) return std::nullopt;
  return TokenText{std::string(id), std::string(secret)};
}

std::string KeyedHash(std::string_view key, std::string_view data) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  const unsigned char* const made =
      HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
           reinterpret_cast<const unsigned char*>(data.data()), data.size(), digest.data(), &size);
  PHUB_CHECK(made != nullptr && size == 32, "size={}", size);
  return {reinterpret_cast<const char*>(digest.data()), size};
}

bool EqualHashes(std::string_view left, std::string_view right) {
  return left.size() == right.size() && CRYPTO_memcmp(left.data(), right.data(), left.size()) == 0;
}

}  // namespace phub::server
