// Streams of sums (docs/aggregation.md): which jobs have one, and from when to when. A job with
// sum=fixed gets a stream on a core loop once every rank has a lane there, and loses it if its
// aggregator is lost, or if sums do not arrive. Then its gradients go over tcp, and control asks
// the same aggregator for a new lease after a while. With several aggregators each core loop of a
// job has one of them (aggregator_shares.h); those of other core loops do not matter to it.
//
// Owned by Control; under control's lock.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/control/context.h"
#include "server/control/jobs/job_table.h"
#include "server/control/lanes/sum_network.h"

namespace phub::server {

class SumStreams {
 public:
  SumStreams(Context& context, JobTable& jobs) : context_(context), jobs_(jobs) {}

  // Without a network no job has a stream. It must outlive every job.
  void SetNetwork(SumNetwork& network) { network_ = &network; }

  // The job has its shards, and the core loops do not have them yet.
  void Begin(Job& job) const;
  // The rank receives datagrams there; none: it takes part in no stream.
  void NoteEndpoint(Job& job, Rank rank, CoreIndex core, const std::string& endpoint) const;
  // Opens, closes and retries.
  void Advance(Job& job, TimeNs now);
  TimeNs NextTimer(const Job& job, TimeNs now) const;

  void HandleGranted(AggregatorIndex aggregator, Incarnation incarnation, CoreIndex core,
                     const absl::StatusOr<phub_lease>& lease);
  void HandleLost(AggregatorIndex aggregator, aggregation::LeaseNumber number,
                  const absl::Status& why);

  // Some core loop of the job may get a stream.
  static bool MayStream(const Job& job);
  // For administrators, one for each core loop: "aggregator 10.0.0.9:7701", with several
  // aggregators "aggregator 10.0.0.9:7701 (/run/phub/a.sock)"; "tcp: it is full".
  static std::vector<std::string> WaysOf(const Job& job);

 private:
  std::string WhyNever(const Job& job) const;
  // By aggregator, of all jobs.
  std::vector<std::uint32_t> CountStreams() const;
  std::string WhyNotYet(const Job& job, CoreIndex core) const;
  void AdvanceCore(Job& job, CoreIndex core, TimeNs now);
  void Ask(Job& job, CoreIndex core);
  void Close(Job& job, CoreIndex core, std::string reason, DurationNs pause);
  std::string WhyClosed(const Job& job, CoreIndex core, TimeNs now) const;

  Context& context_;
  JobTable& jobs_;
  SumNetwork* network_ = nullptr;
};

}  // namespace phub::server
