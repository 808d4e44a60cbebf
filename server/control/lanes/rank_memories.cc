#include "server/control/lanes/rank_memories.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "common/base/check.h"
#include "server/control/lanes/in_rack.h"
#include "server/control/on_control.h"
#include "server/control/text.h"

namespace phub::server {

absl::Status RankMemories::TakeStaging(const Job& job, Member& member) const {
  PHUB_ON_CONTROL();
  const std::uint64_t bytes =
      StagingBytesPerLane(job.config) +
      std::uint64_t{job.config.slots_per_lane} * SlotHeaderBytes(context_.options.lane_transports);
  const SharedMemory::ReleaseHook hook = host_memory_.left().HookOf(job.account);
  for (LanePlace& place : member.lanes) {
    absl::StatusOr<LentMemory> made =
        LentMemory::Create(host_memory_.lent_kind(), "phub-staging", bytes,
                           SharedMemory::Others::kWrite, SharedMemory::Pages::kNow, hook);
    if (!made.ok()) return made.status();
    place.staging = std::make_shared<const LentMemory>(*std::move(made));
  }
  return absl::OkStatus();
}

absl::Status RankMemories::RenewRankMemory(Job& job, Rank rank) {
  PHUB_ON_CONTROL();
  const SilenceGuard guard(context_);
  Member& member = job.members[rank.value];
  DropRankMemory(job, member);
  // Ordinary memory can be reused: the old process cannot map it, and the core loop discards the
  // payload in it.
  return host_memory_.shares_memory() ? TakeStaging(job, member) : absl::OkStatus();
}

void RankMemories::DropRankMemory(Job& job, Member& member) {
  PHUB_ON_CONTROL();
  context_.ledger.Return(job.account, member.memory.worker_bytes);
  job.memory_bytes -= member.memory.worker_bytes;
  member.memory = {};
}

bool RankMemories::IsProcessOf(Job& job, Rank rank, const PeerProcess& process) {
  PHUB_ON_CONTROL();
  std::optional<PeerProcess>& known = job.members[rank.value].memory.process;
  if (!known) known = process;
  if (*known == process) return true;
  context_.counters.Add(ControlCounter::shared_refused_process);
  context_.log.Warning(
      "event=shared_memory_refused tenant={} job=\"{}\" rank={} pid={} uid={} owner_pid={} "
      "owner_uid={}",
      job.account.tenant, job.name(), rank.value, process.pid, process.uid, known->pid, known->uid);
  return false;
}

absl::StatusOr<transport::LaneMemory> RankMemories::SharedLaneMemory(const wire::LaneHello& given) {
  PHUB_ON_CONTROL();
  const wire::LaneHello hello = InRack(jobs_, given);
  Job* job = jobs_.FindIncarnation(hello.incarnation);
  if (job == nullptr || !job->running() || hello.rank.value >= job->members.size() ||
      hello.core.value >= context_.cores.size()) {
    return absl::AbortedError("the job has ended");
  }
  Member& member = job->members[hello.rank.value];
  const std::shared_ptr<const LentMemory>& staging = member.lanes[hello.core.value].staging;
  PHUB_CHECK(staging != nullptr && staging->shared() != nullptr, "job={} rank={}", job->name(),
             hello.rank.value);
  if (!member.memory.regions) {
    member.memory.regions = std::make_shared<transport::SharedRegions>();
  }
  transport::LaneMemory memory;
  memory.staging = staging->shared();
  memory.slot_count = job->config.slots_per_lane;
  memory.slot_bytes = job->config.chunk_bytes;
  memory.regions = member.memory.regions;
  memory.rings_hook = host_memory_.left().HookOf(job->account);
  return memory;
}

absl::StatusOr<LaneStaging> RankMemories::StagingOf(const wire::LaneHello& given) {
  PHUB_ON_CONTROL();
  const wire::LaneHello hello = InRack(jobs_, given);
  Job* job = jobs_.FindIncarnation(hello.incarnation);
  if (job == nullptr || !job->running()) return absl::AbortedError("the job has ended");
  // Payload from other racks is received into the memory of the exchange.
  if (job->rack_run != nullptr && LaneOwner::OfHello(hello.rank).is_rack()) return LaneStaging{};
  if (hello.rank.value >= job->members.size() || hello.core.value >= context_.cores.size()) {
    return absl::AbortedError("the job has ended");
  }
  const std::shared_ptr<const LentMemory>& staging =
      job->members[hello.rank.value].lanes[hello.core.value].staging;
  return LaneStaging{.data = staging->data(),
                     .slot_count = job->config.slots_per_lane,
                     .slot_bytes = job->config.chunk_bytes,
                     .owner = staging};
}

// Creates the region that a rank requested for the gradients and results of a batch.
absl::Status RankMemories::MakeWorkerRegion(Job& job, Member& member, RankBatch& entry,
                                            std::uint64_t bytes, std::uint32_t region) {
  if (!host_memory_.shares_memory()) {
    return absl::FailedPreconditionError(
        fmt::format("job {}: shared memory is disabled on this daemon (shm = off)", job.name()));
  }
  if (bytes > wire::kSharedRegionBytesMax) {
    return absl::InvalidArgumentError(fmt::format("job {}: shared_bytes is {}; the limit is {}",
                                                  job.name(), bytes, wire::kSharedRegionBytesMax));
  }
  if (!member.memory.regions) member.memory.regions = std::make_shared<transport::SharedRegions>();
  if (absl::Status room = context_.ledger.Reserve(job.account, bytes); !room.ok()) {
    // Callers that have not asked for a grant find one at their next attempt.
    context_.Cover(job.account.tenant, {.memory_bytes = bytes}, [](const absl::Status&) {});
    return room;
  }
  const SilenceGuard guard(context_);
  absl::StatusOr<SharedMemory> made = SharedMemory::Create(
      "phub-worker", bytes, SharedMemory::Others::kWrite, SharedMemory::Pages::kLater);
  std::uint32_t index = kNoRegion;
  absl::Status status = made.status();
  if (status.ok()) {
    made->SetReleaseHook(host_memory_.left().HookOf(job.account));
    entry.worker = std::make_shared<const SharedMemory>(*std::move(made));
    status = host_memory_.TakePagesOf(
        {{.data = entry.worker->data(), .bytes = bytes, .owner = entry.worker}},
        entry.worker_pages);
  }
  if (status.ok() && region == kNoRegion) {
    index = member.memory.regions->Add(entry.worker, /*writable_by_peer=*/true);
  } else if (status.ok() &&
             member.memory.regions->AddAt(region, entry.worker, /*writable_by_peer=*/true)) {
    index = region;
  }
  if (index == kNoRegion) {
    context_.ledger.Return(job.account, bytes);
    entry.worker.reset();
    return status.ok()
               ? absl::ResourceExhaustedError(fmt::format(
                     "job {}: a rank can share at most {} memory regions with a daemon; add "
                     "keys in larger batches",
                     job.name(), wire::kSharedRegionsMax))
               : status;
  }
  entry.worker_region = index;
  member.memory.worker_bytes += bytes;
  job.memory_bytes += bytes;
  return absl::OkStatus();
}

// Regions are numbered in the order of batches: in each batch the region of the worker, then the
// parameters.
absl::Status RankMemories::ShareBatch(Job& job, Rank rank, std::uint32_t batch,
                                      std::uint64_t worker_bytes) {
  PHUB_ON_CONTROL();
  Member& member = job.members[rank.value];
  const std::shared_ptr<const SharedMemory>& parameters =
      job.batches[batch].parameters.shared.shared();
  std::vector<RankBatch>& batches = member.memory.batches;
  if (batch < batches.size() && batches[batch].made) return absl::OkStatus();
  RankBatch entry;
  entry.made = true;
  if (parameters != nullptr && !member.memory.regions) {
    member.memory.regions = std::make_shared<transport::SharedRegions>();
  }
  if (worker_bytes > 0) {
    if (absl::Status status = MakeWorkerRegion(job, member, entry, worker_bytes); !status.ok()) {
      return context_.Refuse(ControlCounter::keys_refused_region, status);
    }
  }
  if (parameters != nullptr) {  // if the table is full, replies carry the parameters, as over tcp
    entry.parameters_region = member.memory.regions->Add(parameters, /*writable_by_peer=*/false);
  }
  batches.resize(std::max<std::size_t>(batches.size(), batch + 1));
  batches[batch] = std::move(entry);
  return absl::OkStatus();
}

RankMemories::Withdrawn RankMemories::Withdraw(Member& member, std::uint32_t first_batch) {
  PHUB_ON_CONTROL();
  Withdrawn withdrawn;
  std::vector<RankBatch>& batches = member.memory.batches;
  std::uint32_t regions = 0;
  for (std::size_t i = first_batch; i < batches.size(); ++i) {
    const RankBatch& entry = batches[i];
    regions += (entry.worker_region != kNoRegion) + (entry.parameters_region != kNoRegion);
    if (entry.worker == nullptr) continue;
    withdrawn.pushable.push_back({entry.worker->data(), entry.worker->bytes()});
    withdrawn.bytes += entry.worker->bytes();
  }
  std::ranges::sort(withdrawn.pushable, std::less<const std::byte*>(),
                    [](std::span<const std::byte> each) { return each.data(); });
  if (regions > 0) {
    for (auto& each : member.memory.regions->RemoveLast(regions))
      withdrawn.memory.push_back(std::move(each));
  }
  batches.resize(std::min<std::size_t>(batches.size(), first_batch));
  return withdrawn;
}

absl::Status RankMemories::ShareGroupBatch(Job& job, Rank rank, const Group& group,
                                           std::uint32_t batch, std::uint32_t region,
                                           std::uint64_t bytes) {
  PHUB_ON_CONTROL();
  if (bytes == 0) return absl::OkStatus();
  std::map<std::uint32_t, RankGroupBatch>& batches = job.members[rank.value].memory.group_batches;
  const auto refuse = [&](const char* why) {
    return context_.Refuse(
        ControlCounter::keys_refused_region,
        absl::InvalidArgumentError(
            fmt::format("{} requested region {} of shared memory for group {} of job {}, {}",
                        DescribeRankBriefly(job, rank), region, group.name, job.name(), why)));
  };
  for (const auto& [index, each] : batches) {
    if (each.group != group.id || each.batch != batch) continue;
    return index == region ? absl::OkStatus() : refuse("but has another one for this batch");
  }
  const bool is_of_groups = region >= wire::kGroupRegionsFirst &&
                            region - wire::kGroupRegionsFirst < wire::kGroupRegionsMax;
  if (!is_of_groups) return refuse("which is not a region of groups");
  if (batches.contains(region)) return refuse("which is in use");
  RankGroupBatch entry{.group = group.id, .batch = batch, .memory = {}};
  entry.memory.made = true;
  absl::Status status = MakeWorkerRegion(job, job.members[rank.value], entry.memory, bytes, region);
  if (!status.ok()) return context_.Refuse(ControlCounter::keys_refused_region, status);
  batches.emplace(region, std::move(entry));
  return absl::OkStatus();
}

RankMemories::Withdrawn RankMemories::WithdrawGroup(Member& member, std::uint64_t group) {
  PHUB_ON_CONTROL();
  Withdrawn withdrawn;
  for (auto& [index, entry] : member.memory.group_batches) {
    if (entry.group != group) continue;
    const SharedMemory& worker = *entry.memory.worker;
    withdrawn.pushable.push_back({worker.data(), worker.bytes()});
    withdrawn.bytes += worker.bytes();
    withdrawn.memory.push_back(member.memory.regions->Remove(index));
    withdrawn.memory.push_back(std::exchange(entry.memory.worker, nullptr));
    entry.memory.nonce.Drop();
  }
  std::ranges::sort(withdrawn.pushable, std::less<const std::byte*>(),
                    [](std::span<const std::byte> each) { return each.data(); });
  return withdrawn;
}

void RankMemories::ForgetGroup(Member& member, std::uint64_t group) {
  PHUB_ON_CONTROL();
  std::erase_if(member.memory.group_batches,
                [&](const auto& each) { return each.second.group == group; });
}

void RankMemories::GrantGroupBatch(Member& member, std::uint64_t group, std::uint32_t batch,
                                   v1::AddKeysResponse& response) {
  PHUB_ON_CONTROL();
  for (auto& [index, entry] : member.memory.group_batches)
    if (entry.group == group && entry.batch == batch && entry.memory.worker != nullptr)
      Grant(entry.memory, response);
}

void RankMemories::Grant(RankBatch& entry, v1::AddKeysResponse& response) {
  const wire::Nonce& nonce =
      entry.nonce.Grant(context_.random, context_.clock.Now() + context_.options.nonce_lifetime);
  response.set_shared_nonce(nonce.data(), nonce.size());
  context_.counters.Add(ControlCounter::batches_granted);
}

void RankMemories::GrantBatch(const Job& job, Member& member, std::uint32_t batch,
                              v1::AddKeysResponse& response) {
  PHUB_ON_CONTROL();
  if (batch >= member.memory.batches.size()) return;
  RankBatch& entry = member.memory.batches[batch];
  const bool has_parameters = entry.parameters_region != kNoRegion;
  if (!has_parameters && entry.worker == nullptr) return;
  Grant(entry, response);
  if (has_parameters) {
    response.set_shared_parameters_bytes(job.batches[batch].parameters.shared.bytes());
  }
}

// Null: the rank has no such batch.
RankBatch* RankMemories::FindBatch(Member& member, std::uint32_t batch) {
  if (batch < wire::kGroupBatchesFirst)
    return batch < member.memory.batches.size() ? &member.memory.batches[batch] : nullptr;
  const auto found = member.memory.group_batches.find(batch - wire::kGroupBatchesFirst);
  return found == member.memory.group_batches.end() ? nullptr : &found->second.memory;
}

wire::LaneRefusal RankMemories::CheckBatch(const wire::SharedBatchRequest& request,
                                           const PeerProcess& process,
                                           transport::BatchMemory& memory) {
  Job* job = jobs_.FindIncarnation(request.incarnation);
  if (job == nullptr || !job->running() ||
      request.membership_epoch != job->config.membership_epoch) {
    return wire::LaneRefusal::kJob;
  }
  if (request.rank.value >= job->members.size()) return wire::LaneRefusal::kNonce;
  Member& member = job->members[request.rank.value];
  RankBatch* const found = FindBatch(member, request.batch);
  if (found == nullptr) return wire::LaneRefusal::kNonce;
  RankBatch& entry = *found;
  if (!entry.nonce.IsGood(context_.clock.Now()) || !member.present() ||
      !entry.nonce.Take(request.nonce)) {
    return wire::LaneRefusal::kNonce;
  }
  if (!IsProcessOf(*job, request.rank, process)) return wire::LaneRefusal::kNonce;
  if (entry.worker != nullptr) {
    memory.worker = entry.worker;
    memory.worker_region = entry.worker_region;
  }
  if (entry.parameters_region != kNoRegion) {
    memory.parameters = job->batches[request.batch].parameters.shared.shared();
    memory.parameters_region = entry.parameters_region;
  }
  return wire::LaneRefusal::kNone;
}

wire::LaneRefusal RankMemories::AdmitBatch(const wire::SharedBatchRequest& request,
                                           const PeerProcess& process,
                                           transport::BatchMemory& memory) {
  PHUB_ON_CONTROL();
  const wire::LaneRefusal refusal = CheckBatch(InRack(jobs_, request), process, memory);
  switch (refusal) {
    case wire::LaneRefusal::kNone: context_.counters.Add(ControlCounter::batches_fetched); break;
    case wire::LaneRefusal::kJob: context_.counters.Add(ControlCounter::batches_refused_job); break;
    default: context_.counters.Add(ControlCounter::batches_refused_nonce); break;
  }
  return refusal;
}

}  // namespace phub::server
