#include "bench/kernels/measure.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "bench/kernels/workload.h"

namespace phub::bench {
namespace {

// The ceiling's block sizes, from a few vectors to many pages of each stream.
constexpr std::size_t kCeilingBlockBytes[] = {256, 1024, 4096, 65536};
// All forms of the ceiling run in the trial rounds. Afterwards only the fastest forms remain.
constexpr std::uint32_t kTrialRounds = 2;
constexpr std::size_t kFormsKept = 2;

std::size_t FootprintOf(const Settings& settings, const Case& each) {
  switch (each.place) {
    case Place::kL1: return settings.l1_bytes;
    case Place::kL2: return settings.l2_bytes;
    case Place::kMemory:
    case Place::kChunks:
    case Place::kStaged: return settings.memory_bytes / each.threads;
  }
  return 0;
}

double MedianOf(std::vector<double> values) {
  const std::size_t middle = values.size() / 2;
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(middle),
                   values.end());
  return values[middle];
}

// kLike: a ceiling with plain stores, for a kernel that uses only plain stores.
enum class Kind : std::uint8_t { kKernel, kCeiling, kLike, kLoads, kArithmetic, kSeparate };

// One measured loop or kernel, and its times per pass.
struct Subject {
  Kind kind;
  std::string name;
  std::function<void(Workload&)> pass;
  std::vector<double> wall_s;
  std::vector<double> cpu_s;

  Figures ToFigures() const {
    Figures figures;
    figures.runs = static_cast<std::uint32_t>(wall_s.size());
    figures.median_s = MedianOf(wall_s);
    figures.min_s = *std::min_element(wall_s.begin(), wall_s.end());
    figures.cpu_s = MedianOf(cpu_s);
    std::vector<double> deviations;
    for (const double wall : wall_s) deviations.push_back(std::fabs(wall - figures.median_s));
    figures.mad_s = MedianOf(deviations);
    return figures;
  }
};

// Some kernels leave their results in the caches for the next reader. Their stores cause memory
// reads of the overwritten lines.
bool LeavesResultsInCaches(const Case& each) {
  return !IsInCache(each.place) && Workload::HasOutputs(each) && !Workload::Streams(each);
}

std::vector<Subject> SubjectsOf(const Case& each) {
  std::vector<Subject> subjects;
  const auto add = [&](Kind kind, std::string name, std::function<void(Workload&)> pass) {
    subjects.push_back({kind, std::move(name), std::move(pass), {}, {}});
  };
  add(Kind::kKernel, "kernel", [](Workload& work) { work.Run(); });
  for (const std::size_t block : kCeilingBlockBytes) {
    for (const bool non_temporal : {false, true}) {
      if (non_temporal && (IsInCache(each.place) || !Workload::HasOutputs(each))) continue;
      const bool like = !non_temporal && LeavesResultsInCaches(each);
      add(like ? Kind::kLike : Kind::kCeiling,
          absl::StrCat("blocks of ", block, ", ", non_temporal ? "non-temporal" : "plain"),
          [form = CeilingForm{block, non_temporal}](Workload& work) { work.RunCeiling(form); });
    }
  }
  if (IsInCache(each.place)) {
    add(Kind::kLoads, "loads", [](Workload& work) { work.RunLoads(); });
  } else if (IsFused(each.operation)) {
    add(Kind::kSeparate, "separate", [](Workload& work) { work.RunSeparately(); });
  }
  if (Workload::HasArithmetic(each) && (IsInCache(each.place) || each.encoded())) {
    add(Kind::kArithmetic, "arithmetic", [](Workload& work) { work.RunArithmetic(); });
  }
  return subjects;
}

// Keeps only the fastest forms of a ceiling.
void KeepFastest(Kind kind, std::vector<Subject>& subjects) {
  std::vector<double> fastest;
  const auto best = [](const Subject& subject) {
    return *std::min_element(subject.wall_s.begin(), subject.wall_s.end());
  };
  for (const Subject& subject : subjects) {
    if (subject.kind == kind) fastest.push_back(best(subject));
  }
  if (fastest.empty()) return;
  std::sort(fastest.begin(), fastest.end());
  const double slowest_kept = fastest[std::min(kFormsKept, fastest.size()) - 1];
  std::erase_if(subjects, [&](const Subject& subject) {
    return subject.kind == kind && best(subject) > slowest_kept;
  });
}

// Discards the times of the trial rounds.
void EndTrial(std::vector<Subject>& subjects) {
  KeepFastest(Kind::kCeiling, subjects);
  KeepFastest(Kind::kLike, subjects);
  for (Subject& subject : subjects) {
    subject.wall_s.clear();
    subject.cpu_s.clear();
  }
}

void Time(Crew& crew, std::vector<Workload>& works, std::size_t passes, Subject& subject) {
  const Timing timing = crew.Run([&](std::uint32_t thread) {
    for (std::size_t i = 0; i < passes; ++i) subject.pass(works[thread]);
  });
  subject.wall_s.push_back(timing.wall_s / static_cast<double>(passes));
  subject.cpu_s.push_back(timing.cpu_s / static_cast<double>(passes));
}

Result ResultOf(const Case& each, const std::vector<Workload>& works,
                const std::vector<Subject>& subjects) {
  Result result;
  result.measured = each;
  for (const Workload& work : works) {
    result.footprint_bytes += work.footprint_bytes();
    result.traffic_bytes += work.traffic_bytes();
    result.separate_traffic_bytes += work.separate_traffic_bytes();
    result.piece_count += work.piece_count();
  }
  result.name = NameOf(each, result.footprint_bytes);
  for (const Subject& subject : subjects) {
    const Figures figures = subject.ToFigures();
    if (subject.kind == Kind::kKernel) result.kernel = figures;
    if (subject.kind == Kind::kLoads) result.loads = figures;
    if (subject.kind == Kind::kArithmetic) result.arithmetic = figures;
    if (subject.kind == Kind::kSeparate) result.separate = figures;
    if (subject.kind == Kind::kLike && (!result.like || figures.median_s < result.like->median_s)) {
      result.like = figures;
    }
    if (subject.kind != Kind::kCeiling && subject.kind != Kind::kLike) continue;
    if (!result.ceiling_form.empty() && figures.median_s >= result.ceiling.median_s) continue;
    result.ceiling = figures;
    result.ceiling_form = subject.name;
  }
  return result;
}

}  // namespace

double Result::BytesPerSecond() const {
  return static_cast<double>(traffic_bytes) / kernel.median_s;
}

double Result::CeilingBytesPerSecond() const {
  if (loads) return static_cast<double>(footprint_bytes) / loads->median_s;
  return static_cast<double>(traffic_bytes) / ceiling.median_s;
}

double Result::Percent() const { return 100.0 * BytesPerSecond() / CeilingBytesPerSecond(); }

double Result::PercentOfCeiling() const { return 100.0 * ceiling.median_s / kernel.median_s; }

double Result::PercentOfLike() const { return 100.0 * like->median_s / kernel.median_s; }

double Result::PercentOfArithmetic() const {
  return 100.0 * arithmetic->median_s / kernel.median_s;
}

double Result::FusingPercent() const {
  const double saved_bytes = static_cast<double>(separate_traffic_bytes - traffic_bytes);
  const double predicted_s =
      separate->median_s * saved_bytes / static_cast<double>(separate_traffic_bytes);
  return 100.0 * (separate->median_s - kernel.median_s) / predicted_s;
}

double Result::FusingSpeedup() const { return separate->median_s / kernel.median_s; }

double GoalPercent(Place place) {
  return IsInCache(place) ? kCacheGoalPercent : kMemoryGoalPercent;
}

absl::StatusOr<Measurement> Measurement::Create(const Settings& settings,
                                                std::uint32_t threads_max) {
  Measurement measurement(settings);
  const std::size_t cached_bytes = std::max(settings.l1_bytes, settings.l2_bytes);
  for (std::uint32_t i = 0; i < threads_max; ++i) {
    // The first thread's arena holds the arrays of single-thread cases alone.
    const std::size_t bytes = settings.memory_bytes / (i + 1);
    const std::size_t arena_bytes =
        Workload::ArenaBytes(std::max(bytes, cached_bytes), settings.chunk_bytes);
    absl::StatusOr<Arena> arena = Arena::Create(arena_bytes, settings.pages);
    if (!arena.ok()) return arena.status();
    measurement.arenas_.push_back(*std::move(arena));
  }
  measurement.crews_.resize(threads_max);
  return measurement;
}

absl::StatusOr<Result> Measurement::Measure(const Case& each) {
  std::unique_ptr<Crew>& crew = crews_[each.threads - 1];
  if (crew == nullptr) {
    absl::StatusOr<std::unique_ptr<Crew>> created = Crew::Create(each.threads);
    if (!created.ok()) return created.status();
    crew = *std::move(created);
  }
  std::vector<Workload> works;
  for (std::uint32_t thread = 0; thread < each.threads; ++thread) {
    works.emplace_back(each, FootprintOf(settings_, each), settings_.chunk_bytes,
                       arenas_[thread].data(), thread + 1);
  }
  std::vector<std::string> differences(each.threads);
  std::vector<Subject> subjects = SubjectsOf(each);
  const bool separate = !IsInCache(each.place) && IsFused(each.operation);
  // The measured thread fills and checks the arrays, so that their memory is on its NUMA node.
  crew->Run([&](std::uint32_t thread) {
    if (separate) differences[thread] = works[thread].Verify(true);
    if (differences[thread].empty()) differences[thread] = works[thread].Verify(false);
  });
  for (const std::string& difference : differences) {
    if (difference.empty()) continue;
    return absl::InternalError(
        absl::StrCat(NameOf(each, works[0].footprint_bytes()), ": ", difference));
  }
  const std::size_t passes =
      IsInCache(each.place) ? 1 + settings_.cached_traffic_bytes / works[0].traffic_bytes() : 1;
  const auto measure_rounds = [&](std::uint32_t rounds) {
    for (std::uint32_t round = 0; round < rounds; ++round) {
      for (Subject& subject : subjects) Time(*crew, works, passes, subject);
    }
  };
  measure_rounds(kTrialRounds);
  EndTrial(subjects);
  measure_rounds(settings_.rounds);
  return ResultOf(each, works, subjects);
}

}  // namespace phub::bench
