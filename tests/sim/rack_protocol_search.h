// An exhaustive search over the protocol by which racks open, run and end one job together: every
// order in which messages arrive (in order per pair of racks), lanes are made and lost, core loops
// acknowledge and ranks leave, with at most so many failures. Around the protocol here is the least
// of a daemon: queues, lanes that are there or not, a job that runs or not. One thread.
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
using Mask = std::uint32_t;  // bit per rack

constexpr Mask Bit(std::uint32_t rack) { return Mask{1} << rack; }

// What daemons say to each other.
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
  kRestarted = 'R',  // no message: it speaks as another instance
};

// What goes wrong, at any moment.
enum class Trouble : std::uint8_t {
  kNone,
  kFailure,   // of a job at one rack: a rank crashed, say
  kRefusal,   // a rack does not take the job
  kDropping,  // messages of the run to one rack
  kDeath,     // of a daemon, which may come back
};

struct Shape {
  std::uint32_t racks = 2;
  std::uint32_t with_ranks = 2;
  std::array<Mask, kMost> neighbors{};
  Trouble trouble = Trouble::kNone;
  std::uint32_t troubles = 0;  // at most so many times
};

struct Daemon {
  enum class Job : char { kAbsent = '-', kRunning = 'r', kEnded = 'e', kFailed = 'f' };
  std::optional<RackProtocol> protocol;
  Job job = Job::kAbsent;
  bool acknowledged = false;
  bool dead = false;
  std::uint32_t instance = 1;
  Mask attached = 0;
  Mask losses = 0;    // of lanes to these racks: the core loops have yet to say so
  Mask dialling = 0;  // racks to which a lane is on its way
  Mask opened = 0;    // lanes to them are made; this daemon has yet to hear of it
  Mask granted = 0, dialled = 0;
  std::array<std::string, kMost> queues;  // [to]
};

struct World {
  std::array<Daemon, kMost> daemons;
  std::uint32_t troubles = 0;
  Mask ready = 0, left = 0;  // what is true, whoever knows it
};

class Search {
 public:
  explicit Search(const Shape& shape, const RackRules& rules = kRackRules)
      : shape_(shape), rules_(rules) {}

  // Empty: whatever happens, all is well. Otherwise what is wrong, and how it came.
  const std::string& Run();
  std::size_t states() const { return seen_.size(); }

 private:
  Mask All() const { return Bit(shape_.racks) - 1; }
  Daemon& At(std::uint32_t rack) { return world_.daemons[rack]; }
  bool Runs(std::uint32_t rack) { return At(rack).job == Daemon::Job::kRunning; }

  void Require(bool good, std::string_view what);

  // --- What a daemon does with what the protocol says.
  void Create(std::uint32_t rack);
  void Send(std::uint32_t from, std::uint32_t to, Word word);
  void SendToAll(std::uint32_t from, Word word);
  // Of the job there: the others' core loops see the lanes close.
  void CloseLanes(std::uint32_t rack);
  void Do(std::uint32_t rack, const RackSteps& steps);
  void Do(std::uint32_t rack, const RackStep& step);
  void Fail(std::uint32_t rack);
  void Advance(std::uint32_t rack);
  void EndIfAllLeft(std::uint32_t rack);
  void HandleOpen(std::uint32_t rack, bool refuses);
  void Handle(std::uint32_t from, std::uint32_t rack, Word word);

  // --- What may happen next.
  // step(): one thing that may happen here. From the world as it was, each.
  template <typename Step>
  void Try(std::string_view name, std::uint32_t rack, std::uint32_t other, Step&& step);
  void TryMessages(std::uint32_t from, std::uint32_t to);
  void TryLanes(std::uint32_t rack, std::uint32_t other);
  void Lose(std::uint32_t rack, std::uint32_t other);
  void TryAlone(std::uint32_t rack);
  // As long as no daemon dies nobody needs a clock to see the end.
  bool HasTimers() const { return world_.troubles > 0 && shape_.trouble == Trouble::kDeath; }

  bool Troubled(Trouble trouble) const;
  void TryDeath(std::uint32_t rack);
  // It takes long: only what hangs otherwise sees it.
  void TryTimers();
  std::string Fingerprint();
  void Explore();
  // Nothing can happen any more.
  void CheckEnd();

  const Shape shape_;
  const RackRules rules_;
  World world_;
  bool moved_ = false;  // something can happen in the state that is explored
  std::string here_;    // its fingerprint
  std::string wrong_, path_;
  std::unordered_set<std::string> seen_;
};

}  // namespace phub::server::rack_search
