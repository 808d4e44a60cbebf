// Creates the daemon's ends of lanes over verbs, for clients that request them on the data port.
//
// A queue pair is created only after the gate has admitted the hello, which requires a nonce from
// the control plane. The socket stays with the lane. The lane counts as open, and the gate gets it,
// only after the client confirms that its end is connected, too. A client that cannot connect, or
// runs out of time, closes the socket or sends another request; the job never sees this lane.
//
// Creating a lane takes long: memory is registered, and the kernel looks up the route to the peer's
// address, for a second if nobody answers there. So threads of the acceptor create lanes and serve
// jobs in turn. Neither the listener nor other jobs wait for a peer with a bad address. One more
// thread reads the clients' confirmations.
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
#include "common/base/refusal_log.h"
#include "common/base/waiter.h"
#include "common/transport/tcp/lane_kind.h"
#include "common/transport/verbs/verbs_gate.h"

namespace phub::transport {

class VerbsAcceptor final : public LaneKind {
 public:
  // Lanes created concurrently. With several threads, a few unreachable peers of one job do not
  // block other jobs.
  static constexpr std::size_t kThreads = 4;
  // Limit for admitted requests that are not lanes yet; more are refused. A job may hold as many
  // places as are left for others. So a single job can have one for each of its ranks, and there is
  // always room for another job.
  static constexpr std::size_t kWaitingMax = 2 * std::size_t{kRanksMax};
  // Time for a client to connect its end. Its kernel may need a second or two to look up the route.
  static constexpr DurationNs kReadyTimeout = 10 * kSecond;

  // `gate` and `random` must outlive the acceptor. `random` draws packet numbers; it must support
  // calls from any thread.
  VerbsAcceptor(VerbsGate& gate, Random& random, DurationNs ready_timeout = kReadyTimeout,
                std::size_t waiting_max = kWaitingMax);
  ~VerbsAcceptor() override;  // drops waiting requests, and finishes those being served
  // An error if the process lacks threads or descriptors. Check it before the first call.
  const absl::Status& started() const { return started_; }

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
    std::uint64_t number = 0;  // increases with each request
  };
  // A welcomed client that has not confirmed its connection yet.
  struct Offered {
    Request request;
    std::unique_ptr<VerbsConnection> connection;
    TimeNs deadline = 0;
    bool over = false;  // it has become a lane, or was given up
  };
  void Work();
  bool Next(Request& request);  // waits; false: stopping
  void Serve(Request request);
  absl::StatusOr<std::unique_ptr<VerbsConnection>> Make(const wire::LaneHello& hello,
                                                        const wire::VerbsOffer& peer);
  void HearClients();
  bool TakeOffered(std::vector<Offered>& offered);  // false: stopping
  void WaitForWords(const std::vector<Offered>& offered);
  bool Settle(Offered& offered);  // true: it has become a lane, or was given up
  void Attach(Offered& offered);
  bool HasRoom(Incarnation job) const;  // requires mutex_
  void GiveRoom(Incarnation job);

  VerbsGate& gate_;
  Random& random_;
  const DurationNs ready_timeout_;
  const std::size_t waiting_max_;
  const SystemClock clock_;
  RefusalLog failures_;
  const Doorbell doorbell_;  // rung when offered_ has something, or to stop
  std::uint64_t asked_ = 0;  // used only by the listener's thread
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::map<Incarnation, std::deque<Request>> waiting_;  // without empty queues
  std::vector<Offered> offered_;                        // for HearClients
  std::map<Incarnation, std::size_t> held_;  // admitted requests that are not lanes yet; without 0
  std::size_t held_count_ = 0;               // their sum over all jobs
  Incarnation served_last_{};
  std::array<std::thread, kThreads + 1> threads_;
  absl::Status started_;
};

}  // namespace phub::transport
