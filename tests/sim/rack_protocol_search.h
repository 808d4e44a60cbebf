// An exhaustive search over the protocol by which racks open, run and end a job together. It covers
// every order in which messages arrive (in order per pair of racks), lanes are opened and lost,
// core loops acknowledge, and ranks leave, with a bounded number of failures. Around the protocol
// there is a minimal daemon: queues, lanes that exist or not, a job that runs or not. One thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>

#include "server/control/racks/rack_protocol.h"

namespace phub::server::rack_search {

constexpr std::uint32_t kMost = 3;
using Mask = std::uint32_t;  // a bit per rack

constexpr Mask Bit(std::uint32_t rack) { return Mask{1} << rack; }

// The messages between daemons.
enum class Word : char {
  kOpen = 'o',
  kOpened = 'O',
  kRefused = 'x',
  kConnect = 'c',
  kGrants = 'g',
  kReady = 'r',
  kStart = 's',
  kLeft = 'l',
  kFailed = 'f',
  kRestarted = 'R',  // not a message: the rack continues as another instance
};

// A failure, at any moment.
enum class Trouble : std::uint8_t {
  kNone,
  kFailure,   // a failure of a job at one rack, such as a crashed rank
  kRefusal,   // a rack refuses the job
  kDropping,  // the messages of one run to one rack are lost
  kDeath,     // a daemon dies, and may come back
};

struct Shape {
  std::uint32_t racks = 2;
  std::uint32_t with_ranks = 2;
  std::array<Mask, kMost> neighbors{};
  Mask absent = 0;  // racks that take no part
  Trouble trouble = Trouble::kNone;
  std::uint32_t troubles = 0;  // the maximum number of troubles
};

struct Daemon {
  enum class Job : char { kAbsent = '-', kRunning = 'r', kEnded = 'e', kFailed = 'f' };
  std::optional<RackProtocol> protocol;
  Job job = Job::kAbsent;
  bool acknowledged = false;
  bool dead = false;
  std::uint32_t instance = 1;
  Mask attached = 0;
  Mask losses = 0;    // lanes to these racks are lost, but core loops have not reported it yet
  Mask dialling = 0;  // a lane to these racks is being opened
  Mask opened = 0;    // lanes to these racks are open, but this daemon does not know it yet
  Mask granted = 0, dialled = 0;
  std::array<std::string, kMost> queues;  // by receiver
};

struct World {
  std::array<Daemon, kMost> daemons;
  std::uint32_t troubles = 0;
  Mask ready = 0, left = 0;  // the true state, even if no rack knows it
};

class Search {
 public:
  explicit Search(const Shape& shape, const RackRules& rules = kRackRules)
      : shape_(shape), rules_(rules) {}

  // Returns an empty string if no order of events leads to an error. Otherwise returns the error
  // and the events that lead to it.
  const std::string& Run();
  std::size_t states() const { return seen_.size(); }

 private:
  // The racks that take part.
  Mask All() const { return (Bit(shape_.racks) - 1) & ~shape_.absent; }
  Daemon& At(std::uint32_t rack) { return world_.daemons[rack]; }
  bool Runs(std::uint32_t rack) { return At(rack).job == Daemon::Job::kRunning; }

  void Require(bool good, std::string_view what);

  // --- What a daemon does with what the protocol says.
  void Create(std::uint32_t rack);
  void Send(std::uint32_t from, std::uint32_t to, Word word);
  void SendToAll(std::uint32_t from, Word word);
  // Closes the job's lanes at this rack. The other racks' core loops notice.
  void CloseLanes(std::uint32_t rack);
  void Do(std::uint32_t rack, const RackSteps& steps);
  void Do(std::uint32_t rack, const RackStep& step);
  void Fail(std::uint32_t rack);
  void Advance(std::uint32_t rack);
  void EndIfAllLeft(std::uint32_t rack);
  void HandleOpen(std::uint32_t rack, bool refuses);
  void Handle(std::uint32_t from, std::uint32_t rack, Word word);

  // --- The possible next events. step(): one event, applied to a copy of the current world. Each
  // function tries all events of a kind.
  template <typename Step>
  void Try(std::string_view name, std::uint32_t rack, std::uint32_t other, Step&& step);
  void TryMessages(std::uint32_t from, std::uint32_t to);
  void TryLanes(std::uint32_t rack, std::uint32_t other);
  void Lose(std::uint32_t rack, std::uint32_t other);
  void TryAlone(std::uint32_t rack);
  // While no daemon dies, no rack needs a timer to learn of the end.
  bool HasTimers() const { return world_.troubles > 0 && shape_.trouble == Trouble::kDeath; }

  bool Troubled(Trouble trouble) const;
  void TryDeath(std::uint32_t rack);
  // Timers are slow, so they fire only if nothing else can happen.
  void TryTimers();
  std::string Fingerprint();
  void Explore();
  // Checks a state in which nothing can happen any more.
  void CheckEnd();

  const Shape shape_;
  const RackRules rules_;
  World world_;
  bool moved_ = false;  // whether any event is possible in the explored state
  std::string here_;    // the state's fingerprint
  std::string wrong_, path_;
  std::unordered_set<std::string> seen_;
};

}  // namespace phub::server::rack_search
