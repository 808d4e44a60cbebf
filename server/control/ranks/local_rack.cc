#include "server/control/ranks/local_rack.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/base/log.h"
#include "server/control/on_control.h"
#include "server/control/text.h"

namespace phub::server {
namespace {

std::string Listed(const std::vector<std::uint32_t>& counts) {
  std::string text;
  for (const std::uint32_t count : counts) {
    text += fmt::format("{}{}", text.empty() ? "" : ", ", count);
  }
  return text;
}

// "this daemon", "daemon 1 (node2:7700)"
std::string DescribeSelf(const ControlOptions& options) {
  if (options.rack_endpoints.empty()) return "this daemon";
  return fmt::format("daemon {} ({})", options.rack_self,
                     options.rack_endpoints[options.rack_self]);
}

}  // namespace

std::string ProblemInCores(const ControlOptions& options, std::size_t core_count,
                           const std::string& who, const std::vector<std::uint32_t>& cores) {
  const std::string self = DescribeSelf(options);
  if (cores.size() != options.daemons_in_rack()) {
    return fmt::format("{} expects {} daemons in the rack, but {} has {} configured", who,
                       cores.size(), self, options.daemons_in_rack());
  }
  if (cores[options.rack_self] != core_count) {
    return fmt::format(
        "{} expects {} to have {} core loops, but it has {}; it was probably restarted with other "
        "settings",
        who, self, cores[options.rack_self], core_count);
  }
  for (const std::uint32_t count : cores) {
    if (count >= 1 && count <= kCoresPerDaemonMax) continue;
    return fmt::format("the daemons have {} core loops; each must have 1 to {}", Listed(cores),
                       kCoresPerDaemonMax);
  }
  return {};
}

void LocalRack::DescribeSettings(v1::Rack& rack) const {
  Write(SettingsOfRack(context_.options), *rack.mutable_settings());
}

void LocalRack::SetEndpoint(std::uint32_t position, const std::string& endpoint) {
  PHUB_ON_CONTROL();
  PHUB_CHECK(position < endpoints_.size(), "position={}", position);
  endpoints_[position] = endpoint;
}

v1::Rack LocalRack::DescribeRack() const {
  PHUB_ON_CONTROL();
  v1::Rack rack;
  const std::size_t count = context_.options.daemons_in_rack();
  for (std::size_t i = 0; i < count; ++i) {
    v1::RackDaemon& daemon = *rack.add_daemons();
    if (!endpoints_.empty()) daemon.set_endpoint(endpoints_[i]);
    // A daemon knows only its own number: the daemons of one rack do not talk to each other.
    if (i == context_.options.rack_self)
      daemon.set_core_count(static_cast<std::uint32_t>(context_.cores.size()));
  }
  rack.set_self(context_.options.rack_self);
  rack.set_configuration(configuration_);
  rack.set_state(context_.drain.draining ? "draining" : "serving");
  return rack;
}

absl::StatusOr<std::vector<std::uint32_t>> LocalRack::CheckRack(
    const v1::JoinRequest& request) const {
  PHUB_ON_CONTROL();
  const std::size_t daemon_count = context_.options.daemons_in_rack();
  const std::string self = DescribeSelf(context_.options);
  const auto refuse = [&](const std::string& what) {
    return absl::FailedPreconditionError(
        fmt::format("job {}, rank {}: {}", request.job(), request.rank(), what));
  };
  if (request.daemon_cores().empty() && daemon_count > 1) {
    return refuse(
        fmt::format("{} belongs to a rack of {} daemons, but the client joined only this one; call "
                    "GetRack and join all of them",
                    self, daemon_count));
  }
  const bool says_configuration = !request.configuration().empty() || daemon_count > 1;
  if (says_configuration && request.configuration() != configuration_) {
    return refuse(fmt::format(
        "{}; the daemons of a rack must have the same `daemons`, chunk_bytes, "
        "staging_bytes_per_lane, protocol versions, position in `racks` and topology: compare the "
        "output of phubd --dump-config",
        DescribeDifference({self, configuration_, SettingsOfRack(context_.options)},
                           {"the first daemon of the worker's rack", request.configuration(),
                            ReadSettings(request.settings())})));
  }
  if (request.daemon() != context_.options.rack_self) {
    return refuse(
        fmt::format("the worker expects daemon {} of the rack, but this is daemon {}; "
                    "check the endpoints in `daemons` and `self`",
                    request.daemon(), context_.options.rack_self));
  }
  if (context_.options.is_anchor() != (request.incarnation() == 0)) {
    return refuse(
        context_.options.is_anchor()
            ? fmt::format("{} is the first daemon of the rack and draws the incarnation itself",
                          self)
            : fmt::format("{} needs the incarnation that the first daemon of the rack drew", self));
  }
  if (request.daemon_cores().empty()) {
    return std::vector<std::uint32_t>{static_cast<std::uint32_t>(context_.cores.size())};
  }
  const std::vector<std::uint32_t> cores(request.daemon_cores().begin(),
                                         request.daemon_cores().end());
  const std::string problem =
      ProblemInCores(context_.options, context_.cores.size(), "the worker", cores);
  if (!problem.empty()) return refuse(problem + "; call GetRack again");
  return cores;
}

absl::StatusOr<Job*> LocalRack::FindRunOf(Incarnation incarnation, const std::string& tenant,
                                          const std::string& name) {
  PHUB_ON_CONTROL();
  Job* const run = jobs_.FindRun(incarnation);
  if (run == nullptr) return nullptr;
  if (run->account.tenant != tenant || run->name() != name) {
    return absl::InvalidArgumentError(fmt::format("job {}: incarnation {} belongs to another job",
                                                  name, FormatIncarnation(incarnation)));
  }
  if (run->diagnosis.has_value()) diagnoses_.ConcludeDiagnosis(*run);
  if (run->running()) return run;
  if (run->unused && jobs_.FindRunningJob(tenant, name) == nullptr) {
    // All reservations were given up here, but another daemon may have committed one, and its rank
    // may be awaited there. Nobody could train without this daemon, so the run begins here again.
    jobs_.Forget(*run);
    return nullptr;
  }
  return absl::AbortedError(run->state == Job::State::kFailed
                                ? run->fault.message()
                                : fmt::format("this run of job {} has ended", name));
}

void LocalRack::Supersede(Job& job, Incarnation by, const std::string& who) {
  PHUB_ON_CONTROL();
  context_.counters.Add(ControlCounter::jobs_superseded);
  ending_.Fail(job,
               ending_.MakeFault(
                   job, "superseded",
                   fmt::format("a new run of the job (incarnation {}) was started by {}, so the "
                               "first daemon of the rack has already ended this run",
                               FormatIncarnation(by), who)));
}

absl::StatusOr<Job*> LocalRack::FindRunToJoin(const v1::JoinRequest& request,
                                              const std::string& tenant) {
  PHUB_ON_CONTROL();
  Job* job = jobs_.FindRunningJob(tenant, request.job());
  if (context_.options.is_anchor()) {
    // The run has lost a rank and will fail; only its message is not complete. This worker joins
    // the next run.
    if (job == nullptr || !job->diagnosis.has_value()) return job;
    diagnoses_.ConcludeDiagnosis(*job);
    return job->running() ? job : nullptr;
  }
  const Incarnation incarnation{request.incarnation()};
  absl::StatusOr<Job*> run = FindRunOf(incarnation, tenant, request.job());
  if (!run.ok() || *run != nullptr || job == nullptr) return run;
  // The old run ends as soon as the ranks of other racks have left, too: see AskToOpen.
  if (!request.options().plan().empty() && peer_racks_.IsLeaving(*job)) return nullptr;
  Supersede(*job, incarnation, fmt::format("rank {} ({})", request.rank(), request.host()));
  return nullptr;
}

absl::Status LocalRack::CheckAnchor(const Job& job) const {
  PHUB_ON_CONTROL();
  if (context_.options.is_anchor()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      fmt::format("barriers of job {} must be called at the first daemon of the rack, {}",
                  job.name(), context_.options.rack_endpoints.front()));
}

}  // namespace phub::server
