// For administrators: what the ranks of a job are doing. A dump asks every rank for a record over
// its event stream and the core loops for the rounds that wait, and is complete when all have
// answered or its time is over. A rank that does not answer is a finding, not an error.
//
// Cost. A job is dumped at most once a kPause, and callers that come meanwhile share one dump. The
// records of one dump have at most kBytesMax, and the dumps that a tenant and this daemon collect
// at once are limited.
//
// Owned by Control; under control's lock.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "phub/v1/admin.pb.h"
#include "server/control/context.h"
#include "server/control/jobs/job_observer.h"
#include "server/control/jobs/job_table.h"
#include "server/control/jobs/sessions.h"

namespace phub::server {

class StallReports;

class JobDumps final : public JobObserver {
 public:
  static constexpr DurationNs kWaitDefault = 2 * kSecond;  // for the ranks' records
  static constexpr DurationNs kWaitMax = 30 * kSecond;
  static constexpr DurationNs kPause = kSecond;  // from a job's dump to its next one
  static constexpr std::size_t kBytesMax = 4 << 20;
  static constexpr std::size_t kRankBytesMin = 4 << 10;
  static constexpr std::size_t kRankBytesMax = 64 << 10;
  static constexpr std::size_t kCallersMax = 4;  // of one dump
  static constexpr std::size_t kPerTenantMax = 4;
  static constexpr std::size_t kAtOnceMax = 32;

  JobDumps(Context& context, JobTable& jobs, Sessions& sessions, StallReports& stall_reports)
      : context_(context), jobs_(jobs), sessions_(sessions), stall_reports_(stall_reports) {}

  void DumpJob(const v1::DumpJobRequest& request, Answer<v1::JobDump> answer);
  // A rank's record.
  void ReportDump(const v1::ReportDumpRequest& request, Answer<v1::ReportDumpResponse> answer);
  void Check(TimeNs now);
  // The latest time for the next Check().
  TimeNs NextTimer() const;

  void OnOver(Job& job, const absl::Status& why) override;

 private:
  struct RankState {
    bool asked = false;
    bool answered = false;
    bool awaits_more = false;  // of its record
    std::string problem;       // why it has no record, or only a part of it
    v1::RankRecord record;
  };
  // Exists until kPause after its end.
  struct Dump {
    Job* job = nullptr;
    std::uint64_t number = 0;
    TimeNs begins_at = 0;
    DurationNs wait = 0;
    bool begun = false;
    bool finishing = false;
    TimeNs deadline = 0;  // for the records, once begun
    bool has_stalls = false;
    v1::ListStallsResponse stalls;
    std::string stalls_problem;
    std::vector<RankState> ranks;  // [rank]
    std::size_t record_bytes = 0;
    v1::JobDump result;                        // while it is finishing: the first ranks
    std::vector<Answer<v1::JobDump>> callers;  // none: it has ended
    TimeNs ended_at = 0;

    bool complete() const;
  };

  absl::Status CheckRoom(const Job& job) const;
  absl::StatusOr<Dump*> DumpOfCall(Job& job, DurationNs wait);
  void Begin(Dump& dump);
  void AskRank(Dump& dump, std::size_t rank, const v1::SessionEvent& question);
  void AskForStalls(Dump& dump);
  absl::Status Take(RankState& rank, const v1::ReportDumpRequest& report, std::size_t bytes_max);
  void CheckDump(Dump& dump, TimeNs now);
  // The result is made in parts, each in a turn of control with few ranks.
  void Finish(Dump& dump);
  void DescribeMore(Dump& dump);
  void DescribeMoreLater(const Dump& dump);
  void Deliver(Dump& dump);
  v1::JobDump DescribeJob(Dump& dump) const;
  void DescribeRank(Dump& dump, std::size_t rank) const;

  Context& context_;
  JobTable& jobs_;
  Sessions& sessions_;
  StallReports& stall_reports_;
  std::map<std::uint64_t, Dump> dumps_;  // by Job::number
  std::uint64_t begun_ = 0;
};

}  // namespace phub::server
