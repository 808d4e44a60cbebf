// What control knows of one job's run over several racks, in addition to what job.h keeps about its
// part here. Data; the rules are in the classes of this folder. Owned by the Job.
//
// The protocol (rack_protocol.h) keeps the state of the run and of each peer rack. Any error fails
// the job in all racks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/plan/around.h"
#include "phub/v1/admin.pb.h"
#include "phub/v1/peer.pb.h"
#include "server/control/jobs/job.h"
#include "server/control/jobs/job_exchange.h"
#include "server/control/racks/rack_protocol.h"

namespace phub::server {

// A lane to one core loop of another rack.
struct PeerLanePlace {
  GrantedNonce nonce;
  std::vector<GrantedNonce> offers;  // [transport index]; see PeerLaneOffer in peer.proto
  std::unique_ptr<transport::Connection> connection;
  std::string description;
};

// A rank of another rack that is lost and may come back (policy wait), as its daemon reports.
struct LostElsewhere {
  std::string host;
  std::string loss;
  TimeNs awaited_until = 0;
};

// The last round that the other racks were asked about; see rack_late_rounds.h.
struct LateQuestion {
  StallReport::Round round;
  DurationNs usual = 0;  // the usual duration of an iteration
};

// The last report of ranks that have not joined; see rack_arrivals.h.
struct MissingReport {
  v1::RanksMissing report;
  TimeNs at = 0;  // 0: none yet
};

// What another rack has reported.
struct PeerRack {
  std::vector<PeerLanePlace> lanes;     // [core]
  std::string departed;                 // a rank of it that left, for messages; empty: none
  std::uint32_t batches_added = 0;      // with the same keys as here
  std::uint32_t batches_announced = 0;  // may not be compared yet
  std::uint32_t key_work = 0;           // batches that it sent, not yet built or compared here
  std::uint64_t barriers_reached = 0;
  std::map<std::uint32_t, LostElsewhere> lost;  // by rank of the job; only ranks of this rack
  MissingReport missing;
};

// Ranks of two racks disagree about a round, and other racks are asked for their values.
struct RackConflict {
  RackIndex source{};
  RackIndex other{};
  KeyIndex key{};
  Iteration iteration{};
  Conflict sides;
  TimeNs due = 0;  // the job ends then, even without an answer
};

// At rack 0: the plan for a group, phub.plan.v2, or v1 for all racks.
struct GroupPlanText {
  std::string text;
  std::uint64_t participants = 0;  // a bit per rack and aggregator that takes part
  plan::LinkTimes times;
};

// At rack 0: a batch of a group that was sent to the group's racks, until the last of them has
// answered.
struct GroupAttempt {
  // A bit per rack that has not reserved the batch or, if it is refused, not released it.
  std::uint64_t awaited = 0;
  absl::Status refusal;              // why the first such rack cannot add the batch
  bool is_refused = false;           // rack 0 has sent it
  std::vector<PlacementBin> before;  // the group's loads without the batch
};

// At rack 0: the removal of a group.
struct GroupRemovalSteps {
  v1::PeerGroupStep step = v1::PEER_GROUP_STEP_CALLED;  // that some racks have not taken
  std::uint64_t awaited = 0;                            // a bit per such rack
};

// At rack 0: a group of the job that has members in several racks.
struct GroupMade {
  // As in the racks of its members, but its batches only have keys, and as chunks their numbers on
  // lanes between racks.
  std::shared_ptr<Group> group;
  GroupPlanText plan;
  std::unique_ptr<GroupAttempt> attempt;       // at the last batch; null: all racks have it
  std::unique_ptr<GroupRemovalSteps> removal;  // null: all members of no rack have called
  // Requests that came while racks were releasing the last batch, or removing the group.
  std::vector<std::shared_ptr<const v1::PeerGroupAsked>> later;

  bool is_going() const {
    return (attempt != nullptr && attempt->is_refused) ||
           (removal != nullptr && removal->step != v1::PEER_GROUP_STEP_CALLED);
  }
};

// A batch of a group that rack 0 sent, until rack 0 decides whether the group has it.
struct GroupReservation {
  enum class State : std::uint8_t {
    kBuilding,
    kTakingPages,
    kAnswered,  // rack 0 knows whether this rack can add it
    kRefused,   // waits until no batch is being built
    kFreeing,
  };
  State state = State::kBuilding;
  std::shared_ptr<const v1::PeerGroupKeys> keys;
  std::shared_ptr<Group> group;
  // The group's, without the batch.
  std::vector<PlacementBin> bins;
  std::vector<exchange::TreeChooser> choosers;
  std::shared_ptr<BatchRecord> batch;  // if this rack could add it
  absl::Status refusal;                // rack 0's decision
  DoneFlag memory_free;                // null: it is
};

// A batch of a group that rack 0 was asked for, and the calls of this rack that wait for it.
struct GroupAsked {
  std::string name;
  std::vector<std::uint32_t> ranks;
  std::uint32_t batch = 0;
  std::vector<std::function<void(const absl::Status&)>> waiting;
};

inline bool IsAsked(const GroupAsked& asked, const v1::GroupSpec& spec, std::uint32_t batch) {
  return asked.name == spec.name() && asked.batch == batch &&
         std::ranges::equal(asked.ranks, spec.ranks());
}

struct RackRun {
  explicit RackRun(RackProtocol made) : protocol(std::move(made)) {}

  // Racks that the plan does not use do not have the job. Nobody sends them messages of the run,
  // waits for them or judges them.
  bool TakesPart(RackIndex rack) const { return exchange->plan.TakesPart(rack); }

  RackProtocol protocol;
  // Racks to which groups need lanes and the job's plan does not: a bit per rack.
  std::uint64_t group_neighbors = 0;
  // By a group's number, and by rack: the batches that it has. A rack may report before rack 0
  // does.
  std::map<std::uint32_t, std::vector<std::uint32_t>> group_batches;
  std::vector<GroupAsked> group_asked;
  std::map<std::uint32_t, GroupReservation> group_reservations;  // by the group's number
  // At rack 0.
  std::map<std::uint32_t, GroupMade> groups_made;   // by number
  std::map<std::uint32_t, std::string> ranks_left;  // of other racks, with their hosts
  plan::LinkTimes group_times;                      // plans of groups_made and groups_declared
  // By members, see DeclaredName: plans of groups that were declared and that nobody has added keys
  // to yet.
  std::map<std::string, GroupPlanText> groups_declared;
  std::uint32_t group_number = 0;          // the last one given; none is used twice
  std::vector<NumberSpace> group_numbers;  // [core]: of chunks of groups, on lanes between racks
  // Requests, one at a time; the first is under way.
  std::deque<std::shared_ptr<const v1::PeerGroupAsked>> group_work;
  std::optional<LateQuestion> late_question;
  std::string asked;      // "auto", a planner's name, "file"
  v1::PeerJob described;  // including the plan
  std::string planner;
  std::shared_ptr<const plan::Topology> topology;  // the topology for which the plan was made
  std::shared_ptr<JobExchange> exchange;           // shared with the job
  std::vector<PeerRack> racks;                     // [rack], including this one
  v1::ExchangeInfo measured;   // the shards' measurements, kept after the shards are freed
  v1::ExchangeInfo predicted;  // for its exchange_bytes; computed on request
  // The fault of a lane that was lost or could not be opened. That rack has probably ended the job,
  // and its reason will arrive over another connection. If not, the job fails with this fault once
  // the protocol says so.
  v1::Fault put_off;
  std::optional<RackConflict> conflict;
  TimeNs notice_due = 0;           // of missing ranks, to the ranks of this rack; 0: none
  bool knows_first_fault = false;  // rack 0 has reported which fault it recorded
  // The fault if messages of this run to another rack were dropped because they filled the queue
  // that other jobs use, too.
  std::string crowded_out;
};
// group_attempts.cc: the numbers of the batch's chunks on lanes between racks are free.
void ReturnNumbers(RackRun& run, const BatchRecord& batch);
// rack_plans.cc: the plan for jobs that request `asked`: auto, a planner's name, or a plan.
absl::StatusOr<plan::Forest> MakeForest(const plan::Topology& topology, const std::string& asked,
                                        bool aggregators);
// rack_measures.cc: DescribeMeasures fills in spans, links, memory and exchange_bytes; `info` must
// contain the racks.
void DescribeMeasures(const RackRun& run, v1::ExchangeInfo& info);
// Predicted times. They are simulated once per size, which takes time: Simulate needs no lock.
struct Prediction {
  std::shared_ptr<const plan::Topology> topology;
  std::shared_ptr<const JobExchange> exchange;
  std::string plan;
  std::uint64_t chunk_bytes = 0;
  v1::ExchangeInfo info;  // the size and spans; Simulate adds the times
};
// Null: run.predicted has the times for this size, or there is nothing to predict.
std::shared_ptr<Prediction> StartPrediction(const RackRun& run, const v1::ExchangeInfo& info);
void Simulate(Prediction& prediction);
void AddPrediction(const v1::ExchangeInfo& predicted, v1::ExchangeInfo& info);

}  // namespace phub::server
