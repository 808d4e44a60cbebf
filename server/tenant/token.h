// Tokens: generating, formatting and verifying them. Pure, except for the random generator.
//
//   phub_<id>_<secret>   id: 16 hexadecimal digits, public; secret: 64 hexadecimal digits, 256 bits
//
// The daemon stores HMAC-SHA256(key, secret) in the database and the key in a separate file, so the
// database alone is not enough to forge or to verify a token.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "common/base/random.h"

namespace phub::server {

inline constexpr std::string_view kTokenPrefix = "phub_";
inline constexpr std::size_t kTokenIdBytes = 8;
inline constexpr std::size_t kTokenSecretBytes = 32;
inline constexpr std::size_t kHashKeyBytes = 32;

struct TokenText {
  std::string id;      // hexadecimal, as in Token::id
  std::string secret;  // hexadecimal
  std::string ToString() const;
};

TokenText DrawToken(Random& random);
// nullopt if the text does not have the form above.
std::optional<TokenText> ParseToken(std::string_view text);
// What records say of a token key; not secret. 8 hexadecimal digits.
std::string TokenKeyId(std::string_view key);
// 32 bytes.
std::string KeyedHash(std::string_view key, std::string_view data);
// Compares in constant time.
bool EqualHashes(std::string_view left, std::string_view right);
std::string DrawBytes(Random& random, std::size_t count);

}  // namespace phub::server
