// The keys of a call that removes them: they can be used again if it fails before the daemons have
// removed them.
#pragma once

#include <vector>

#include "client/session/key_impl.h"

namespace phub::client {

class MarkedKeys {
 public:
  ~MarkedKeys() {
    for (KeyImpl* const key : keys_) key->CancelRemoval();
  }
  Status Mark(KeyImpl& key) {
    Status status = key.BeginRemoval();
    if (status.ok()) keys_.push_back(&key);
    return status;
  }
  void Keep() { keys_.clear(); }

 private:
  std::vector<KeyImpl*> keys_;
};

}  // namespace phub::client
