// What control knows of one job's run over several racks, in addition to what job.h says of its
// part here. Data; the rules are in the classes of this room. Owned by the Job.
//
// How far the run is, and each peer rack with it, says its protocol (rack_protocol.h). Any trouble
// fails the job everywhere.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

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

// A rank of another rack that is lost and may come back (policy wait), as its daemon says.
struct LostElsewhere {
  std::string host;
  std::string loss;
  TimeNs awaited_until = 0;
};

// What another rack has said.
struct PeerRack {
  std::vector<PeerLanePlace> lanes;  // [core]
  std::string departed;              // a rank of it that left, for people; empty: none
  std::uint32_t batches_added = 0;
  std::uint64_t barriers_reached = 0;
  std::map<std::uint32_t, LostElsewhere> lost;  // by rank of the job: of this rack's only
};

struct RackRun {
  explicit RackRun(RackProtocol made) : protocol(std::move(made)) {}

  RackProtocol protocol;
  std::string asked;      // "auto", a planner's name, "file"
  v1::PeerJob described;  // with the plan
  std::string planner;
  std::shared_ptr<const plan::Topology> topology;  // for which the plan was made
  std::shared_ptr<JobExchange> exchange;           // the job's, too
  std::vector<PeerRack> racks;                     // [rack]; the own one, too
  v1::ExchangeInfo measured;   // what is kept of the shards' measures, once they are gone
  v1::ExchangeInfo predicted;  // of exchange_bytes; made when somebody asks for it
  // A lane was lost or could not be made: its rack has ended the job, and why is on its way here by
  // another connection. Or it has not: then this is the fault, once the protocol says so.
  v1::Fault put_off;
  // Messages of the run that waited for another rack were dropped, as those of other jobs would
  // have been otherwise: the fault.
  std::string crowded_out;
};
// rack_plans.cc: the plan of jobs that ask for `asked`: auto, a planner's name, or a plan.
absl::StatusOr<plan::Forest> MakeForest(const plan::Topology& topology, const std::string& asked,
                                        bool aggregators);
// rack_measures.cc: spans, links and exchange_bytes, without predictions; `info` has the racks. And
// the predictions for them: simulated once for a size, which takes time.
void DescribeMeasures(const RackRun& run, v1::ExchangeInfo& info);
void DescribePrediction(RackRun& run, v1::ExchangeInfo& info);

}  // namespace phub::server
