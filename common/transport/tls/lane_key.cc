#include "common/transport/tls/lane_key.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <string_view>

#include "common/base/check.h"

namespace phub::transport {
namespace {

// Separates this use of a nonce from other uses.
constexpr std::string_view kPurpose = "phub lane, TLS 1.3, key 1";

}  // namespace

LaneKeyName NameOfLane(wire::LaneHello hello) {
  hello.nonce = {};
  LaneKeyName name;
  wire::EncodeLaneHello(hello, name);
  return name;
}

LaneKey KeyOfLane(const LaneKeyName& name, const wire::Nonce& nonce) {
  std::array<unsigned char, kPurpose.size() + wire::kLaneHelloBytes> text;
  const auto rest = std::copy(kPurpose.begin(), kPurpose.end(), text.begin());
  std::transform(name.begin(), name.end(), rest,
                 [](std::byte byte) { return std::to_integer<unsigned char>(byte); });
  LaneKey key;
  unsigned int bytes = 0;
  const unsigned char* const made =
      HMAC(EVP_sha256(), nonce.data(), static_cast<int>(nonce.size()), text.data(), text.size(),
           reinterpret_cast<unsigned char*>(key.data()), &bytes);
  PHUB_CHECK(made != nullptr && bytes == key.size(), "bytes={}", bytes);
  return key;
}

}  // namespace phub::transport
