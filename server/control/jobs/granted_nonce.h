// Nonces that control grants. One thread, or Control's lock.
#pragma once

#include "common/base/clock.h"
#include "common/base/random.h"
#include "common/wire/lane_hello.h"

namespace phub::server {

// What opens one lane, or fetches a batch's memory, once: control hands it out, and who asks brings
// it.
class GrantedNonce {
 public:
  const wire::Nonce& Grant(Random& random, TimeNs expires);
  bool IsGood(TimeNs now) const { return granted_ && now < expires_; }
  // Compared in constant time, so that it cannot be guessed byte by byte. Gone once it was right.
  bool Take(const wire::Nonce& shown);
  // Nobody is to come by it, nor who came by it and is on the way still.
  void Drop() {
    granted_ = false;
    value_ = {};
  }
  // None was granted since.
  bool IsLast(const wire::Nonce& taken) const { return value_ == taken; }
  const wire::Nonce& value() const { return value_; }

 private:
  wire::Nonce value_{};
  bool granted_ = false;  // and not used
  TimeNs expires_ = 0;
};

}  // namespace phub::server
