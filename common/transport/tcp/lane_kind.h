// Another kind of lane that a daemon's data port makes: the client asks for it over a connection
// there, in a request that starts with a hello of its own, and the lane itself travels otherwise.
//
// All calls come from the listener's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "common/base/descriptor.h"
#include "common/wire/lane_hello.h"

namespace phub::transport {

class LaneKind {
 public:
  virtual ~LaneKind() = default;

  // Of a whole request.
  virtual std::size_t request_bytes() const = 0;
  // Whether a request that starts with these 64 bytes is one.
  virtual bool Claims(std::span<const std::byte> first) const = 0;

  enum class Outcome : std::uint8_t {
    kTaken,    // with the socket: the peer is answered elsewhere, now or later
    kRefused,  // `refusal` says why; the peer was told nothing
    kForm,     // no request: no answer would be understood
  };
  // A whole request, from `origin`.
  virtual Outcome Decide(Descriptor& socket, std::span<const std::byte> request,
                         const std::string& origin, wire::LaneRefusal& refusal) = 0;
};

}  // namespace phub::transport
