// Jobs that span racks: what every rack tells every other while they run, and how they end.
#include <algorithm>

#include "common/base/log.h"
#include "common/base/printable.h"
#include "server/control/jobs/key_specs.h"
#include "server/control/racks/rack_run.h"
#include "server/control/state.h"

namespace phub::server {
namespace {

constexpr std::size_t kKeysOverheadBytes = 1024;  // of a message, beside the keys

}  // namespace

// What the other racks have to know, once the core loops have acknowledged it.
void Control::State::AnnounceProgress(Job& job) {
  RackRun& run = *job.rack_run;
  PeerRack& own = run.racks[options.rack_index];
  const std::uint32_t before = own.batches_added;
  while (own.batches_added < job.batches.size() && KeysAcknowledged(job, own.batches_added + 1)) {
    ++own.batches_added;
  }
  if (own.batches_added > before) {
    v1::PeerMessage message;
    message.mutable_keys_added()->set_batches(own.batches_added);
    SendToRacks(job.account.incarnation, message);
    AnswerAcknowledged(job);
  }
}

// A call that has to wait for other racks: `batches` of keys must be everywhere.
bool Control::State::RacksHave(const Job& job, std::uint32_t batches) const {
  if (job.rack_run == nullptr) return true;
  const RackRun& run = *job.rack_run;
  return run.state == RackRun::State::kStanding &&
         std::all_of(run.racks.begin(), run.racks.end(),
                     [&](const PeerRack& rack) { return rack.batches_added >= batches; });
}

// What another daemon cannot receive would stop everything that is behind it.
absl::Status Control::State::CheckKeysForRacks(const Job& job, const KeySpecs& keys) const {
  if (job.rack_run == nullptr) return absl::OkStatus();
  v1::PeerMessage message;
  *message.mutable_keys()->mutable_keys() = FillInDefaults(keys);
  const std::size_t bytes = message.ByteSizeLong();
  if (bytes + kKeysOverheadBytes <= kPeerMessageBytesMax) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format(
      "job {}: a batch of {} keys has {} bytes, and at most {} go to other racks; add the keys in "
      "several batches",
      job.name(), keys.size(), bytes, kPeerMessageBytesMax - kKeysOverheadBytes));
}

void Control::State::TellRacksOfKeys(const Job& job, std::uint32_t batch) {
  if (job.rack_run == nullptr) return;
  v1::PeerMessage message;
  v1::PeerKeys& keys = *message.mutable_keys();
  keys.set_batch(batch);
  keys.set_rank(job.batches[batch].first.value + job.config.rank_base);
  for (const v1::KeySpec& key : job.batches[batch].keys) *keys.add_keys() = key;
  SendToRacks(job.account.incarnation, message);
}

// A rank of another rack was the first to add the batch; or both had it at once.
void Control::State::HandlePeerKeys(Job& job, RackIndex from, const v1::PeerKeys& keys) {
  const auto fail = [&](const std::string& what) {
    Fail(job, MakeFault(job, "keys_mismatch", what));
  };
  if (keys.batch() > job.batches.size()) {
    return fail(fmt::format("{} sent batch {} of its keys out of turn", DescribeRackBriefly(from),
                            keys.batch()));
  }
  if (keys.rank() / job.config.ranks_per_rack != from.value) {
    return counters.Add(ControlCounter::peers_refused_place);
  }
  const Rank rank{keys.rank() - job.config.rank_base};
  if (keys.batch() == job.batches.size()) {
    const absl::Status status = AcceptBatch(job, keys.keys(), rank);
    if (status.ok()) return AnnounceProgress(job);
    return fail(fmt::format("{} cannot take the keys of {}: {}",
                            DescribeRackBriefly(RackIndex{options.rack_index}),
                            DescribeRackBriefly(from), std::string(status.message())));
  }
  const std::string difference = DifferenceInKeys(job, keys.batch(), keys.keys(), rank);
  if (difference.empty()) return;
  counters.Add(ControlCounter::keys_refused_mismatch);
  fail(fmt::format("racks disagree on its keys: {}", difference));
}

void Control::State::HandleRankLeft(Job& job, RackIndex from, const v1::PeerRankLeft& left) {
  PeerRack& rack = job.rack_run->racks[from.value];
  rack.departed = fmt::format("rank {} ({})", left.rank(), Printable(left.host()));
  // What is complete there everybody has reached, though another rack's word of it may still be on
  // its way here. The barrier that the rank left in the middle of is none of these.
  const std::uint64_t complete = std::min(left.barriers(), rack.barriers_reached);
  for (PeerRack& each : job.rack_run->racks) {
    each.barriers_reached = std::max(each.barriers_reached, complete);
  }
  CompleteBarriers(job);
  RefuseBarriersWithout(job, rack.departed);
}

// Every rank here is in the job's next barrier: are those of the other racks?
bool Control::State::RacksReachedBarrier(Job& job) {
  if (job.rack_run == nullptr) return true;
  std::vector<PeerRack>& all = job.rack_run->racks;
  const std::uint64_t reached = job.barriers_done + 1;
  if (all[options.rack_index].barriers_reached < reached) {
    all[options.rack_index].barriers_reached = reached;
    v1::PeerMessage message;
    message.mutable_barrier()->set_reached(reached);
    SendToRacks(job.account.incarnation, message);
  }
  return std::all_of(all.begin(), all.end(),
                     [&](const PeerRack& rack) { return rack.barriers_reached >= reached; });
}

// This rack's ranks have all left: its part ends when everybody's have, since other racks' partial
// sums and parameters may still pass through it.
void Control::State::EndIfAllLeft(Job& job) {
  RackRun& run = *job.rack_run;
  PeerRack& own = run.racks[options.rack_index];
  const auto has_left = [](const Member& each) { return each.state == Member::State::kLeft; };
  if (!run.said_left && job.pending.empty() &&
      std::all_of(job.members.begin(), job.members.end(), has_left)) {
    run.said_left = own.left = true;
    job.nobody_since = 0;  // the other racks are at work: see NoteIfNobodyIsHere
    v1::PeerMessage message;
    message.mutable_left();
    SendToRacks(job.account.incarnation, message);
  }
  const bool all = std::all_of(run.racks.begin(), run.racks.end(),
                               [](const PeerRack& rack) { return rack.left; });
  if (all && job.running() && !job.diagnosis) EndInOrder(job);
}

void Control::State::TellRacksOfFailure(const Job& job) {
  // Rack 0 says again what another rack says: one that has not heard of the job yet does not know
  // what that was about, and has it opened later on.
  if (job.rack_run == nullptr || (job.failed_elsewhere && options.rack_index != 0)) return;
  v1::PeerMessage message;
  *message.mutable_failed()->mutable_fault() = job.fault;
  SendToRacks(job.account.incarnation, message);
}

}  // namespace phub::server
