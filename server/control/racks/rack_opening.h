// Opens jobs that span racks:
//
//   1. Rack 0 makes the plan and sends the job to every rack.
//   2. Once every rack has the job, rack 0 lets the racks open the lanes between them.
//   3. Once every rack is ready, the waiting ranks are answered.
//
// "Every rack" means every one that takes part; see RackRun::TakesPart.
//
// Ranks of other racks wait (held joins) until rack 0 has opened their job, or until a timeout.
// Owned by Control; under control's lock.
#pragma once

#include <list>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "phub/v1/peer.pb.h"
#include "server/control/context.h"
#include "server/control/jobs/peer_racks.h"
#include "server/control/racks/deferred_messages.h"
#include "server/control/racks/held_joins.h"
#include "server/control/racks/known_racks.h"
#include "server/control/racks/rack_protocol.h"

namespace phub::server {

class Joins;
class Ending;
class JobTable;
class LocalRack;
class PeerLanes;
class PendingCalls;
class RackGroups;
class RackJobs;
class RackMessages;
class RackPlans;
class TopologySurvey;

// The job as its first rank requests it; the rank is numbered within the whole job. Pure function.
v1::PeerJob JobOf(const v1::JoinRequest& request, const JobSettings& settings);

class RackOpening final : public JobOpener {
 public:
  RackOpening(Context& context, KnownRacks& known, DeferredMessages& deferred, HeldJoins& held,
              Joins& joins, Ending& ending, JobTable& jobs, LocalRack& local_rack,
              PeerLanes& peer_lanes, PendingCalls& pending_calls, RackJobs& rack_jobs,
              RackGroups& rack_groups, RackMessages& messages, RackPlans& plans,
              TopologySurvey& survey)
      : context_(context),
        known_(known),
        deferred_(deferred),
        held_(held),
        joins_(joins),
        ending_(ending),
        jobs_(jobs),
        local_rack_(local_rack),
        peer_lanes_(peer_lanes),
        pending_calls_(pending_calls),
        rack_jobs_(rack_jobs),
        rack_groups_(rack_groups),
        messages_(messages),
        plans_(plans),
        survey_(survey) {}

  bool OpensAtOnce() const override;
  absl::StatusOr<Job*> Open(const v1::JoinRequest& request, const JobSettings& settings) override;
  void AskToOpen(const v1::JoinRequest& request, std::string_view peer_address,
                 const JobSettings& settings, Answer<v1::JoinResponse> answer) override;
  std::string WhatRanksWaitFor(const std::string& tenant, const std::string& job) const override;

  void HandleOpenRequest(RackIndex from, const v1::PeerMessage& message);
  void HandleOpen(RackIndex from, const v1::PeerMessage& message);
  void HandleOpened(Job& job, RackIndex from, const v1::PeerOpened& opened);
  void RefuseHeld(const v1::PeerRefused& refused, Incarnation incarnation);
  void HandleReady(Job& job, RackIndex from);
  void HandleStart(Job& job, RackIndex from);

  void AdvanceRackRun(Job& job);
  void CheckOpening(Job& job, TimeNs now);
  // Refuses ranks that have waited too long for rack 0 to open their job.
  void RefuseLate(TimeNs now);
  TimeNs NextDeadline() const;  // until RefuseLate; kNever if no rank waits

 private:
  struct GrantWait {  // an enlargement that was asked for
    TimeNs since = 0;
    bool answered = false;
    absl::Status status = {};
  };
  using JobName = std::pair<std::string, std::string>;  // tenant, job
  void AskForGrant(const JobName& name, const Usage& needed);
  // Reads the job that another rack's daemon requests, or that rack 0's daemon opens.
  absl::StatusOr<JobSettings> ReadJob(RackIndex from, const v1::PeerJob& job) const;
  absl::StatusOr<Job*> OpenEverywhere(v1::PeerJob job, const JobSettings& settings,
                                      Incarnation incarnation);
  absl::StatusOr<Job*> CreateRackJob(const v1::PeerJob& job, const JobSettings& settings,
                                     Incarnation incarnation);
  absl::Status CheckNoRun(RackIndex from, const v1::PeerMessage& message, bool& is_settled);
  void Do(Job& job, const RackSteps& steps);
  void MarkReady(Job& job);
  void JoinHeld(const v1::PeerJob& job, Incarnation incarnation);
  std::list<HeldJoin> TakeHeld(const std::string& tenant, const std::string& job,
                               Incarnation incarnation);
  // Whether the message must wait until this daemon's grant covers the job. If so, it is deferred.
  // `status`: why the grant cannot be enlarged.
  bool AwaitsGrant(RackIndex from, const v1::PeerMessage& message, const v1::PeerJob& job,
                   const JobSettings& settings, absl::Status& status);
  DurationNs ExtraPatience() const;  // while the topology may be being measured
  std::string WhyNotOpened() const;
  std::string UnreadyRacks(const RackRun& run) const;

  Context& context_;
  KnownRacks& known_;
  DeferredMessages& deferred_;
  HeldJoins& held_;
  Joins& joins_;
  Ending& ending_;
  JobTable& jobs_;
  LocalRack& local_rack_;
  PeerLanes& peer_lanes_;
  PendingCalls& pending_calls_;
  RackJobs& rack_jobs_;
  RackGroups& rack_groups_;
  RackMessages& messages_;
  RackPlans& plans_;
  TopologySurvey& survey_;
  std::map<JobName, GrantWait> grant_waits_;
};

}  // namespace phub::server
