#include "common/plan/survey.h"

#include <algorithm>
#include <thread>

#include "absl/status/status.h"
#include "common/base/shortage.h"
#include "fmt/core.h"

namespace phub::plan {
namespace {

// Concurrent probes do not start at exactly the same time. They must be much longer than that
// offset; otherwise one has the link to itself for part of its time.
constexpr int kTogetherTimes = 4;
constexpr DurationNs kDurationMax = 10 * kSecond;

bool IsMeasured(const PairMeasure& pair) {
  return pair.round_trip_s > 0 && pair.out_bytes_per_s > 0 && pair.back_bytes_per_s > 0 &&
         pair.out_mean_bytes_per_s > 0 && pair.back_mean_bytes_per_s > 0;
}

class Surveyor {
 public:
  Surveyor(std::uint32_t count, const SurveyOptions& options, const ProbeFunction& probe)
      : count_(count), options_(options), probe_(probe) {
    const SquareMatrix empty(count, std::vector<double>(count, 0));
    surveyed_.measured.round_trip_s = surveyed_.measured.bytes_per_s = empty;
  }

  absl::StatusOr<Surveyed> Run() {
    if (absl::Status status = MeasurePairs(); !status.ok()) return status;
    surveyed_.groups = FindGroups(surveyed_.measured);
    if (absl::Status status = MeasureBetween(); !status.ok()) return status;
    return std::move(surveyed_);
  }

 private:
  void Progress(const std::string& what) const {
    if (options_.progress) options_.progress(what);
  }

  absl::StatusOr<PairMeasure> Probe(RankPair pair, DurationNs duration) const {
    absl::StatusOr<PairMeasure> measure = probe_(pair, duration);
    if (!measure.ok() || IsMeasured(*measure)) return measure;
    return absl::InternalError(fmt::format("the probe between racks {} and {} returned no result",
                                           pair.first, pair.second));
  }

  absl::Status MeasurePairs() {
    const std::vector<std::vector<RankPair>> rounds = Tournament(count_);
    const std::uint32_t total = options_.repeat * count_ * (count_ - 1) / 2;
    std::uint32_t done = 0;
    for (std::uint32_t time = 0; time < options_.repeat; ++time) {
      for (const std::vector<RankPair>& pairs : rounds) {
        for (const auto& [low, high] : pairs) {
          Progress(fmt::format("probe {} of {}: racks {} and {}", ++done, total, low, high));
          // Alternate the direction.
          const RankPair pair = time % 2 == 0 ? RankPair(low, high) : RankPair(high, low);
          const absl::StatusOr<PairMeasure> measure = Probe(pair, options_.duration);
          if (!measure.ok()) return measure.status();
          Take(pair, *measure, /*is_first=*/time == 0);
        }
      }
    }
    return absl::OkStatus();
  }

  void Take(RankPair pair, const PairMeasure& measure, bool is_first) {
    const auto [from, to] = pair;
    Measured& measured = surveyed_.measured;
    double& known = measured.round_trip_s[from][to];
    known = is_first ? measure.round_trip_s : std::min(known, measure.round_trip_s);
    measured.round_trip_s[to][from] = known;
    double& out = measured.bytes_per_s[from][to];
    double& back = measured.bytes_per_s[to][from];
    out = std::max(out, measure.out_bytes_per_s);
    back = std::max(back, measure.back_bytes_per_s);
  }

  absl::Status ProbeTogether(const std::vector<RankPair>& pairs, double& out, double& back) const {
    std::vector<absl::StatusOr<PairMeasure>> measures(pairs.size());
    const DurationNs duration = std::min(kTogetherTimes * options_.duration, kDurationMax);
    std::vector<std::thread> threads(pairs.size());
    absl::Status started;
    for (std::size_t i = 0; i < pairs.size() && started.ok(); ++i) {
      started =
          StartThread(threads[i], "probe", [&, i] { measures[i] = Probe(pairs[i], duration); });
    }
    for (std::thread& thread : threads) {
      if (thread.joinable()) thread.join();
    }
    if (!started.ok()) return started;
    for (const absl::StatusOr<PairMeasure>& measure : measures) {
      if (!measure.ok()) return measure.status();
      // Use the mean including pauses: a pair is faster while another one pauses, but that is not
      // the bandwidth that the pairs get together.
      out += measure->out_mean_bytes_per_s / options_.repeat;
      back += measure->back_mean_bytes_per_s / options_.repeat;
    }
    return absl::OkStatus();
  }

  absl::Status MeasureBetween() {
    const RankGroups& groups = surveyed_.groups;
    SquareMatrix& between = surveyed_.between;
    between.assign(groups.size(), std::vector<double>(groups.size(), 0));
    for (std::uint32_t a = 0; a < groups.size(); ++a) {
      for (std::uint32_t b = a + 1; b < groups.size(); ++b) {
        const std::vector<RankPair> pairs = PairsBetween(groups[a], groups[b]);
        if (pairs.size() == 1) {  // already measured
          const auto [from, to] = pairs[0];
          between[a][b] = surveyed_.measured.bytes_per_s[from][to];
          between[b][a] = surveyed_.measured.bytes_per_s[to][from];
          continue;
        }
        Progress(fmt::format("probe groups {} and {}: {} pairs at once", a, b, pairs.size()));
        for (std::uint32_t time = 0; time < options_.repeat; ++time) {
          const absl::Status status = ProbeTogether(pairs, between[a][b], between[b][a]);
          if (!status.ok()) return status;
        }
      }
    }
    return absl::OkStatus();
  }

  const std::uint32_t count_;
  const SurveyOptions& options_;
  const ProbeFunction& probe_;
  Surveyed surveyed_;
};

}  // namespace

std::vector<std::vector<RankPair>> Tournament(std::uint32_t count) {
  // With an odd number, add a dummy member; its partner pauses in that round.
  const std::uint32_t places = count + count % 2;
  std::vector<std::vector<RankPair>> rounds;
  for (std::uint32_t round = 0; round + 1 < places; ++round) {
    auto& pairs = rounds.emplace_back();
    // The last place is fixed, the others rotate.
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

absl::StatusOr<Surveyed> Survey(std::uint32_t count, const SurveyOptions& options,
                                const ProbeFunction& probe) {
  return Surveyor(count, options, probe).Run();
}

}  // namespace phub::plan
