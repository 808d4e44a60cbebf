#include <algorithm>
#include <array>
#include <bit>
#include <numeric>

#include "common/base/log.h"
#include "server/control/jobs/job_options.h"
#include "server/control/jobs/silence_guard.h"
#include "server/control/racks/rack_run.h"
#include "server/control/racks/rack_survey.h"
#include "server/control/state.h"
#include "server/control/text.h"

namespace phub::server {
namespace {

constexpr std::size_t kSessionIdBytes = 16;

std::string DrawSessionId(Random& random) {
  std::array<std::byte, kSessionIdBytes> bytes;
  random.Fill(bytes);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

const std::string& TenantOf(const v1::JoinRequest& request) {
  static const std::string fallback = kDefaultTenant;
  return request.tenant().empty() ? fallback : request.tenant();
}

}  // namespace

absl::Status Control::State::Refuse(ControlCounter counter, absl::Status status) {
  counters.Add(counter);
  LogWarning("event=refused reason={} message=\"{}\"",
             kControlCounterNames[static_cast<std::size_t>(counter)],
             std::string(status.message()));
  return status;
}

Incarnation Control::State::DrawIncarnation() {
  for (;;) {
    const Incarnation drawn{random.Next()};
    const auto is_drawn = [&](const auto& job) { return job->account.incarnation == drawn; };
    if (drawn.value != 0 && std::none_of(jobs.begin(), jobs.end(), is_drawn) &&
        std::none_of(ended.begin(), ended.end(), is_drawn)) {
      return drawn;
    }
  }
}

Job* Control::State::FindRunningJob(const std::string& tenant, const std::string& name) {
  for (const auto& job : jobs) {
    if (job->running() && job->account.tenant == tenant && job->name() == name) return job.get();
  }
  return nullptr;
}

// With staging, and what its ranks may share with this daemon but for regions of their own.
std::uint64_t Control::State::MemoryOfJob(const Job& job) const {
  const std::uint64_t network_lane =
      options.verbs_lane_bytes + options.tls_lane_bytes +
      std::uint64_t{job.config.slots_per_lane} * options.slot_header_bytes;
  std::uint64_t exchange = 0;
  if (job.rack_run != nullptr) {
    const exchange::RackPlan& plan = job.rack_run->plan;
    exchange = exchange::ShardExchangeBytes(plan) +
               static_cast<std::uint64_t>(std::popcount(plan.neighbors)) *
                   (options.tls_lane_bytes + options.peer_verbs_lane_bytes);
  }
  const std::uint64_t shards =
      (JobShardBytes(job.config) + exchange + job.config.world_size * network_lane) * links.size();
  if (!shares_memory()) return shards;
  const std::uint64_t tables =
      std::uint64_t{wire::kSharedRegionsMax} * sizeof(transport::SharedRegion);
  return shards + job.config.world_size * (tables + options.shared_lane_bytes * links.size());
}

absl::Status Control::State::BuildShards(Job& job) {
  const SilenceGuard guard(*this);
  absl::Status status;
  for (std::size_t core = 0; core < links.size() && status.ok(); ++core) {
    job.shards.push_back(MakeJobShard(job.config));
    if (job.shards.back() == nullptr) status = absl::ResourceExhaustedError("no address space");
    if (job.rack_run == nullptr || !status.ok()) continue;
    auto exchange = exchange::MakeShardExchange(job.rack_run->plan, job.config.ranks_of_job);
    if (exchange == nullptr) status = absl::ResourceExhaustedError("no address space");
    job.shards.back()->exchange = exchange.get();
    job.rack_run->shards.push_back(std::move(exchange));
  }
  for (Member& member : job.members) {
    if (status.ok()) status = TakeStaging(job, member);
  }
  if (status.ok()) return status;
  return absl::ResourceExhaustedError(
      fmt::format("job {} was not created: the system does not give phubd the {} it needs: {}",
                  job.name(), FormatBytes(MemoryOfJob(job)), std::string(status.message())));
}

// Whether this daemon takes jobs at all just now.
absl::Status Control::State::CheckRoom(const v1::JoinRequest& request) {
  if (draining) {
    return Refuse(
        ControlCounter::joins_refused_draining,
        absl::UnavailableError(fmt::format(
            "phubd is draining and takes no new jobs; job {} was not created. What runs may do so "
            "for another {}",
            request.job(), FormatAge(std::max<DurationNs>(0, drain_deadline - clock.Now())))));
  }
  if (jobs.size() >= options.jobs_max) {
    return Refuse(ControlCounter::joins_refused_capacity,
                  absl::ResourceExhaustedError(fmt::format(
                      "job {} was not created: {} jobs are running or ending, the daemon's limit",
                      request.job(), jobs.size())));
  }
  for (std::size_t core = 0; core < links.size(); ++core) {
    if (links[core].backlog() < options.backlog_max) continue;
    return Refuse(ControlCounter::joins_refused_capacity,
                  absl::UnavailableError(fmt::format(
                      "job {} was not created: core loop {} is {} commands behind; try again later",
                      request.job(), core, links[core].backlog())));
  }
  return absl::OkStatus();
}

// Reserves and builds everything a job holds from the start, and hands it to every core loop.
absl::StatusOr<Job*> Control::State::CreateJob(const v1::JoinRequest& request,
                                               const JobSettings& settings,
                                               std::shared_ptr<RackRun> run) {
  if (absl::Status room = CheckRoom(request); !room.ok()) return room;
  auto job = std::make_unique<Job>();
  job->account = {
      TenantOf(request), request.job(),
      request.incarnation() == 0 ? DrawIncarnation() : Incarnation{request.incarnation()}};
  job->rack_run = std::move(run);
  job->settings = settings;
  job->config = MakeShardConfig(settings, job->account.incarnation);
  job->config.tenant = NumberOfTenant(job->account.tenant);
  const std::uint64_t bytes = MemoryOfJob(*job);
  if (absl::Status status = ledger.Open(job->account, settings.world_size); !status.ok()) {
    return Refuse(ControlCounter::joins_refused_quota, status);
  }
  if (absl::Status status = ledger.Reserve(job->account, bytes); !status.ok()) {
    ledger.Close(job->account);
    LogWarning("event=memory_short job=\"{}\" tenant={} held_by=\"{}\"", job->name(),
               job->account.tenant, ledger.DescribeHolders());
    return Refuse(ControlCounter::joins_refused_capacity, status);
  }
  job->members.resize(settings.world_size);
  for (Member& member : job->members) member.lanes.resize(links.size());
  if (absl::Status status = BuildShards(*job); !status.ok()) {
    ledger.Close(job->account);
    return Refuse(ControlCounter::joins_refused_capacity, status);
  }
  job->memory_bytes = bytes;
  job->created_by = Rank{request.rank()};
  job->created_at = clock.Now();
  const std::vector<std::uint32_t>& cores = settings.daemon_cores;
  const auto own = cores.begin() + options.rack_self;
  job->own_bins = {std::accumulate(cores.begin(), own, 0u), *own};
  job->bins = BinsForJob(std::accumulate(cores.begin(), cores.end(), 0u), job->name());
  job->chunk_counts.assign(job->bins.size(), 0);
  for (std::size_t core = 0; core < links.size(); ++core) {
    JobShard* shard = job->shards[core].get();
    shard_owners[shard] = {job.get(), CoreAt(core)};
    shard->config.share = ShareOf(job->account.tenant, core);
    job->add_job_tickets.push_back(
        links[core].Send({.kind = Command::Kind::kAddJob, .shard = shard}));
  }
  counters.Add(ControlCounter::jobs_created);
  LogInfo(
      "event=job_created tenant={} job=\"{}\" incarnation={} ranks={} chunk_bytes={} slots={} "
      "memory_bytes={}",
      job->account.tenant, job->name(), FormatIncarnation(job->account.incarnation),
      settings.world_size, job->config.chunk_bytes, job->config.slots_per_lane, bytes);
  jobs.push_back(std::move(job));
  return jobs.back().get();
}

// Whether a rank may take its place in a job that runs.
absl::Status Control::State::CheckPlace(const Job& job, const v1::JoinRequest& request,
                                        const JobSettings& settings) {
  const std::string difference =
      DifferenceInSettings(settings, job.settings, DescribeRankBriefly(job, job.created_by));
  if (!difference.empty()) {
    return Refuse(ControlCounter::joins_refused_options,
                  absl::InvalidArgumentError(fmt::format(
                      "rank {} ({}) joins job {} with {}; every rank must state the same options",
                      request.rank(), request.host(), job.name(), difference)));
  }
  const Rank rank{request.rank()};
  const Member& member = job.members[rank.value];
  switch (member.state) {
    case Member::State::kAwaited: return absl::OkStatus();
    case Member::State::kLost: return CheckTakeOver(job, request);
    case Member::State::kReserved:
    case Member::State::kLive:
      if (job.settings.on_loss == LossPolicy::kWait) return CheckTakeOver(job, request);
      [[fallthrough]];
    case Member::State::kDead:
      return Refuse(
          ControlCounter::joins_refused_rank_held,
          absl::AlreadyExistsError(fmt::format(
              "rank {} of job {} is held by a live worker on host {}, pid {}, last heard of {} "
              "ago; give this worker another rank or the job another name",
              rank.value + job.config.rank_base, job.name(), member.host, member.pid,
              FormatAge(clock.Now() - member.last_heard))));
    case Member::State::kLeft: break;
  }
  return Refuse(ControlCounter::joins_refused_rank_left,
                absl::FailedPreconditionError(fmt::format(
                    "{} has left job {}, which still runs; a new run of that name can start once "
                    "every rank has left",
                    DescribeRank(job, rank), job.name())));
}

void Control::State::Seat(Job& job, const v1::JoinRequest& request, std::string_view peer_address) {
  const Rank rank{request.rank()};
  Member& member = job.members[rank.value];
  member.state = Member::State::kReserved;
  member.address = std::string(peer_address);
  member.host = request.host().empty() ? "host unknown" : request.host();
  member.pid = request.pid();
  HearOf(member);
  do {
    member.session_id = DrawSessionId(random);
  } while (sessions.contains(member.session_id));
  sessions[member.session_id] = {&job, rank};
  job.nobody_since = 0;
  counters.Add(ControlCounter::joins);
  LogInfo("event=rank_joined tenant={} job=\"{}\" rank={} host=\"{}\" pid={} address={}",
          job.account.tenant, job.name(), rank.value, member.host, member.pid, member.address);
}

v1::JoinResponse Control::State::DescribeSeat(const Job& job, Rank rank, std::uint32_t version,
                                              bool created) {
  v1::JoinResponse response;
  response.set_protocol_version(version);
  response.set_daemon_version(options.version);
  response.set_session_id(job.members[rank.value].session_id);
  response.set_incarnation(job.account.incarnation.value);
  response.set_membership_epoch(job.config.membership_epoch.value);
  response.set_chunk_bytes(job.config.chunk_bytes);
  response.set_slots_per_lane(job.config.slots_per_lane);
  response.set_liveness_timeout_ns(options.liveness_timeout);
  response.set_wait_timeout_ns(job.settings.wait_timeout);
  response.set_tls_lanes(options.tls_lanes);
  response.set_encryption_required(ledger.RequiresEncryption(job.account.tenant));
  response.set_created(created);
  response.set_apply(job.settings.apply_iteration ? v1::APPLY_ITERATION : v1::APPLY_CHUNK);
  for (std::size_t core = 0; core < endpoints.size(); ++core) {
    v1::CoreEndpoint& endpoint = *response.add_cores();
    endpoint.set_core(static_cast<std::uint32_t>(core));
    endpoint.set_host(endpoints[core].host);
    endpoint.set_port(endpoints[core].port);
  }
  if (shares_memory()) *response.mutable_shared_memory() = shared_memory;
  return response;
}

void Control::State::Join(const v1::JoinRequest& given, std::string_view peer_address,
                          Answer<v1::JoinResponse> answer) {
  const auto refuse = [&](const absl::Status& status) { answer(status, {}); };
  const absl::StatusOr<std::uint32_t> version = ChooseProtocolVersion(given, options.version);
  if (!version.ok()) {
    return refuse(Refuse(ControlCounter::joins_refused_version, version.status()));
  }
  const absl::StatusOr<std::vector<std::uint32_t>> daemon_cores = CheckRack(given);
  if (!daemon_cores.ok()) {
    return refuse(Refuse(ControlCounter::joins_refused_rack, daemon_cores.status()));
  }
  const absl::StatusOr<JobSettings> settings = CheckJoin(given, options, *daemon_cores);
  if (!settings.ok()) {
    return refuse(Refuse(ControlCounter::joins_refused_invalid, settings.status()));
  }
  v1::JoinRequest request = given;
  request.set_rank(given.rank() - settings->rank_base);
  const std::string& tenant = TenantOf(request);
  if (!ledger.HasTenant(tenant)) {
    return refuse(Refuse(ControlCounter::joins_refused_tenant,
                         absl::NotFoundError(fmt::format(
                             "there is no tenant {} on this daemon; leave the tenant empty for {}",
                             tenant, kDefaultTenant))));
  }
  if (ledger.IsSuspended(tenant)) {
    return refuse(Refuse(
        ControlCounter::joins_refused_tenant,
        absl::PermissionDeniedError(fmt::format(
            "tenant {} is suspended: nobody joins its jobs; ask the administrator", tenant))));
  }
  const absl::StatusOr<Job*> run = FindRunToJoin(request, tenant);
  if (!run.ok()) return refuse(Refuse(ControlCounter::joins_refused_rack, run.status()));
  Job* job = *run;
  const bool created = job == nullptr;
  if (created) {
    const bool awaits_older = FindRunningJob(tenant, request.job()) != nullptr;
    const bool awaits = awaits_older || AwaitsSurvey(*this);
    if (settings->racks > 0 && (options.rack_index != 0 || awaits)) {
      const TimeNs deadline = clock.Now() + kHeldTimeouts * options.liveness_timeout;
      return AskToOpen({given, std::string(peer_address), std::move(answer), deadline, {}},
                       *settings);
    }
    const absl::StatusOr<Job*> made =
        settings->racks > 0 ? OpenRackJob(given, *settings) : CreateJob(request, *settings);
    if (!made.ok()) return refuse(made.status());
    job = *made;
  } else if (absl::Status status = CheckPlace(*job, request, *settings); !status.ok()) {
    return refuse(status);
  }
  const Rank rank{request.rank()};
  Member& member = job->members[rank.value];
  if (member.state != Member::State::kAwaited) {
    if (absl::Status status = TakeOver(*job, rank); !status.ok()) return refuse(status);
  }
  Seat(*job, request, peer_address);
  job->pending.push_back({job->add_job_tickets,
                          [this, job, &member, rank, created, chosen = *version, answer,
                           session_id = member.session_id] {
                            if (member.session_id != session_id) {
                              return answer(TakenOver(*job, rank), {});
                            }
                            HearOf(member);  // it could not attend until now
                            v1::JoinResponse response = DescribeSeat(*job, rank, chosen, created);
                            response.set_resumed(member.committed);
                            answer(absl::OkStatus(), response);
                          },
                          [answer](const absl::Status& status) { answer(status, {}); },
                          /*awaits_racks=*/job->rack_run != nullptr});
  AnswerAcknowledged(*job);
}

}  // namespace phub::server
