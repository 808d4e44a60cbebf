// A job whose gradients are summed in the network, as a state that single events change: the
// product's aggregator slots, worker and core streams (common/aggregation), programs that push, tcp
// lanes in order, datagrams that arrive in any order, and control, which grants leases. Everything
// that may happen next is an event, so that a search can try all orders (sum_search.h).
//
// The parameters of a chunk are one datagram here. Exponents are all equal, and tags and lengths
// are not checked: tests/unit/aggregation does that.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "common/aggregation/core_stream.h"
#include "common/aggregation/slot.h"
#include "common/aggregation/stream.h"
#include "common/aggregation/worker_stream.h"

namespace phub::aggregation::search {

// Mistakes that somebody could make, which a search must find. Each is made here, around the
// product's code.
enum class Mistake : std::uint8_t {
  kNone,
  kPublishedBitmaps,        // SwitchML's two bitmaps, without a phase
  kOlderPhaseAdded,         // the aggregator adds a contribution of the phase before
  kDuplicateAdded,          // the aggregator ignores its bitmap
  kSumSentOnce,             // the aggregator never sends a sum again
  kEmptySlotsContent,       // the aggregator asks nobody about a slot without contributions
  kLeaseNotChecked,         // the aggregator adds packets of older leases
  kSumOfAnyPhase,           // the core loop folds sums of older positions
  kRepeatedSumFolded,       // the core loop folds a sum twice
  kAskedOnce,               // the core loop asks for the sums of a position only once
  kRestartKeepsLease,       // a restarted aggregator continues with empty slots
  kReplacementKeepsLease,   // a replaced process continues the stream of its predecessor
  kPartialSumsKept,         // the core loop does not clear open positions when the stream ends
  kRanksDecideForTcpAlone,  // a push over tcp does not make the other ranks push
  kAnnouncementsAnswered,   // the core loop answers an announcement of a complete round over tcp
  kPositionsWait,           // a worker does not push chunks with positions when the stream ends
  kVersionNotChecked,       // a worker takes parameters of any version
};
const char* ToString(Mistake mistake);

struct Shape {
  std::uint32_t iterations = 2;
  std::uint32_t chunks = 2;
  Geometry geometry{};
  std::uint32_t workers = 2;
  // How often each of these may happen, at any moment.
  std::uint32_t losses = 0;        // a datagram is lost
  std::uint32_t duplicates = 0;    // a copy of a datagram arrives, at any later time
  std::uint32_t early_nacks = 0;   // the core loop asks for sums although nothing is lost
  std::uint32_t lost_lanes = 0;    // a worker gets a new tcp lane
  std::uint32_t replacements = 0;  // a worker's process dies and another takes its place
  std::uint32_t restarts = 0;      // the aggregator loses its memory
  std::uint32_t endings = 0;       // the job ends, and another gets the same slots
  std::uint32_t give_ups = 0;      // a worker asks for parameters over tcp
  bool grants_again = true;        // after a restart or a replacement there is a new lease
  Mistake mistake = Mistake::kNone;
  bool last_chunk_is_short = false;  // it has one block, so it does not use all slots of a place
  bool last_chunk_is_late = false;   // it is added, and removed after each of its iterations
  bool slow_parameters = false;      // they fly like other datagrams; otherwise they arrive at once

  std::vector<std::uint32_t> Blocks() const {
    std::vector<std::uint32_t> blocks(chunks, geometry.blocks);
    if (last_chunk_is_short) blocks.back() = 1;
    return blocks;
  }
  // The chunks that exist from the beginning.
  std::uint32_t FirstChunks() const { return last_chunk_is_late ? chunks - 1 : chunks; }
};

struct Event {
  enum class Kind : std::uint8_t {
    kDeliver,  // a: index of a datagram in flight
    kLose,
    kDeliverAndCopy,  // the copy may arrive at any later time, or never
    kDeliverLate,     // a: index of a copy
    kToCore,          // the next message on the lane of worker a
    kFromCore,
    kAssign,  // chunk a
    kNack,    // the core loop asks for the sums of place a; with kPublishedBitmaps worker b sends
              // its part again
    kAsk,     // worker a asks for the parameters of chunk b
    kNackEarly,
    kGiveUp,    // worker a asks for the parameters of chunk b over tcp
    kLoseLane,  // worker a
    kReplace,
    kRestart,
    kNotice,  // control notices the restart
    kGrant,
    kAddAtCore,    // the late chunk, which loses its last life
    kAddAtWorker,  // worker a
    kEndJob,
  };
  Kind kind = Kind::kDeliver;
  std::uint8_t a = 0, b = 0;
};
// Whether the event is needed for progress. The others are troubles, which may also not happen.
bool IsCalm(Event::Kind kind);

std::string TextOf(const phub_packet& packet);

class World {
 public:
  explicit World(const Shape& shape);

  // Every event that is possible now. Timers are slow: questions come only if no other calm event
  // is possible.
  void AppendEvents(std::vector<Event>& events) const;
  // `log`: if not null, gets a line for each thing that happens.
  void Apply(const Event& event, std::string* log);
  // Every program has every iteration.
  bool IsFinished() const;
  // Empty, or the error that has happened.
  const std::string& error() const { return error_; }
  // Equal states have equal words.
  void AppendState(std::vector<std::uint64_t>& words) const;

 private:
  static constexpr std::uint32_t kAtAggregator = 100;
  static constexpr std::uint32_t kAtCoreLoop = 101;
  static constexpr std::uint32_t kBlocksMax = 2;

  struct Datagram {
    std::uint32_t to = 0;  // a worker, or one of the above
    std::uint32_t value = 0;
    phub_packet packet{};
  };
  struct Message {
    enum class Kind : std::uint8_t {
      kAnnounce,
      kPush,
      kMissing,
      kMissingTcp,
      kStreamIs,
      kAssign,
      kUseTcp,
      kParameters,
    };
    Kind kind = Kind::kAnnounce;
    ChunkIndex chunk{};
    Iteration iteration{};
    LeaseNumber lease{};
    Position position{};
    std::array<std::uint32_t, kBlocksMax> values{};  // a push has them, by block
    std::string Text() const;
  };
  // Pushes its chunks in its own order, again and again.
  struct Program {
    std::uint32_t pushes = 0;               // since `first`
    std::uint32_t first = 0;                // the iteration that it started with
    std::vector<std::uint32_t> gradient;    // by chunk: the iteration that the memory holds
    std::vector<std::uint32_t> iterations;  // by chunk: how many have their parameters
  };
  struct Worker {
    explicit Worker(const Shape& shape);
    WorkerStream stream;
    Program program;
    std::uint32_t process = 0;
    bool connected = false;   // it knows whether there is a stream
    std::uint32_t owed = 0;   // a bit for each chunk that was pushed on its present lane
    std::uint32_t lives = 0;  // how often the late chunk was added
    std::vector<Message> to_core, from_core;
  };
  // SwitchML's slot: two sets.
  struct Published {
    std::array<std::uint32_t, 2> bitmap{}, left{}, value{};
  };
  struct Aggregator {
    std::uint32_t lease = 0;
    std::vector<phub_slot> slots;
    std::vector<std::uint32_t> values;
    std::vector<Published> published;
  };
  enum class Control : std::uint8_t { kContent, kUnaware, kMustGrant };

  void Fail(const std::string& error);
  void Log(const std::string& line);
  std::uint32_t GradientOf(std::uint32_t worker, ChunkIndex chunk, std::uint64_t iteration,
                           std::uint32_t block) const;

  void RunProgram(std::uint32_t worker);
  void Perform(std::uint32_t worker, const WorkerActions& actions);
  void Send(std::uint32_t worker, const WorkerAction& action);
  void ReceiveFromCore(std::uint32_t worker);
  void ReceiveAtCore(std::uint32_t worker);
  void Answer(std::uint32_t worker, const Message& message);
  // `summed`: by the aggregator.
  void Perform(const CoreActions& actions, bool summed = false);
  void Publish(const CoreAction& action, bool summed);
  void SendToRanks(Rank rank, const Message& message);
  void SendNack(std::uint32_t place, std::uint32_t worker);
  void SendParameters(std::uint32_t worker, ChunkIndex chunk, Iteration iteration);
  void CheckComplete(const CoreAction& action);

  void Add(const Datagram& datagram);
  void Deliver(const Datagram& datagram);
  void DeliverToWorker(const Datagram& datagram);
  void DeliverParameters(const Datagram& datagram);
  void Complete(std::uint32_t worker, ChunkIndex chunk, Iteration iteration);
  void DeliverToCore(const Datagram& datagram);
  void DeliverToAggregator(Datagram datagram);
  void DeliverNack(const Datagram& datagram);
  bool CanNack(std::uint32_t place) const;
  void DeliverToPublished(const Datagram& datagram);
  void SendSum(const phub_packet& about);

  bool CanAddAtCore() const;
  void AddAtCore();
  void AddAtWorker(std::uint32_t worker);

  void AppendCalmEvents(std::vector<Event>& events) const;
  void AppendTroubles(std::vector<Event>& events) const;
  void AppendNacks(Event::Kind kind, std::vector<Event>& events) const;
  void AppendQuestions(Event::Kind kind, std::vector<Event>& events) const;
  void Ask(std::uint32_t worker, ChunkIndex chunk, bool over_tcp);
  void ReceiveQuestion(std::uint32_t worker, const Message& message);
  void ApplyTrouble(const Event& event);
  void Replace(std::uint32_t worker);
  void Grant();
  void EndJob();
  void StartJob();

  Shape shape_;
  // What workers send over tcp arrives at once, if no stream or lane may end in the middle of a
  // job: then a delay only delays kAssign, which may be delayed anyway.
  bool prompt_lanes_;
  CoreStream core_;
  std::vector<Worker> workers_;
  Aggregator aggregator_;
  Control control_ = Control::kMustGrant;
  std::uint32_t job_ = 0;
  std::uint32_t lives_ = 0;  // how often the late chunk was added at the core loop
  std::uint32_t leases_ = 0;
  std::vector<Datagram> flying_, late_;
  std::vector<std::uint32_t> accumulators_;         // by chunk, then block
  std::vector<std::vector<std::uint32_t>> pushed_;  // by worker: by chunk, then block
  std::vector<std::uint32_t> phases_;               // the phase of each place of the core loop
  std::vector<bool> asked_;                         // by place: about its position
  std::string error_;
  std::string* log_ = nullptr;
};

}  // namespace phub::aggregation::search
