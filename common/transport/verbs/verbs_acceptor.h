// Makes the daemon's ends of lanes over verbs, for clients that ask on the data port.
//
// No queue pair exists for a peer before the gate has admitted its hello, which takes the control
// plane's nonce. The socket stays with the lane. The listener's thread.
#pragma once

#include "common/base/random.h"
#include "common/transport/tcp/lane_kind.h"
#include "common/transport/verbs/verbs_gate.h"

namespace phub::transport {

class VerbsAcceptor final : public LaneKind {
 public:
  // Both outlive the acceptor. `random` draws packet numbers.
  VerbsAcceptor(VerbsGate& gate, Random& random) : gate_(gate), random_(random) {}

  std::size_t request_bytes() const override {
    return wire::kLaneHelloBytes + wire::kVerbsOfferBytes;
  }
  bool Claims(std::span<const std::byte> first) const override;
  Outcome Decide(Descriptor& socket, std::span<const std::byte> request, const std::string& origin,
                 wire::LaneRefusal& refusal) override;

 private:
  absl::StatusOr<std::unique_ptr<VerbsConnection>> Make(const wire::LaneHello& hello,
                                                        const wire::VerbsOffer& peer);

  VerbsGate& gate_;
  Random& random_;
};

}  // namespace phub::transport
