// Nonces that control grants. One thread, or Control's lock.
#pragma once

#include "common/base/clock.h"
#include "common/base/random.h"
#include "common/wire/lane_hello.h"

namespace phub::server {

// A nonce that control grants to a client. It authorizes the client once: to open one lane or to
// fetch the memory of one batch.
class GrantedNonce {
 public:
  const wire::Nonce& Grant(Random& random, TimeNs expires);
  bool IsGood(TimeNs now) const { return granted_ && now < expires_; }
  // Whether the client showed the right nonce, which is then used up. Compared in constant time, so
  // that it cannot be guessed byte by byte.
  bool Take(const wire::Nonce& shown);
  // Revokes the nonce, also for a client that used it and whose lane is still being set up.
  void Drop() {
    granted_ = false;
    value_ = {};
  }
  // Whether no other nonce was granted since.
  bool IsLast(const wire::Nonce& taken) const { return value_ == taken; }
  const wire::Nonce& value() const { return value_; }

 private:
  wire::Nonce value_{};
  bool granted_ = false;  // and not used yet
  TimeNs expires_ = 0;
};

}  // namespace phub::server
