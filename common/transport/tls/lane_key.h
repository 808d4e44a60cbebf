// What the two ends of a TLS lane know of each other: a key that is made from the lane's nonce.
//
// Control gives the nonce to one worker, for one lane, over the authenticated control plane; so who
// proves in the handshake (a pre-shared key of TLS 1.3, with a Diffie-Hellman exchange) that it has
// the key is that worker, or that daemon. No certificate takes part.
#pragma once

#include <array>
#include <cstddef>

#include "common/wire/lane_hello.h"

namespace phub::transport {

inline constexpr std::size_t kLaneKeyBytes = 32;
using LaneKey = std::array<std::byte, kLaneKeyBytes>;
// Of a lane: the hello that will be sent inside, but for the nonce. In the clear.
using LaneKeyName = std::array<std::byte, wire::kLaneHelloBytes>;

LaneKeyName NameOfLane(wire::LaneHello hello);
// HMAC-SHA256 of the name, keyed with the nonce. Any thread.
LaneKey KeyOfLane(const LaneKeyName& name, const wire::Nonce& nonce);

}  // namespace phub::transport
