// What a worker says of the other daemons of its rack: that the job has ended there, or that its
// saved state cannot be loaded. This daemon's part of the job goes the same way; what could not be
// loaded is told other racks.
#include <algorithm>

#include "common/base/log.h"
#include "common/base/printable.h"
#include "server/control/state.h"

namespace phub::server {
namespace {

constexpr std::size_t kSentenceBytesMax = 2048;  // several times what a daemon says of a fault

// A worker's words, which others will read.
std::string Sentence(std::string_view text) { return Printable(text, kSentenceBytesMax); }

}  // namespace

void Control::State::EndByVerdict(Job& job, Rank rank, const std::string& verdict) {
  counters.Add(ControlCounter::jobs_ended_elsewhere);
  LogInfo("event=job_ended_elsewhere tenant={} job=\"{}\" rank={}", job.account.tenant, job.name(),
          rank.value);
  v1::Fault fault;
  fault.set_code("failed_elsewhere");
  fault.set_message(Sentence(verdict));
  fault.set_tenant(job.account.tenant);
  fault.set_job(job.name());
  Fail(job, std::move(fault));
}

void Control::State::DropBrought(Job& job, int code, const std::string& why) {
  const bool known = code > 0 && code <= static_cast<int>(absl::StatusCode::kUnauthenticated);
  job.load_refusal = absl::Status(
      known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown, Sentence(why));
  counters.Add(ControlCounter::loads_refused);
  if (job.arrival) FailArrival(job, job.load_refusal);
  if (job.brought) {  // the core loops let go of it
    for (const auto& [key, iteration] : job.brought->iterations_before)
      job.keys[key].set_first_iteration(iteration);
    job.brought->tickets.clear();
    for (std::size_t core = 0; core < links.size(); ++core) {
      job.brought->tickets.push_back(
          links[core].Send({.kind = Command::Kind::kBringState, .shard = job.shards[core].get()}));
    }
    job.replaced_states.push_back(std::move(job.brought));
  }
}

// The other racks hear of it before they hear that this rank has reached another barrier.
LoadId Control::State::RefuseLoad(Job& job, Rank rank, const v1::LoadStateRequest& refusal) {
  DropBrought(job, refusal.refusal_code(), refusal.refusal());
  if (job.rack_run != nullptr) {
    v1::PeerMessage message;
    message.mutable_load_refused()->set_number(++job.newest_load);
    message.mutable_load_refused()->set_code(refusal.refusal_code());
    message.mutable_load_refused()->set_message(Sentence(refusal.refusal()));
    SendToRacks(job.account.incarnation, message);
  }
  auto arrival = std::make_unique<StateArrival>();
  arrival->id = ++loads_begun;
  arrival->rank = rank;
  arrival->session_id = refusal.session_id();
  arrival->deadline = clock.Now() + options.transfer_timeout;
  arrival->is_refusal = true;
  job.arrival = std::move(arrival);
  return job.arrival->id;
}

// From here on the keys count as they did when they were saved; unless it is dropped.
void Control::State::TakeOverIterations(Job& job, const v1::LoadedState& loaded) {
  for (const v1::KeyStateInfo& info : loaded.keys()) {
    const std::uint64_t reductions = std::min(info.reductions(), loaded.iteration());
    auto& key = job.keys[info.key_index()];
    job.brought->iterations_before.emplace_back(info.key_index(), key.first_iteration());
    key.set_first_iteration(loaded.iteration() - reductions);
  }
}

}  // namespace phub::server
