#include "server/control/racks/rack_jobs.h"

#include <algorithm>

#include "common/base/printable.h"
#include "server/control/jobs/ending.h"
#include "server/control/keys/key_specs.h"
#include "server/control/keys/keys.h"
#include "server/control/on_control.h"
#include "server/control/racks/rack_messages.h"
#include "server/control/racks/rack_run.h"
#include "server/control/ranks/barriers.h"

namespace phub::server {
namespace {

constexpr std::size_t kKeysOverheadBytes = 1024;  // what a message has in addition to the keys

}  // namespace

void RackJobs::AnnounceProgress(Job& job) {
  PHUB_ON_CONTROL();
  RackRun& run = *job.rack_run;
  PeerRack& own = run.racks[context_.options.rack_index];
  const std::uint32_t before = own.batches_added;
  while (own.batches_added < job.batches.size() &&
         pending_calls_.KeysAcknowledged(job, own.batches_added + 1)) {
    ++own.batches_added;
  }
  if (own.batches_added > before) {
    v1::PeerMessage message;
    message.mutable_keys_added()->set_batches(own.batches_added);
    messages_.SendToRacks(job, message);
    pending_calls_.AnswerAcknowledged(job);
  }
}

// Whether every rack has `batches` batches of keys; until then calls that depend on them wait.
bool RackJobs::HaveKeys(const Job& job, std::uint32_t batches) const {
  PHUB_ON_CONTROL();
  if (job.rack_run == nullptr) return true;
  const RackRun& run = *job.rack_run;
  return run.protocol.standing() &&
         std::all_of(run.racks.begin(), run.racks.end(),
                     [&](const PeerRack& rack) { return rack.batches_added >= batches; });
}

std::size_t RackJobs::KeysBytesMax(const Job& job) const {
  return job.rack_run == nullptr ? 0 : kPeerMessageBytesMax - kKeysOverheadBytes;
}

void RackJobs::TellOfKeys(const Job& job, const SharedPeerMessage& message) {
  messages_.ShareWithRacks(job, message);
}

void RackJobs::FailOverKeys(Job& job, const std::string& what) {
  ending_.Fail(job, ending_.MakeFault(job, "keys_mismatch", what));
}

void RackJobs::HandlePeerKeys(Job& job, RackIndex from, std::shared_ptr<const v1::PeerKeys> keys) {
  PHUB_ON_CONTROL();
  if (keys->rank() / job.config.ranks_per_rack != from.value) {
    return context_.counters.Add(ControlCounter::peers_refused_place);
  }
  ++job.rack_run->racks[from.value].key_work;
  TakePeerKeys(job, from, keys);
}

void RackJobs::TakePeerKeys(Job& job, RackIndex from,
                            const std::shared_ptr<const v1::PeerKeys>& keys) {
  if (job.key_build != nullptr) {
    return Keys::AfterBuild(job, [this, &job, from, keys] {
      if (job.running()) TakePeerKeys(job, from, keys);
    });
  }
  if (keys->batch() > job.batches.size()) {
    return FailOverKeys(job, fmt::format("{} sent batch {} of its keys out of order",
                                         context_.options.DescribeRack(from), keys->batch()));
  }
  if (keys->batch() < job.batches.size()) return ComparePeerKeys(job, from, keys);
  keys_.BuildPeerBatch(job, std::shared_ptr<const KeySpecs>(keys, &keys->keys()),
                       Rank{keys->rank() - job.config.rank_base},
                       [this, &job, from](const absl::Status& status) {
                         if (!job.running()) return;
                         if (!status.ok()) {
                           const RackIndex self{context_.options.rack_index};
                           return FailOverKeys(job, fmt::format("{} cannot add the keys of {}: {}",
                                                                context_.options.DescribeRack(self),
                                                                context_.options.DescribeRack(from),
                                                                std::string(status.message())));
                         }
                         AnnounceProgress(job);
                         EndKeyWork(job, from);
                       });
}

void RackJobs::ComparePeerKeys(Job& job, RackIndex from,
                               const std::shared_ptr<const v1::PeerKeys>& keys) {
  const auto difference = std::make_shared<KeyDifference>();
  context_.turns.RunLong(
      static_cast<std::size_t>(keys->keys_size()), job.account.tenant,
      [difference, first = job.batches[keys->batch()].keys, keys] {
        *difference = CompareKeys(*first, keys->keys());
      },
      [this, difference, from, keys, incarnation = job.account.incarnation] {
        Job* const found = jobs_.FindIncarnation(incarnation);
        if (found == nullptr || !found->running()) return;
        if (!difference->found) return EndKeyWork(*found, from);
        context_.counters.Add(ControlCounter::keys_refused_mismatch);
        const Rank rank{keys->rank() - found->config.rank_base};
        FailOverKeys(*found,
                     fmt::format("racks disagree on the keys they added: {}",
                                 Describe(*difference, *found, found->batches[keys->batch()],
                                          keys->batch(), rank)));
      });
}

// The batches that the rack has added count only after those that it has sent are compared: nobody
// may push to keys that differ.
void RackJobs::EndKeyWork(Job& job, RackIndex from) {
  PeerRack& rack = job.rack_run->racks[from.value];
  --rack.key_work;
  HandleKeysAdded(job, from, rack.batches_announced);
}

void RackJobs::HandleKeysAdded(Job& job, RackIndex from, std::uint32_t batches) {
  PHUB_ON_CONTROL();
  PeerRack& rack = job.rack_run->racks[from.value];
  rack.batches_announced = batches;
  if (rack.key_work > 0) return;
  rack.batches_added = batches;
  pending_calls_.AnswerAcknowledged(job);
}

void RackJobs::HandleRankLeft(Job& job, RackIndex from, const v1::PeerRankLeft& left) {
  PHUB_ON_CONTROL();
  PeerRack& rack = job.rack_run->racks[from.value];
  rack.departed = fmt::format("rank {} ({})", left.rank(), Printable(left.host()));
  job.rack_run->ranks_left.emplace(left.rank(), left.host());
  // Every rack has reached the barriers that are complete there, though its message may not have
  // arrived yet. The barrier during which the rank left is not among them.
  const std::uint64_t complete = std::min(left.barriers(), rack.barriers_reached);
  for (PeerRack& each : job.rack_run->racks) {
    each.barriers_reached = std::max(each.barriers_reached, complete);
  }
  barriers_.CompleteBarriers(job);
  barriers_.RefuseBarriersWithout(job, rack.departed);
}

// Every rank of this rack is in the job's next barrier. Returns whether those of the other racks
// are, too.
bool RackJobs::ReachedBarrier(Job& job) {
  PHUB_ON_CONTROL();
  if (job.rack_run == nullptr) return true;
  std::vector<PeerRack>& all = job.rack_run->racks;
  const std::uint64_t reached = job.barriers_done + 1;
  if (all[context_.options.rack_index].barriers_reached < reached) {
    all[context_.options.rack_index].barriers_reached = reached;
    v1::PeerMessage message;
    message.mutable_barrier()->set_reached(reached);
    messages_.SendToRacks(job, message);
  }
  return std::all_of(all.begin(), all.end(),
                     [&](const PeerRack& rack) { return rack.barriers_reached >= reached; });
}

// All ranks of this rack have left. Its part of the job ends only when the ranks of all racks have
// left, since partial sums and parameters of other racks may still pass through it.
void RackJobs::EndIfAllLeft(Job& job) {
  PHUB_ON_CONTROL();
  RackProtocol& protocol = job.rack_run->protocol;
  const auto has_left = [](const Member& each) { return each.state == Member::State::kLeft; };
  if (job.pending.empty() && std::ranges::all_of(job.members, has_left) &&
      Has(protocol.On(RunEvent::kRanksLeft), RackAction::kSayLeft)) {
    job.nobody_since = 0;  // other racks still work: see NoteIfNobodyIsHere
    v1::PeerMessage message;
    message.mutable_left();
    messages_.SendToRacks(job, message);
  }
  if (job.running() && !job.diagnosis &&
      Has(protocol.On(RunEvent::kEndAllowed), RackAction::kEndInOrder)) {
    ending_.EndInOrder(job);
  }
}

void RackJobs::OnFailed(Job& job) {
  PHUB_ON_CONTROL();
  if (job.rack_run == nullptr) return;
  if (Has(job.rack_run->protocol.On(RunEvent::kFailedHere), RackAction::kTellFailed)) {
    v1::PeerMessage message;
    *message.mutable_failed()->mutable_fault() = job.fault;
    messages_.SendToRacks(job, message);
  }
  if (!AwaitsFirstFault(job)) return;
  job.announce_at =
      context_.clock.Now() + std::min(kFirstFaultWaitMax, context_.options.liveness_timeout / 4);
}

// Not if rack 0 does not answer anyway, or if the job has no ranks that train here.
bool RackJobs::AwaitsFirstFault(const Job& job) const {
  const RackRun& run = *job.rack_run;
  if (context_.options.rack_index == 0 || run.knows_first_fault || job.members.empty())
    return false;
  const DurationNs silence = context_.clock.Now() - known_.LastHeard(RackIndex{0});
  return run.protocol.standing() && silence < context_.options.liveness_timeout / 2;
}

void RackJobs::TakeFirstFault(Job& job, const v1::PeerFailed& failed) {
  PHUB_ON_CONTROL();
  if (job.rack_run == nullptr) return;
  job.rack_run->knows_first_fault = true;
  ending_.TakeFirstFault(job, failed.fault());
}

void RackJobs::OnReleased(Job& job) {
  PHUB_ON_CONTROL();
  if (job.rack_run == nullptr) return;
  v1::ExchangeInfo kept;
  for (const std::string& endpoint : context_.options.racks) kept.add_racks(endpoint);
  DescribeMeasures(*job.rack_run, kept);
  kept.clear_racks();
  job.rack_run->measured = std::move(kept);
  for (PeerRack& rack : job.rack_run->racks) rack.lanes.clear();
}

std::vector<std::string> RackJobs::DepartedRanks(const Job& job) const {
  PHUB_ON_CONTROL();
  std::vector<std::string> departed;
  if (job.rack_run == nullptr) return departed;
  for (const PeerRack& rack : job.rack_run->racks) {
    if (!rack.departed.empty()) departed.push_back(rack.departed);
  }
  return departed;
}

void RackJobs::TellOfDeparture(const Job& job, Rank rank) {
  PHUB_ON_CONTROL();
  if (job.rack_run == nullptr) return;
  v1::PeerMessage message;
  message.mutable_rank_left()->set_rank(rank.value + job.config.rank_base);
  message.mutable_rank_left()->set_host(job.members[rank.value].host);
  message.mutable_rank_left()->set_barriers(job.barriers_done);
  messages_.SendToRacks(job, message);
}

bool RackJobs::IsLeaving(const Job& job) const {
  return job.rack_run != nullptr && job.rack_run->protocol.left();
}

void RackJobs::ForgiveSilence(DurationNs duration) {
  PHUB_ON_CONTROL();
  const TimeNs now = context_.clock.Now();
  known_.ForgiveSilence(duration, now);
  for (const auto& job : jobs_.jobs()) {
    if (job->rack_run != nullptr) job->rack_run->protocol.Forgive(duration);
  }
}

// Messages are ordered, so the other racks receive the refusal before this rank's next barrier.
void RackJobs::TellOfRefusedLoad(const Job& job, std::uint64_t load_number, int code,
                                 const std::string& why) {
  PHUB_ON_CONTROL();
  v1::PeerMessage message;
  message.mutable_load_refused()->set_number(load_number);
  message.mutable_load_refused()->set_code(code);
  message.mutable_load_refused()->set_message(why);
  messages_.SendToRacks(job, message);
}

}  // namespace phub::server
