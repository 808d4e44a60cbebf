// The shared secret of the two ends of a TLS lane: a key derived from the lane's nonce.
//
// Control gives the nonce to one worker, for one lane, over the authenticated control plane. The
// handshake (a pre-shared key of TLS 1.3, with a Diffie-Hellman exchange) proves that the peer has
// the key, so the peer is that worker or that daemon. Certificates are not used.
#pragma once

#include <array>
#include <cstddef>

#include "common/wire/lane_hello.h"

namespace phub::transport {

inline constexpr std::size_t kLaneKeyBytes = 32;
using LaneKey = std::array<std::byte, kLaneKeyBytes>;
// Identifies a lane's key: the lane's hello with the nonce set to 0. Sent unencrypted.
using LaneKeyName = std::array<std::byte, wire::kLaneHelloBytes>;

LaneKeyName NameOfLane(wire::LaneHello hello);
// HMAC-SHA256 of the name, keyed with the nonce. Any thread.
LaneKey KeyOfLane(const LaneKeyName& name, const wire::Nonce& nonce);

}  // namespace phub::transport
