// A message to the daemons of other racks, with its size. The queues of all racks share it.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "phub/v1/peer.pb.h"

namespace phub::server {

// Implicit, since most senders make a message for one rack. Measuring a batch of many keys takes
// milliseconds, so such messages are made without control's lock.
struct SharedPeerMessage {
  // NOLINTNEXTLINE(google-explicit-constructor)
  SharedPeerMessage(v1::PeerMessage given)
      : message(std::make_shared<const v1::PeerMessage>(std::move(given))),
        bytes(message->ByteSizeLong()) {}

  std::shared_ptr<const v1::PeerMessage> message;
  std::size_t bytes = 0;
};

}  // namespace phub::server
