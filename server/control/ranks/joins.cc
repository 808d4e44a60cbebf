#include "server/control/ranks/joins.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "server/control/jobs/grant_needs.h"
#include "server/control/jobs/job_options.h"
#include "server/control/on_control.h"
#include "server/control/text.h"

namespace phub::server {
namespace {

// How long a new job waits until the processes of ended jobs have unmapped the memory that it
// needs.
constexpr DurationNs kJoinGrace = 5 * kSecond;

}  // namespace

const std::string& TenantOf(const v1::JoinRequest& request) {
  static const std::string fallback = kDefaultTenant;
  return request.tenant().empty() ? fallback : request.tenant();
}

// The memory of a job without keys: shards, staging memory and lanes. Does not include the regions
// that ranks request for their batches.
std::uint64_t Joins::MemoryOfJob(const Job& job) const {
  const LaneTransports& transports = context_.options.lane_transports;
  const std::uint64_t lane = WorkerLaneBytes(transports) +
                             std::uint64_t{job.config.slots_per_lane} * SlotHeaderBytes(transports);
  std::uint64_t exchange = 0;
  if (job.exchange != nullptr) {
    const exchange::RackPlan& plan = job.exchange->plan;
    exchange =
        exchange::ShardExchangeBytes(plan) +
        static_cast<std::uint64_t>(std::popcount(plan.neighbors)) * PeerLaneBytes(transports);
  }
  const std::uint64_t shards =
      (JobShardBytes(job.config) + exchange + job.config.world_size * lane) * context_.cores.size();
  if (!host_memory_.shares_memory()) return shards;
  const std::uint64_t tables =
      std::uint64_t{wire::kSharedRegionsMax} * sizeof(transport::SharedRegion) +
      std::uint64_t{wire::kGroupRegionsMax} * sizeof(transport::SharedRegion*);
  return shards + job.config.world_size * tables;
}

absl::Status Joins::BuildShards(Job& job) {
  const SilenceGuard guard(context_);
  absl::Status status;
  for (std::size_t core = 0; core < context_.cores.size() && status.ok(); ++core) {
    job.shards.push_back(MakeJobShard(job.config));
    if (job.shards.back() == nullptr) status = absl::ResourceExhaustedError("out of address space");
    if (job.exchange == nullptr || !status.ok()) continue;
    auto exchange = exchange::MakeShardExchange(job.exchange->plan, job.config.ranks_of_job);
    if (exchange == nullptr) status = absl::ResourceExhaustedError("out of address space");
    job.shards.back()->exchange = exchange.get();
    job.exchange->shards.push_back(std::move(exchange));
  }
  for (Member& member : job.members) {
    if (status.ok()) status = rank_memories_.TakeStaging(job, member);
  }
  sums_.Begin(job);
  if (status.ok()) return status;
  return absl::ResourceExhaustedError(
      fmt::format("job {} was not created: phubd could not allocate the {} that it needs: {}",
                  job.name(), FormatBytes(MemoryOfJob(job)), std::string(status.message())));
}

absl::Status Joins::CheckRoom(const v1::JoinRequest& request) {
  PHUB_ON_CONTROL();
  if (context_.drain.draining) {
    return context_.Refuse(
        ControlCounter::joins_refused_draining,
        absl::UnavailableError(fmt::format(
            "phubd is draining and accepts no new jobs; job {} was not created; running jobs may "
            "continue for {}",
            request.job(),
            FormatAge(std::max<DurationNs>(0, context_.drain.deadline - context_.clock.Now())))));
  }
  if (context_.state_disk.shared && !context_.state_disk.fault.empty()) {
    return context_.Refuse(ControlCounter::joins_refused_disk,
                           absl::UnavailableError(fmt::format(
                               "job {} was not created: {}. Try again when etcd answers",
                               request.job(), context_.state_disk.fault)));
  }
  if (!context_.state_disk.fault.empty()) {
    return context_.Refuse(
        ControlCounter::joins_refused_disk,
        absl::UnavailableError(fmt::format(
            "job {} was not created: phubd cannot store administrators' changes, so it accepts no "
            "new jobs: {}. Free space on the daemon's disk and try again",
            request.job(), context_.state_disk.fault)));
  }
  if (jobs_.jobs().size() >= context_.options.jobs_max) {
    return context_.Refuse(
        ControlCounter::joins_refused_capacity,
        absl::ResourceExhaustedError(fmt::format(
            "job {} was not created: {} jobs are running or ending, the limit of this daemon",
            request.job(), jobs_.jobs().size())));
  }
  for (std::size_t core = 0; core < context_.cores.size(); ++core) {
    if (context_.cores[core].backlog() < context_.options.backlog_max) continue;
    return context_.Refuse(
        ControlCounter::joins_refused_capacity,
        absl::UnavailableError(fmt::format(
            "job {} was not created: core loop {} has a backlog of {} commands; try again later",
            request.job(), core, context_.cores[core].backlog())));
  }
  return absl::OkStatus();
}

absl::StatusOr<Job*> Joins::CreateJob(const v1::JoinRequest& request, const JobSettings& settings,
                                      RackParts racks) {
  PHUB_ON_CONTROL();
  if (absl::Status room = CheckRoom(request); !room.ok()) return room;
  auto job = std::make_unique<Job>();
  job->account = {
      TenantOf(request), request.job(),
      request.incarnation() == 0 ? jobs_.DrawIncarnation() : Incarnation{request.incarnation()}};
  job->rack_run = std::move(racks.run);
  job->exchange = std::move(racks.exchange);
  job->settings = settings;
  job->config = MakeShardConfig(settings, job->account.incarnation);
  job->config.tenant = shares_.NumberOfTenant(job->account.tenant);
  const std::uint64_t bytes = MemoryOfJob(*job);
  if (absl::Status status = context_.ledger.Open(job->account, settings.world_size,
                                                 ChargesOf(context_.options, settings));
      !status.ok()) {
    return context_.Refuse(ControlCounter::joins_refused_quota, status);
  }
  if (absl::Status status = context_.ledger.Reserve(job->account, bytes); !status.ok()) {
    context_.ledger.Close(job->account);
    // What it exchanges with other racks was not asked for. The next attempt finds it.
    context_.Cover(job->account.tenant, {.memory_bytes = bytes}, [](const absl::Status&) {});
    context_.log.Warning("event=memory_short tenant={} job=\"{}\" held_by=\"{}\"",
                         job->account.tenant, job->name(), context_.ledger.DescribeHolders());
    return context_.Refuse(ControlCounter::joins_refused_capacity, status);
  }
  job->members.resize(settings.world_size);
  for (Member& member : job->members) member.lanes.resize(context_.cores.size());
  if (absl::Status status = BuildShards(*job); !status.ok()) {
    context_.ledger.Close(job->account);
    return context_.Refuse(ControlCounter::joins_refused_capacity, status);
  }
  job->memory_bytes = bytes;
  job->created_by = Rank{request.rank()};
  job->created_at = context_.clock.Now();
  const std::vector<std::uint32_t>& cores = settings.daemon_cores;
  const auto own = cores.begin() + context_.options.rack_self;
  job->own_bins = {std::accumulate(cores.begin(), own, 0u), *own};
  job->bins = BinsForJob(std::accumulate(cores.begin(), cores.end(), 0u), job->name());
  job->chunk_numbers.resize(job->bins.size());
  if (job->exchange != nullptr) job->group_loads.resize(job->bins.size());
  for (std::size_t core = 0; core < context_.cores.size(); ++core) {
    JobShard* shard = job->shards[core].get();
    jobs_.AddShard(shard, *job, CoreAt(core));
    shard->config.share = shares_.ShareOf(job->account.tenant, core);
    job->add_job_tickets.push_back(
        context_.cores[core].Send({.kind = Command::Kind::kAddJob, .shard = shard}));
  }
  context_.counters.Add(ControlCounter::jobs_created);
  context_.log.Info(
      "event=job_created tenant={} job=\"{}\" incarnation={} ranks={} chunk_bytes={} slots={} "
      "memory_bytes={}",
      job->account.tenant, job->name(), FormatIncarnation(job->account.incarnation),
      settings.world_size, job->config.chunk_bytes, job->config.slots_per_lane, bytes);
  return jobs_.Add(std::move(job));
}

// Checks whether a rank may take its place in a running job.
absl::Status Joins::CheckPlace(const Job& job, const v1::JoinRequest& request,
                               const JobSettings& settings) {
  const std::string difference =
      DifferenceInSettings(settings, job.settings, DescribeRankBriefly(job, job.created_by));
  if (!difference.empty()) {
    return context_.Refuse(
        ControlCounter::joins_refused_options,
        absl::InvalidArgumentError(fmt::format(
            "rank {} ({}) tried to join job {} with {}; every rank must use the same options",
            request.rank(), request.host(), job.name(), difference)));
  }
  const Rank rank{request.rank()};
  const Member& member = job.members[rank.value];
  switch (member.state) {
    case Member::State::kAwaited: return absl::OkStatus();
    case Member::State::kLost: return seats_.CheckTakeOver(job, request);
    case Member::State::kReserved:
    case Member::State::kLive:
      if (job.settings.on_loss == LossPolicy::kWait) return seats_.CheckTakeOver(job, request);
      [[fallthrough]];
    case Member::State::kDead:
      return context_.Refuse(
          ControlCounter::joins_refused_rank_held,
          absl::AlreadyExistsError(fmt::format(
              "rank {} of job {} is held by a live worker on host {}, pid {} (last contact {} "
              "ago); use a different rank or a different job name",
              rank.value + job.config.rank_base, job.name(), member.host, member.pid,
              FormatAge(context_.clock.Now() - member.last_heard))));
    case Member::State::kLeft: break;
  }
  return context_.Refuse(
      ControlCounter::joins_refused_rank_left,
      absl::FailedPreconditionError(fmt::format(
          "{} has left job {}, which is still running; a new run can start when every rank "
          "has left",
          DescribeRank(job, rank), job.name())));
}

v1::JoinResponse Joins::DescribeSeat(const Job& job, Rank rank, std::uint32_t version,
                                     bool created) {
  v1::JoinResponse response;
  response.set_protocol_version(version);
  response.set_daemon_version(context_.options.version);
  response.set_session_id(job.members[rank.value].session_id);
  response.set_incarnation(job.account.incarnation.value);
  response.set_membership_epoch(job.config.membership_epoch.value);
  response.set_chunk_bytes(job.config.chunk_bytes);
  response.set_slots_per_lane(job.config.slots_per_lane);
  response.set_liveness_timeout_ns(context_.options.liveness_timeout);
  response.set_wait_timeout_ns(job.settings.wait_timeout);
  response.set_movements(true);
  response.set_movement_max(kMovementMax);
  response.set_collective_keys(true);
  response.set_groups(true);
  response.set_pooled_keys(true);
  response.set_pooled_moves(true);
  response.set_priority_classes(true);
  response.set_removes_keys(true);
  response.set_encoding_max(numeric::kEncodingMax);
  response.set_operation_max(v1::Operation_MAX);
  response.set_tls_lanes(context_.options.tls_lanes);
  response.set_encryption_required(context_.ledger.RequiresEncryption(job.account.tenant));
  response.set_created(created);
  response.set_apply(job.settings.apply_iteration ? v1::APPLY_ITERATION : v1::APPLY_CHUNK);
  response.set_sum_streams(SumStreams::MayStream(job));
  response.set_sum(job.settings.sum_block != 0 ? v1::SUM_FIXED : v1::SUM_FLOAT);
  for (std::size_t core = 0; core < context_.endpoints.size(); ++core) {
    v1::CoreEndpoint& endpoint = *response.add_cores();
    endpoint.set_core(static_cast<std::uint32_t>(core));
    endpoint.set_host(context_.endpoints[core].host);
    endpoint.set_port(context_.endpoints[core].port);
  }
  if (host_memory_.shares_memory()) *response.mutable_shared_memory() = host_memory_.endpoint();
  return response;
}

absl::Status Joins::CheckTenant(const std::string& tenant, const JobSettings& settings) {
  if (!context_.ledger.HasTenant(tenant)) {
    return context_.Refuse(ControlCounter::joins_refused_tenant,
                           absl::NotFoundError(fmt::format(
                               "this daemon has no tenant {}; leave the tenant empty to use {}",
                               tenant, kDefaultTenant)));
  }
  if (settings.sum_block != 0 && context_.ledger.RequiresEncryption(tenant)) {
    return context_.Refuse(
        ControlCounter::joins_refused_tenant,
        absl::FailedPreconditionError(fmt::format(
            "tenant {} requires encryption, but sum=fixed is for sums in the network, whose "
            "datagrams are not encrypted; use sum=float",
            tenant)));
  }
  if (!context_.ledger.IsSuspended(tenant)) return absl::OkStatus();
  return context_.Refuse(
      ControlCounter::joins_refused_tenant,
      absl::PermissionDeniedError(fmt::format(
          "tenant {} is suspended: no worker can join; ask the administrator", tenant)));
}

bool Joins::OnlyLeftIsInTheWay(const v1::JoinRequest& request, const JobSettings& settings) {
  host_memory_.left().Check();
  if (settings.racks > 0 || context_.ledger.left_bytes() == 0) return false;
  Job job;  // only to compute its size
  job.config = MakeShardConfig(settings, Incarnation{});
  return context_.ledger.OnlyLeftIsInTheWay(TenantOf(request), MemoryOfJob(job));
}

bool Joins::WaitsForUnusedRun(TimeNs deadline, const v1::JoinRequest& request,
                              std::string_view peer_address,
                              const Answer<v1::JoinResponse>& answer) {
  Job* const run = jobs_.FindIncarnation(Incarnation{request.incarnation()});
  if (run == nullptr || !run->unused || run->account.tenant != TenantOf(request) ||
      run->name() != request.job()) {
    return false;
  }
  run->on_closed.push_back([this, deadline, kept = Kept(request), peer = std::string(peer_address),
                            answer] { JoinUntil(deadline, kept, peer, answer); });
  return true;
}

void Joins::TryWaiting() {
  PHUB_ON_CONTROL();
  const TimeNs now = context_.clock.Now();
  for (WaitingJoins::Waiting& each : waiting_.Take(now, context_.ledger.left_bytes())) {
    JoinUntil(each.deadline, each.request, each.peer_address, std::move(each.answer));
  }
}

void Joins::GetRack(const v1::GetRackRequest& request, Answer<v1::Rack> answer) {
  PHUB_ON_CONTROL();
  v1::Rack rack = local_rack_.DescribeRack();
  local_rack_.DescribeSettings(rack);
  if (!request.job().empty()) {
    const std::string& tenant = request.tenant().empty() ? kDefaultTenant : request.tenant();
    rack.set_waits_for(opener_.WhatRanksWaitFor(tenant, request.job()));
  }
  answer(absl::OkStatus(), rack);
}

void Joins::Join(const v1::JoinRequest& request, std::string_view peer_address,
                 Answer<v1::JoinResponse> answer) {
  JoinUntil(context_.clock.Now() + kJoinGrace, request, peer_address, std::move(answer));
}

void Joins::JoinUntil(TimeNs deadline, const v1::JoinRequest& given, std::string_view peer_address,
                      Answer<v1::JoinResponse> answer) {
  const auto refuse = [&](const absl::Status& status) { answer(status, {}); };
  const absl::StatusOr<std::uint32_t> version =
      ChooseProtocolVersion(given, context_.options.version);
  if (!version.ok()) {
    return refuse(context_.Refuse(ControlCounter::joins_refused_version, version.status()));
  }
  const absl::StatusOr<std::vector<std::uint32_t>> daemon_cores = local_rack_.CheckRack(given);
  if (!daemon_cores.ok()) {
    return refuse(context_.Refuse(ControlCounter::joins_refused_rack, daemon_cores.status()));
  }
  const absl::StatusOr<JobSettings> settings = CheckJoin(given, context_.options, *daemon_cores);
  if (!settings.ok()) {
    if (Job* const run = jobs_.FindRunningJob(TenantOf(given), given.job()); run != nullptr) {
      arrivals_.NoteRefusal(*run, given, settings.status());
    }
    return refuse(context_.Refuse(ControlCounter::joins_refused_invalid, settings.status()));
  }
  v1::JoinRequest request = given;
  request.set_rank(given.rank() - settings->rank_base);
  const std::string& tenant = TenantOf(request);
  if (absl::Status status = CheckTenant(tenant, *settings); !status.ok()) return refuse(status);
  if (WaitsForUnusedRun(deadline, given, peer_address, answer)) return;
  const absl::StatusOr<Job*> run = local_rack_.FindRunToJoin(request, tenant);
  if (!run.ok()) return refuse(context_.Refuse(ControlCounter::joins_refused_rack, run.status()));
  Job* job = *run;
  const bool created = job == nullptr;
  if (created) {
    const bool awaits_older = jobs_.FindRunningJob(tenant, request.job()) != nullptr;
    if (settings->racks > 0 && (awaits_older || !opener_.OpensAtOnce())) {
      return opener_.AskToOpen(given, peer_address, *settings, std::move(answer));
    }
    if (OnlyLeftIsInTheWay(request, *settings) && context_.clock.Now() < deadline &&
        waiting_.Add({Kept(given), std::string(peer_address), answer, deadline},
                     context_.ledger.left_bytes())) {
      return;
    }
    if (WaitsForGrant(deadline, given, *settings, peer_address, answer)) return;
    const absl::StatusOr<Job*> made =
        settings->racks > 0 ? opener_.Open(given, *settings) : CreateJob(request, *settings);
    if (!made.ok()) return refuse(made.status());
    job = *made;
  } else if (absl::Status status = CheckPlace(*job, request, *settings); !status.ok()) {
    arrivals_.NoteRefusal(*job, given, status);
    return refuse(status);
  }
  const Rank rank{request.rank()};
  Member& member = job->members[rank.value];
  if (member.state != Member::State::kAwaited) {
    if (absl::Status status = seats_.TakeOver(*job, rank); !status.ok()) return refuse(status);
  }
  seats_.Seat(*job, request, peer_address);
  job->pending.push_back({job->add_job_tickets,
                          [this, job, &member, rank, created, chosen = *version, answer,
                           session_id = member.session_id] {
                            if (member.session_id != session_id) {
                              return answer(sessions_.TakenOver(*job, rank), {});
                            }
                            // It could not attend before this answer.
                            NoteHeard(member, context_.clock.Now());
                            v1::JoinResponse response = DescribeSeat(*job, rank, chosen, created);
                            response.set_resumed(member.committed);
                            answer(absl::OkStatus(), response);
                          },
                          [answer](const absl::Status& status) { answer(status, {}); },
                          /*awaits_racks=*/job->rack_run != nullptr});
  pending_calls_.AnswerAcknowledged(*job);
}

}  // namespace phub::server
