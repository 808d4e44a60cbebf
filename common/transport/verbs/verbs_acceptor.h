// Makes the daemon's ends of lanes over verbs, for clients that ask on the data port.
//
// No queue pair exists for a peer before the gate has admitted its hello, which takes the control
// plane's nonce. The socket stays with the lane. It is a lane, and the gate hears of it, once the
// client says that it could connect its end, too: a client that cannot, or has no more time, goes
// away, or asks for another, and the job never knew of this one.
//
// Making a lane takes long: memory is registered, and the kernel looks for the way to the peer's
// address, for a second if there is none, or nobody there. So it is done by threads of its own, of
// jobs in turn, and neither the listener nor other jobs wait for a peer that gives a bad address.
// One more thread hears what clients say.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/random.h"
#include "common/base/waiter.h"
#include "common/transport/tcp/lane_kind.h"
#include "common/transport/verbs/verbs_gate.h"

namespace phub::transport {

class VerbsAcceptor final : public LaneKind {
 public:
  // At once: a few peers of one job that are not there leave room for another.
  static constexpr std::size_t kThreads = 4;
  // Admitted, and no lanes yet; what is more is refused. A job has at most as many as are left to
  // others: alone, one for each rank that it may have; and whatever some jobs do, there is room for
  // another.
  static constexpr std::size_t kWaitingMax = 2 * std::size_t{kRanksMax};
  // For a client to connect its end. Its kernel looks for a way to this host, for a second or two.
  static constexpr DurationNs kReadyTimeout = 10 * kSecond;

  // Both outlive the acceptor. `random` draws packet numbers, for any thread.
  VerbsAcceptor(VerbsGate& gate, Random& random, DurationNs ready_timeout = kReadyTimeout,
                std::size_t waiting_max = kWaitingMax);
  ~VerbsAcceptor() override;  // what waits is dropped, what is being made is finished

  std::size_t request_bytes() const override {
    return wire::kLaneHelloBytes + wire::kVerbsOfferBytes;
  }
  bool Claims(std::span<const std::byte> first) const override;
  Outcome Decide(Descriptor& socket, std::span<const std::byte> request, const std::string& origin,
                 wire::LaneRefusal& refusal) override;

 private:
  struct Request {
    Descriptor socket;
    wire::LaneHello hello;
    wire::VerbsOffer peer;
    std::string origin;
    std::uint8_t version = 0;
    std::uint64_t number = 0;  // who asked later has the larger
  };
  // A client was welcomed, and has not said that it is ready.
  struct Offered {
    Request request;
    std::unique_ptr<VerbsConnection> connection;
    TimeNs deadline = 0;
    bool over = false;  // it is a lane, or never will be
  };
  void Work();
  bool Next(Request& request);  // waits; false: it is over
  void Serve(Request request);
  absl::StatusOr<std::unique_ptr<VerbsConnection>> Make(const wire::LaneHello& hello,
                                                        const wire::VerbsOffer& peer);
  void HearClients();
  bool TakeOffered(std::vector<Offered>& offered);  // false: it is over
  void WaitForWords(const std::vector<Offered>& offered);
  bool Settle(Offered& offered);  // true: it is over
  void Attach(Offered& offered);
  bool HasRoom(Incarnation job) const;  // with the lock
  void GiveRoom(Incarnation job);

  VerbsGate& gate_;
  Random& random_;
  const DurationNs ready_timeout_;
  const std::size_t waiting_max_;
  const SystemClock clock_;
  const Doorbell doorbell_;  // offered_ has something, or it is over
  std::uint64_t asked_ = 0;  // the listener's thread's
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::map<Incarnation, std::deque<Request>> waiting_;  // no queue is empty
  std::vector<Offered> offered_;                        // for the thread that hears clients
  std::map<Incarnation, std::size_t> held_;             // admitted, and no lanes yet; none is 0
  std::size_t held_count_ = 0;                          // of all jobs
  Incarnation served_last_{};
  std::vector<std::thread> threads_;
};

}  // namespace phub::transport
