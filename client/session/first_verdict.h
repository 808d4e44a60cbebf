// How the ranks of a job agree on one reason for its end, if their rack has several daemons.
//
// Each daemon and each rank finds a failure from its own side: if the network between a rank and
// one daemon fails, that daemon blames the rank, and the rank blames the daemon. Daemons of a rack
// do not talk to each other. So a rank that has a verdict offers it to the anchor, the first daemon
// of the rack, with the call that ends the job there. The anchor keeps the first verdict that it
// has or gets, and answers later offers with it. All ranks take that one.
//
// If the anchor does not answer in time, or no longer knows the job, the rank takes what another
// daemon has reported meanwhile, otherwise its own verdict. So the end of a job waits for
// kOfferTimeoutMax at most, or half of liveness_timeout if that is less.
//
// Threads: any.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "client/session/daemon_link.h"
#include "common/base/clock.h"
#include "phub/status.h"

namespace phub::client {

class FirstVerdict {
 public:
  static constexpr DurationNs kOfferTimeoutMax = kSecond;

  struct Verdict {
    Status status;
    std::string key;                   // the key that it names
    const DaemonLink* from = nullptr;  // the daemon that gave it, or that it is about
  };
  // Ends the job with the verdict. anchor: knows it already; may be null. May be called more than
  // once; only the first call counts.
  using Settle = std::function<void(Verdict verdict, const DaemonLink* anchor)>;

  // `links`: the anchor first. They must outlive this object and may be filled later.
  FirstVerdict(const DaemonLinks& links, Settle settle)
      : links_(links), settle_(std::move(settle)) {}

  void Offer(Verdict verdict);
  // Waits while the anchor is asked. Afterwards the job has its verdict.
  void Await() const;

 private:
  void EndOffer(const absl::Status& answer);

  const DaemonLinks& links_;
  const Settle settle_;
  mutable std::mutex mutex_;  // not held during calls to others
  mutable std::condition_variable changed_;
  bool asking_ = false;
  std::optional<Verdict> offered_;   // what the anchor is or was asked about
  std::optional<Verdict> fallback_;  // another daemon's, if the anchor does not answer
};

}  // namespace phub::client
