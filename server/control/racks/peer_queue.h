// The queue of messages to the daemon of another rack. A message stays in it, in order, until the
// rack has accepted it. The queue is bounded. When it is full, messages of one sender are dropped:
//
//   1. If a run has more than a fixed share of the queue: those of the run that has most.
//   2. Otherwise many small runs fill it: those of the largest run of the tenant that has most.
//
// Messages are numbered when they are first put into an envelope. A message that was never in one
// can be removed without leaving a gap in the numbers, but its run cannot go on: the caller must
// end it. Messages that were in an envelope may have been sent, so they stay. A message that a run
// has failed stays, too. It replaces the run's earlier messages, which are useless then. If the
// message that opens the run is among those removed, the rack does not know the run, and the
// failure is not sent either.
//
// If nothing else can be dropped, the whole queue is. The gap in the numbers shows this to the
// other rack.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "phub/v1/peer.pb.h"
#include "server/control/jobs/peer_message.h"

namespace phub::server {

// The sender of a message. The incarnation may be 0 for requests to open a job.
struct PeerSender {
  std::string tenant;
  Incarnation incarnation{};
  friend auto operator<=>(const PeerSender&, const PeerSender&) = default;
};

struct DroppedMessages {
  struct Sender {
    PeerSender whose;
    std::size_t count = 0;
  };
  std::vector<Sender> senders;  // whose messages were dropped
  std::size_t count = 0;        // total over the senders; 0: nothing was dropped
  bool all = false;             // the whole queue was dropped; the rack will see a gap
};

class PeerQueue {
 public:
  struct Limits {
    std::size_t messages = 4096;
    std::size_t bytes = 256 << 20;
  };
  PeerQueue() : PeerQueue(Limits{}) {}
  explicit PeerQueue(Limits limits) : limits_(limits) {}

  DroppedMessages Push(const PeerSender& sender, SharedPeerMessage message);
  // The messages of the next envelope: the first of the queue, at least one, and no more once they
  // have about 1 MiB. They stay in the queue.
  std::vector<SharedPeerMessage> NextMessages();
  // Fills the envelope with them. Returns their number.
  std::size_t Fill(v1::PeerEnvelope& envelope);
  // The rack has accepted all messages before that number.
  void Take(std::uint64_t sequence);

  bool empty() const { return messages_.empty(); }
  std::size_t size() const { return messages_.size(); }
  std::uint64_t first_sequence() const { return first_sequence_; }
  const v1::PeerMessage& back() const { return *messages_.back().message.message; }
  void set_limits(Limits limits) { limits_ = limits; }

 private:
  struct Waiting {
    PeerSender sender;
    SharedPeerMessage message;
  };

  bool IsFull() const { return messages_.size() > limits_.messages || bytes_ > limits_.bytes; }
  // The sender whose messages are to be dropped; nullopt if nothing can be dropped.
  std::optional<PeerSender> Largest() const;
  template <typename Is>
  std::size_t Drop(const Is& is);  // only messages that were never in an envelope
  DroppedMessages DropAll();

  Limits limits_;
  std::deque<Waiting> messages_;
  std::size_t bytes_ = 0;             // size of all messages
  std::uint64_t first_sequence_ = 0;  // number of the first message
  std::size_t said_ = 0;              // how many of the first messages have been in an envelope
};

}  // namespace phub::server
