#include "client/cli/probe_racks.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "client/cli/rpc.h"
#include "phub/v1/probe.grpc.pb.h"

namespace phub::client::cli {
namespace {

// What a daemon may take beyond a probe's duration until it gives up.
constexpr DurationNs kPatience = 20 * kSecond;
// Pairs at once begin when their threads run and their daemons have been called; what is measured
// is to be long beside that, or one has the link for itself for a part of it.
constexpr int kTogetherTimes = 4;
constexpr DurationNs kProbeDurationMax = 10 * kSecond;

void ShowProgress(const std::string& what) {
  if (isatty(STDERR_FILENO) != 0) fmt::print(stderr, "\r\033[K{}", what);
}

bool IsMeasured(const v1::ProbePairResponse& response) {
  return response.round_trip_ns() > 0 && response.out().bytes_per_s() > 0 &&
         response.back().bytes_per_s() > 0 && response.out().mean_bytes_per_s() > 0 &&
         response.back().mean_bytes_per_s() > 0;
}

}  // namespace

std::vector<std::vector<RackPair>> Tournament(std::uint32_t count) {
  // With an odd number one has a round off: whoever meets the one that is not there.
  const std::uint32_t places = count + count % 2;
  std::vector<std::vector<RackPair>> rounds;
  for (std::uint32_t round = 0; round + 1 < places; ++round) {
    auto& pairs = rounds.emplace_back();
    // The last place stands, the others go round.
    const auto at = [&](std::uint32_t place) {
      return place == places - 1 ? place : (round + place) % (places - 1);
    };
    for (std::uint32_t i = 0; i < places / 2; ++i) {
      const std::uint32_t a = at(i), b = at(places - 1 - i);
      if (a < count && b < count) pairs.emplace_back(std::min(a, b), std::max(a, b));
    }
  }
  return rounds;
}

grpc::Status RackProber::Connect() {
  return channel_ != nullptr ? grpc::Status::OK : cli::Connect(options_, channel_);
}

grpc::Status RackProber::GetRacks(v1::RacksInfo& racks) {
  if (grpc::Status status = Connect(); !status.ok()) return status;
  grpc::ClientContext context;
  Prepare(context, options_);
  return v1::Probe::Stub(channel_).GetRacks(&context, v1::GetRacksRequest(), &racks);
}

grpc::Status RackProber::Probe(RackPair pair, DurationNs duration,
                               v1::ProbePairResponse& response) {
  v1::ProbePairRequest request;
  request.set_from_rack(pair.first);
  request.set_to_rack(pair.second);
  request.set_duration_ns(duration);
  request.set_bytes(settings_.bytes);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::nanoseconds(options_.timeout + 2 * duration + kPatience));
  const grpc::Status status = v1::Probe::Stub(channel_).ProbePair(&context, request, &response);
  if (!status.ok() || IsMeasured(response)) return status;
  return {grpc::StatusCode::INTERNAL,
          fmt::format("the probe between racks {} and {} has no result", pair.first, pair.second)};
}

grpc::Status RackProber::Measure(std::uint32_t count, plan::Measured& measured) {
  const plan::SquareMatrix empty(count, std::vector<double>(count, 0));
  measured.round_trip_s = measured.bytes_per_s = empty;
  const std::vector<std::vector<RackPair>> rounds = Tournament(count);
  const std::uint32_t total = settings_.repeat * count * (count - 1) / 2;
  std::uint32_t done = 0;
  for (std::uint32_t time = 0; time < settings_.repeat; ++time) {
    for (const std::vector<RackPair>& pairs : rounds) {
      for (const auto& [low, high] : pairs) {
        ShowProgress(fmt::format("probe {} of {}: racks {} and {}", ++done, total, low, high));
        // Each end leads in turn.
        const auto [from, to] = time % 2 == 0 ? RackPair(low, high) : RackPair(high, low);
        v1::ProbePairResponse probe;
        const grpc::Status status = Probe({from, to}, settings_.duration, probe);
        if (!status.ok()) {
          ShowProgress("");
          return status;
        }
        const double round_trip = static_cast<double>(probe.round_trip_ns()) * 1e-9;
        double& known = measured.round_trip_s[from][to];
        known = time == 0 ? round_trip : std::min(known, round_trip);
        measured.round_trip_s[to][from] = known;
        double& out = measured.bytes_per_s[from][to];
        double& back = measured.bytes_per_s[to][from];
        out = std::max(out, probe.out().bytes_per_s());
        back = std::max(back, probe.back().bytes_per_s());
      }
    }
  }
  ShowProgress("");
  return grpc::Status::OK;
}

grpc::Status RackProber::ProbeTogether(const std::vector<RackPair>& pairs, double& out,
                                       double& back) {
  std::vector<v1::ProbePairResponse> probes(pairs.size());
  std::vector<grpc::Status> statuses(pairs.size());
  const DurationNs duration = std::min(kTogetherTimes * settings_.duration, kProbeDurationMax);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    threads.emplace_back([&, i] { statuses[i] = Probe(pairs[i], duration, probes[i]); });
  }
  for (std::thread& thread : threads) thread.join();
  out = back = 0;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    if (!statuses[i].ok()) return statuses[i];
    // All the time counts: what is fast while another pair waits is not what they get together.
    out += probes[i].out().mean_bytes_per_s();
    back += probes[i].back().mean_bytes_per_s();
  }
  return grpc::Status::OK;
}

grpc::Status RackProber::MeasureBetween(const plan::RankGroups& groups,
                                        const plan::Measured& measured,
                                        plan::SquareMatrix& between) {
  between.assign(groups.size(), std::vector<double>(groups.size(), 0));
  for (std::uint32_t a = 0; a < groups.size(); ++a) {
    for (std::uint32_t b = a + 1; b < groups.size(); ++b) {
      const std::vector<RackPair> pairs = plan::PairsBetween(groups[a], groups[b]);
      if (pairs.size() == 1) {  // that is known
        const auto [from, to] = pairs[0];
        between[a][b] = measured.bytes_per_s[from][to];
        between[b][a] = measured.bytes_per_s[to][from];
        continue;
      }
      ShowProgress(fmt::format("groups {} and {}: {} pairs at once", a, b, pairs.size()));
      for (std::uint32_t time = 0; time < settings_.repeat; ++time) {
        double out = 0, back = 0;
        const grpc::Status status = ProbeTogether(pairs, out, back);
        if (!status.ok()) {
          ShowProgress("");
          return status;
        }
        between[a][b] += out / settings_.repeat;
        between[b][a] += back / settings_.repeat;
      }
    }
  }
  ShowProgress("");
  return grpc::Status::OK;
}

}  // namespace phub::client::cli
