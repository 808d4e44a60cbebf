#include "client/cli/probe_racks.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>

#include "client/cli/rpc.h"
#include "phub/v1/probe.grpc.pb.h"

namespace phub::client::cli {
namespace {

// Extra time for the daemon beyond the duration of a probe.
constexpr DurationNs kPatience = 20 * kSecond;

void ShowProbeProgress(const std::string& what) {
  if (isatty(STDERR_FILENO) != 0) fmt::print(stderr, "\r\033[K{}", what);
}

// The codes of gRPC and Abseil are the same numbers.
absl::Status StatusOf(const grpc::Status& status) {
  return {static_cast<absl::StatusCode>(status.error_code()), status.error_message()};
}
grpc::Status StatusOf(const absl::Status& status) {
  return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message())};
}

}  // namespace

grpc::Status RackProber::Connect() {
  return channel_ != nullptr ? grpc::Status::OK : cli::Connect(options_, channel_);
}

grpc::Status RackProber::GetRacks(v1::RacksInfo& racks) {
  if (grpc::Status status = Connect(); !status.ok()) return status;
  grpc::ClientContext context;
  Prepare(context, options_);
  return v1::Probe::Stub(channel_).GetRacks(&context, v1::GetRacksRequest(), &racks);
}

grpc::Status RackProber::Apply(const std::string& topology, v1::RacksInfo& racks) {
  if (grpc::Status status = Connect(); !status.ok()) return status;
  v1::ApplyTopologyRequest request;
  request.set_topology(topology);
  grpc::ClientContext context;
  Prepare(context, options_);
  return v1::Probe::Stub(channel_).ApplyTopology(&context, request, &racks);
}

absl::StatusOr<plan::PairMeasure> RackProber::Probe(plan::RankPair pair, DurationNs duration) {
  v1::ProbePairRequest request;
  request.set_from_rack(pair.first);
  request.set_to_rack(pair.second);
  request.set_duration_ns(duration);
  request.set_bytes(settings_.bytes);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::nanoseconds(options_.timeout + 2 * duration + kPatience));
  v1::ProbePairResponse response;
  const grpc::Status status = v1::Probe::Stub(channel_).ProbePair(&context, request, &response);
  if (!status.ok()) return StatusOf(status);
  return plan::PairMeasure{.round_trip_s = static_cast<double>(response.round_trip_ns()) * 1e-9,
                           .out_bytes_per_s = response.out().bytes_per_s(),
                           .back_bytes_per_s = response.back().bytes_per_s(),
                           .out_mean_bytes_per_s = response.out().mean_bytes_per_s(),
                           .back_mean_bytes_per_s = response.back().mean_bytes_per_s()};
}

grpc::Status RackProber::Survey(std::uint32_t count, plan::Surveyed& surveyed) {
  if (grpc::Status status = Connect(); !status.ok()) return status;
  const plan::SurveyOptions options{
      .duration = settings_.duration, .repeat = settings_.repeat, .progress = ShowProbeProgress};
  absl::StatusOr<plan::Surveyed> result = plan::Survey(
      count, options,
      [this](plan::RankPair pair, DurationNs duration) { return Probe(pair, duration); });
  ShowProbeProgress("");
  if (!result.ok()) return StatusOf(result.status());
  surveyed = *std::move(result);
  return grpc::Status::OK;
}

}  // namespace phub::client::cli
