#include "server/control/jobs/job_options.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/base/printable.h"
#include "server/control/jobs/sum_options.h"
#include "server/control/text.h"

namespace phub::server {
namespace {

constexpr std::uint32_t kChunkGranularityBytes = 64;  // whole cache lines and vectors
constexpr std::uint32_t kSlotsPerLaneMin = 1;

absl::Status CheckName(const char* what, const std::string& name) {
  if (IsName(name)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("the {} name must have 1 to {} bytes of printable UTF-8; it has {} bytes", what,
                  kNameBytesMax, name.size()));
}

constexpr DurationNs kWaitTimeoutMax = 7 * 24 * 3600 * kSecond;

// REQUIRES: settings.on_loss is set.
absl::Status ReadWaitOptions(const std::string& job, const v1::JobOptions& options,
                             const ControlOptions& defaults, JobSettings& settings) {
  settings.join_timeout = options.join_timeout_ns();
  if (settings.join_timeout < 0 || settings.join_timeout > kWaitTimeoutMax) {
    return absl::InvalidArgumentError(
        fmt::format("job {}: join_timeout is {}; it must be at most {}, or 0 for no limit", job,
                    FormatAge(settings.join_timeout), FormatAge(kWaitTimeoutMax)));
  }
  if (settings.on_loss != LossPolicy::kWait) {
    if (!options.restart()) return absl::OkStatus();
    return absl::InvalidArgumentError(fmt::format(
        "job {}: restart=true requires on_loss=wait: with on_loss=fail a lost rank ends the job",
        job));
  }
  settings.wait_timeout =
      options.wait_timeout_ns() == 0 ? defaults.wait_timeout : options.wait_timeout_ns();
  settings.restart = options.restart();
  if (settings.wait_timeout > 0 && settings.wait_timeout <= kWaitTimeoutMax) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      fmt::format("job {}: wait_timeout is {}; it must be positive and at most {}", job,
                  FormatAge(settings.wait_timeout), FormatAge(kWaitTimeoutMax)));
}

constexpr std::size_t kPlanBytesMax = 1 << 20;  // for a plan in a request

// The sender of the request. Only a worker joins with a rank.
enum class From : std::uint8_t { kWorker, kRack };

// Every rack gets the same number of consecutive ranks; an aggregator gets none. REQUIRES: all
// other settings are set.
absl::Status ReadPlanOption(const v1::JoinRequest& request, const ControlOptions& defaults,
                            From from, JobSettings& settings) {
  const std::string& plan = request.options().plan();
  const auto refuse = [&](const std::string& what) {
    return absl::InvalidArgumentError(fmt::format("job {}: {}", request.job(), what));
  };
  if (plan.empty() && defaults.is_aggregator()) {
    return refuse(
        fmt::format("this daemon is an aggregator and accepts no workers; join at the daemon of a "
                    "rack, such as {}",
                    defaults.racks.front()));
  }
  if (plan.empty()) return absl::OkStatus();
  if (defaults.racks.empty()) {
    return refuse(
        "plan is set, but this daemon has no `racks` configured; configure them, or leave `plan` "
        "empty");
  }
  if (plan.size() > kPlanBytesMax) {
    return refuse(
        fmt::format("the plan has {} bytes; the limit is {} bytes", plan.size(), kPlanBytesMax));
  }
  if (!plan.starts_with('{') && !IsName(plan)) {
    return refuse("plan must be `auto`, the name of a planner, or a plan in JSON");
  }
  const std::uint32_t count = defaults.racks_with_ranks();
  if (settings.world_size % count != 0) {
    return refuse(
        fmt::format("world_size {} is not a multiple of {}, the number of racks; every rack must "
                    "have the same number of ranks",
                    settings.world_size, count));
  }
  const std::uint32_t part = settings.world_size / count;
  const std::uint32_t rack = request.rank() / part;
  if (from == From::kWorker && rack != defaults.rack_index) {
    return refuse(fmt::format("rank {} belongs to rack {}: join it at {}; this daemon is {}",
                              request.rank(), rack, defaults.racks[rack],
                              defaults.is_aggregator()
                                  ? "an aggregator"
                                  : fmt::format("in rack {}", defaults.rack_index)));
  }
  settings.plan = plan;
  settings.racks = count;
  settings.ranks_of_job = settings.world_size;
  settings.rank_base = defaults.is_aggregator() ? 0 : defaults.rack_index * part;
  settings.world_size = defaults.is_aggregator() ? 0 : part;
  return absl::OkStatus();
}

// REQUIRES: all other settings are set.
absl::Status ReadApplyOptions(const std::string& job, const v1::JobOptions& options,
                              JobSettings& settings) {
  const auto refuse = [&](const std::string& what) {
    return absl::InvalidArgumentError(fmt::format("job {}: {}", job, what));
  };
  settings.clip_norm = options.clip_norm();
  settings.skip_nonfinite = options.skip_nonfinite();
  switch (options.apply()) {
    case v1::APPLY_UNSPECIFIED:
    case v1::APPLY_CHUNK: break;
    case v1::APPLY_ITERATION: settings.apply_iteration = true; break;
    default:
      return refuse(
          fmt::format("apply has the unknown value {}; this daemon supports chunk and iteration",
                      static_cast<int>(options.apply())));
  }
  if (!std::isfinite(settings.clip_norm) || settings.clip_norm < 0.0) {
    return refuse(fmt::format("clip_norm is {}; it must be positive, or 0 for no clipping",
                              settings.clip_norm));
  }
  if (!settings.apply_iteration) {
    if (settings.clip_norm == 0.0 && !settings.skip_nonfinite) return absl::OkStatus();
    return refuse(
        "clip_norm and skip_nonfinite need apply=iteration: with apply=chunk the daemon applies a "
        "chunk before the other chunks are summed");
  }
  if (settings.restart) {
    return refuse(
        "apply=iteration cannot be combined with restart=true, because a restarted process cannot "
        "know what its rank had decided; use on_loss=wait without restart, and checkpoints");
  }
  if (!settings.plan.empty()) {
    return refuse("apply=iteration is not supported in jobs that span racks; leave `plan` empty");
  }
  return absl::OkStatus();
}

}  // namespace

const char* ApplyName(const JobSettings& settings) {
  return settings.apply_iteration ? "iteration" : "chunk";
}

absl::StatusOr<std::uint32_t> ChooseProtocolVersion(const v1::JoinRequest& request,
                                                    const std::string& daemon_version) {
  const std::uint32_t low = std::max(request.protocol_version_min(), kProtocolVersionMin);
  const std::uint32_t high = std::min(request.protocol_version_max(), kProtocolVersionMax);
  if (low <= high) return high;
  const std::string client = IsName(request.client_version()) ? " " + request.client_version() : "";
  return absl::FailedPreconditionError(
      fmt::format("phubd {} supports control protocol versions {}..{}, but this client{} supports "
                  "{}..{}; upgrade the older one",
                  daemon_version, kProtocolVersionMin, kProtocolVersionMax, client,
                  request.protocol_version_min(), request.protocol_version_max()));
}

namespace {

absl::StatusOr<JobSettings> Read(const v1::JoinRequest& request, const ControlOptions& defaults,
                                 const std::vector<std::uint32_t>& daemon_cores, From from) {
  if (absl::Status status = CheckName("job", request.job()); !status.ok()) return status;
  if (!request.tenant().empty()) {
    if (absl::Status status = CheckName("tenant", request.tenant()); !status.ok()) return status;
  }
  if (!request.host().empty()) {
    if (absl::Status status = CheckName("host", request.host()); !status.ok()) return status;
  }
  const v1::JobOptions& options = request.options();
  JobSettings settings;
  settings.world_size = options.world_size();
  settings.daemon_cores = daemon_cores;
  const std::uint32_t bins = std::accumulate(daemon_cores.begin(), daemon_cores.end(), 0u);
  settings.chunk_bytes = options.chunk_bytes() == 0 ? ChunkBytesForBins(defaults.chunk_bytes, bins)
                                                    : options.chunk_bytes();
  settings.staging_bytes_per_lane = options.staging_bytes_per_lane() == 0
                                        ? defaults.staging_bytes_per_lane
                                        : options.staging_bytes_per_lane();
  if (settings.world_size < 1 || settings.world_size > kRanksMax) {
    return absl::InvalidArgumentError(fmt::format("job {}: world_size is {}; it must be 1 to {}",
                                                  request.job(), settings.world_size, kRanksMax));
  }
  if (request.rank() >= settings.world_size) {
    return absl::InvalidArgumentError(
        fmt::format("job {}: rank {} is outside world_size {}; ranks count from 0", request.job(),
                    request.rank(), settings.world_size));
  }
  if (settings.chunk_bytes < kChunkBytesMin || settings.chunk_bytes > kChunkBytesMax ||
      settings.chunk_bytes % kChunkGranularityBytes != 0) {
    return absl::InvalidArgumentError(fmt::format(
        "job {}: chunk_bytes is {}; it must be a multiple of {} from {} to {}", request.job(),
        settings.chunk_bytes, kChunkGranularityBytes, kChunkBytesMin, kChunkBytesMax));
  }
  switch (options.on_loss()) {
    case v1::LOSS_POLICY_UNSPECIFIED:
    case v1::LOSS_POLICY_FAIL: settings.on_loss = LossPolicy::kFail; break;
    case v1::LOSS_POLICY_WAIT: settings.on_loss = LossPolicy::kWait; break;
    default:
      return absl::InvalidArgumentError(fmt::format(
          "job {}: on_loss has the unknown value {}; this daemon supports fail and wait",
          request.job(), static_cast<int>(options.on_loss())));
  }
  switch (options.screening()) {
    case v1::SCREENING_OFF: settings.screening = Screening::kOff; break;
    case v1::SCREENING_UNSPECIFIED:
    case v1::SCREENING_REPORT: settings.screening = Screening::kReport; break;
    case v1::SCREENING_REJECT: settings.screening = Screening::kReject; break;
    default:
      return absl::InvalidArgumentError(fmt::format(
          "job {}: screening has the unknown value {}; this daemon supports off, report "
          "and reject",
          request.job(), static_cast<int>(options.screening())));
  }
  if (absl::Status status = ReadWaitOptions(request.job(), options, defaults, settings);
      !status.ok()) {
    return status;
  }
  if (absl::Status status = ReadPlanOption(request, defaults, from, settings); !status.ok()) {
    return status;
  }
  if (absl::Status status = ReadApplyOptions(request.job(), options, settings); !status.ok()) {
    return status;
  }
  if (absl::Status status = ReadSumOptions(request.job(), options, settings); !status.ok()) {
    return status;
  }
  return settings;
}

}  // namespace

absl::StatusOr<JobSettings> CheckJoin(const v1::JoinRequest& request,
                                      const ControlOptions& defaults,
                                      const std::vector<std::uint32_t>& daemon_cores) {
  return Read(request, defaults, daemon_cores, From::kWorker);
}

absl::StatusOr<JobSettings> CheckOpen(const v1::JoinRequest& request,
                                      const ControlOptions& defaults,
                                      const std::vector<std::uint32_t>& daemon_cores) {
  return Read(request, defaults, daemon_cores, From::kRack);
}

namespace {

// Different plans have different texts. The text for a plan in JSON shows where it differs from
// the other.
std::string PlanText(const std::string& plan, const std::string& other) {
  constexpr std::size_t kShownBefore = 32;
  constexpr std::size_t kShownBytes = 96;
  if (plan.empty()) return "none";
  if (!plan.starts_with('{')) return plan;
  if (!other.starts_with('{')) return fmt::format("in JSON ({} bytes)", plan.size());
  const auto differs = static_cast<std::size_t>(
      std::mismatch(plan.begin(), plan.end(), other.begin(), other.end()).first - plan.begin());
  const std::size_t begin = differs - std::min(differs, kShownBefore);
  return fmt::format("in JSON ({} bytes) with '{}' at byte {}", plan.size(),
                     Printable(plan.substr(begin, kShownBytes)), begin);
}

std::string ExactTime(DurationNs time) {
  return fmt::format("{} s", static_cast<double>(time) / kSecond);
}

}  // namespace

std::string DifferenceInSettings(const JobSettings& theirs, const JobSettings& ours,
                                 const std::string& creator) {
  const auto differ = [&](const char* what, std::uint32_t their_value, std::uint32_t our_value) {
    return fmt::format("{} {}, but {} created it with {}", what, their_value, creator, our_value);
  };
  // Across racks, `world_size` is the number of this rack's ranks.
  const auto ranks = [](const JobSettings& each) {
    return each.ranks_of_job == 0 ? each.world_size : each.ranks_of_job;
  };
  if (ranks(theirs) != ranks(ours)) return differ("world_size", ranks(theirs), ranks(ours));
  if (theirs.plan != ours.plan) {
    return fmt::format("plan {}, but {} created it with {}", PlanText(theirs.plan, ours.plan),
                       creator, PlanText(ours.plan, theirs.plan));
  }
  if (theirs.chunk_bytes != ours.chunk_bytes) {
    return differ("chunk_bytes", theirs.chunk_bytes, ours.chunk_bytes);
  }
  if (theirs.staging_bytes_per_lane != ours.staging_bytes_per_lane) {
    return differ("staging_bytes_per_lane", theirs.staging_bytes_per_lane,
                  ours.staging_bytes_per_lane);
  }
  if (theirs.daemon_cores != ours.daemon_cores) {
    const auto listed = [](const std::vector<std::uint32_t>& counts) {
      std::string text;
      for (const std::uint32_t count : counts) {
        text += fmt::format("{}{}", text.empty() ? "" : ", ", count);
      }
      return text;
    };
    return fmt::format("a rack of daemons with {} core loops, but {} created it with {}",
                       listed(theirs.daemon_cores), creator, listed(ours.daemon_cores));
  }
  if (theirs.on_loss != ours.on_loss) {
    return fmt::format("on_loss {}, but {} created it with {}", ToString(theirs.on_loss), creator,
                       ToString(ours.on_loss));
  }
  if (theirs.wait_timeout != ours.wait_timeout) {
    return fmt::format("wait_timeout {}, but {} created it with {}", ExactTime(theirs.wait_timeout),
                       creator, ExactTime(ours.wait_timeout));
  }
  if (theirs.join_timeout != ours.join_timeout) {
    return fmt::format("join_timeout {}, but {} created it with {}", ExactTime(theirs.join_timeout),
                       creator, ExactTime(ours.join_timeout));
  }
  if (theirs.restart != ours.restart) {
    return fmt::format("restart={}, but {} created it with restart={}", theirs.restart, creator,
                       ours.restart);
  }
  if (theirs.screening != ours.screening) {
    return fmt::format("screening {}, but {} created it with {}", ToString(theirs.screening),
                       creator, ToString(ours.screening));
  }
  if (theirs.apply_iteration != ours.apply_iteration) {
    return fmt::format("apply {}, but {} created it with {}", ApplyName(theirs), creator,
                       ApplyName(ours));
  }
  if (theirs.clip_norm != ours.clip_norm) {
    return fmt::format("clip_norm {}, but {} created it with {}", theirs.clip_norm, creator,
                       ours.clip_norm);
  }
  if (theirs.skip_nonfinite != ours.skip_nonfinite) {
    return fmt::format("skip_nonfinite={}, but {} created it with skip_nonfinite={}",
                       theirs.skip_nonfinite, creator, ours.skip_nonfinite);
  }
  return DifferenceInSums(theirs, ours, creator);
}

ShardConfig MakeShardConfig(const JobSettings& settings, Incarnation incarnation) {
  ShardConfig config;
  config.incarnation = incarnation;
  config.world_size = settings.world_size;
  config.rank_base = settings.rank_base;
  config.ranks_of_job = settings.ranks_of_job;
  if (settings.racks > 0) config.ranks_per_rack = settings.ranks_of_job / settings.racks;
  config.chunk_bytes = settings.chunk_bytes;
  config.slots_per_lane = std::clamp(settings.staging_bytes_per_lane / settings.chunk_bytes,
                                     kSlotsPerLaneMin, kSlotsPerLaneMax);
  config.on_loss = settings.on_loss;
  // An aggregator has no ranks that could restart, and relays one version.
  config.restart = settings.restart && settings.world_size > 0;
  config.screening = settings.screening;
  config.apply_iteration = settings.apply_iteration;
  config.norms = settings.clip_norm > 0.0;
  config.sum_block = settings.sum_block;
  return config;
}

}  // namespace phub::server
