// Another kind of lane that is requested at a daemon's data port. The client sends a request with a
// hello of its own over a TCP connection; the lane itself uses another transport (verbs).
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

  // Length of a request.
  virtual std::size_t request_bytes() const = 0;
  // Whether these first 64 bytes start a request of this kind.
  virtual bool Claims(std::span<const std::byte> first) const = 0;

  enum class Outcome : std::uint8_t {
    kTaken,    // took the socket; the implementation answers the peer
    kRefused,  // `refusal` says why; the caller answers the peer
    kForm,     // not a valid request: do not answer
  };
  // Decides about a complete request from `origin`.
  virtual Outcome Decide(Descriptor& socket, std::span<const std::byte> request,
                         const std::string& origin, wire::LaneRefusal& refusal) = 0;
};

}  // namespace phub::transport
