// Times one case: the kernel and what it is compared with, interleaved round by round, after its
// results were compared with the serial reference.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/kernels/arena.h"
#include "bench/kernels/case.h"
#include "bench/kernels/crew.h"

namespace phub::bench {

struct Settings {
  std::size_t memory_bytes = 0;      // of all threads' arrays, at places out of cache
  std::size_t l1_bytes = 24 << 10;   // of one thread's: the smallest L1 caches have 32 KiB
  std::size_t l2_bytes = 256 << 10;  // the smallest L2 caches have 256 KiB to 512 KiB
  std::size_t chunk_bytes = 64 << 10;
  std::uint32_t rounds = 0;
  std::size_t cached_traffic_bytes = 0;  // in cache, passes are repeated until they moved so much
  Pages pages = Pages::kSmall;
};

// Seconds for one pass over all arrays, of `runs` timings.
struct Figures {
  double median_s = 0.0;
  double min_s = 0.0;
  double mad_s = 0.0;  // median absolute deviation
  double cpu_s = 0.0;  // median, of all threads
  std::uint32_t runs = 0;
};

struct Result {
  Case measured;
  std::string name;
  std::size_t footprint_bytes = 0;  // of all threads, as are the others
  std::size_t traffic_bytes = 0;
  std::size_t separate_traffic_bytes = 0;
  std::size_t piece_count = 0;  // calls in a pass
  Figures kernel;
  Figures ceiling;           // the fastest loop that moves the same bytes of the same streams
  std::string ceiling_form;  // which one that was: "blocks of 256, plain"
  // Out of cache, where the kernel leaves results in the caches: the fastest loop that does so too.
  std::optional<Figures> like;
  std::optional<Figures> loads;  // in cache: loading every array's bytes once
  // In cache, of halves and Adam: the arithmetic that no kernel for it can do without.
  std::optional<Figures> arithmetic;
  std::optional<Figures> separate;  // out of cache, fused: sum and update as two passes

  double BytesPerSecond() const;
  double CeilingBytesPerSecond() const;
  // Of the ceiling's rate, or, in cache, of the loads' rate.
  double Percent() const;
  double PercentOfCeiling() const;
  double PercentOfLike() const;        // only with `like`
  double PercentOfArithmetic() const;  // only with `arithmetic`
  // What fusing saved, of what the bytes that it does not move predict. Only with `separate`.
  double FusingPercent() const;
  double FusingSpeedup() const;
};

// The goals: of the ceiling out of cache, of the loads in cache, of the prediction.
inline constexpr double kMemoryGoalPercent = 90.0;
// Of loops that move and store alike, where loads alone, or stores past the caches, are no measure.
inline constexpr double kMovesGoalPercent = 90.0;
// Of arithmetic alone, where it takes longer than loads.
inline constexpr double kArithmeticGoalPercent = 90.0;
inline constexpr double kCacheGoalPercent = 80.0;
inline constexpr double kFusingGoalPercent = 90.0;
double GoalPercent(Place place);

class Measurement {
 public:
  static absl::StatusOr<Measurement> Create(const Settings& settings, std::uint32_t threads_max);

  // An internal error says what differs from the reference.
  absl::StatusOr<Result> Measure(const Case& each);

 private:
  explicit Measurement(const Settings& settings) : settings_(settings) {}

  Settings settings_;
  std::vector<Arena> arenas_;                 // one for each thread
  std::vector<std::unique_ptr<Crew>> crews_;  // [threads - 1], made when first needed
};

}  // namespace phub::bench
