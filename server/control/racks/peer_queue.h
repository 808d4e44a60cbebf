// What waits for the daemon of another rack, in order, until it has taken it: the queue of one
// link. Bounded. When it is full, whoever fills it loses what waits of his, and nobody else: a run
// that has more than a share of the queue, the one that has most; else, if it is many small ones
// that fill it, one of the tenant that has most.
//
// Messages are numbered when they are first put into an envelope, so one that never was can be
// taken out and nobody will miss its number: the run whose it was has to be ended by whoever is
// told here. What may be under way stays. So does the word that a run has failed; what waits of
// that run before it is of no use to anybody, and goes, and if the rack was not even told that
// there is such a run, so does the word.
//
// Only if nothing else is left is all of it dropped; the gap in the numbers tells the rack, too.
//
// One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "phub/v1/peer.pb.h"

namespace phub::server {

// Whose message it is. The incarnation may be 0, of requests for jobs that nobody has opened yet.
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
  std::vector<Sender> senders;  // who lost what waited
  std::size_t count = 0;        // over all; 0: nothing was dropped
  bool all = false;             // everybody's, and the rack finds a gap
};

class PeerQueue {
 public:
  struct Limits {
    std::size_t messages = 4096;
    std::size_t bytes = 256 << 20;
  };
  PeerQueue() : PeerQueue(Limits{}) {}
  explicit PeerQueue(Limits limits) : limits_(limits) {}

  DroppedMessages Push(const PeerSender& sender, v1::PeerMessage message);
  // As many of the first messages as an envelope takes: at least one, then about a MiB. How many.
  std::size_t Fill(v1::PeerEnvelope& envelope);
  // The rack has taken what comes before that number.
  void Take(std::uint64_t sequence);

  bool empty() const { return messages_.empty(); }
  std::size_t size() const { return messages_.size(); }
  std::uint64_t first_sequence() const { return first_sequence_; }
  const v1::PeerMessage& back() const { return messages_.back().message; }
  void set_limits(Limits limits) { limits_ = limits; }

 private:
  struct Waiting {
    PeerSender sender;
    v1::PeerMessage message;
    std::size_t bytes = 0;
  };

  bool IsFull() const { return messages_.size() > limits_.messages || bytes_ > limits_.bytes; }
  // Who is to lose what waits of his; nobody, if there is nothing that can be dropped.
  std::optional<PeerSender> Largest() const;
  template <typename Is>
  std::size_t Drop(const Is& is);  // of those that were in no envelope
  DroppedMessages DropAll();

  Limits limits_;
  std::deque<Waiting> messages_;
  std::size_t bytes_ = 0;             // of all
  std::uint64_t first_sequence_ = 0;  // of the first
  std::size_t said_ = 0;              // so many of the first have been in an envelope
};

}  // namespace phub::server
