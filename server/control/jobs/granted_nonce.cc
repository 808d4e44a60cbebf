#include "server/control/jobs/granted_nonce.h"

#include <openssl/crypto.h>

namespace phub::server {

const wire::Nonce& GrantedNonce::Grant(Random& random, TimeNs expires) {
  random.Fill(value_);
  granted_ = true;
  expires_ = expires;
  return value_;
}

bool GrantedNonce::Take(const wire::Nonce& shown) {
  if (CRYPTO_memcmp(value_.data(), shown.data(), shown.size()) != 0) return false;
  granted_ = false;
  return true;
}

}  // namespace phub::server
