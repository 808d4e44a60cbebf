// Measures one case: first compares the kernel's results with the serial reference, then times the
// kernel and its ceilings, interleaved round by round.
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
  std::size_t memory_bytes = 0;      // the arrays of all threads together, for places out of cache
  std::size_t l1_bytes = 24 << 10;   // the arrays of one thread; the smallest L1 caches have 32 KiB
  std::size_t l2_bytes = 256 << 10;  // the smallest L2 caches have 256 KiB to 512 KiB
  std::size_t chunk_bytes = 64 << 10;
  std::uint32_t rounds = 0;
  std::size_t cached_traffic_bytes = 0;  // in cache, a timing moves at least this
  Pages pages = Pages::kSmall;
};

// Seconds for one pass over all arrays, from `runs` timings.
struct Figures {
  double median_s = 0.0;
  double min_s = 0.0;
  double mad_s = 0.0;  // median absolute deviation
  double cpu_s = 0.0;  // median of the CPU time of all threads
  std::uint32_t runs = 0;
};

struct Result {
  Case measured;
  std::string name;
  std::size_t footprint_bytes = 0;  // for all threads together, as are the fields below
  std::size_t traffic_bytes = 0;
  std::size_t separate_traffic_bytes = 0;
  std::size_t piece_count = 0;  // calls in a pass
  Figures kernel;
  Figures ceiling;           // the fastest loop that moves the same bytes of the same streams
  std::string ceiling_form;  // the form of that loop: "blocks of 256, plain"
  // Out of cache, for kernels that leave results in the caches: the fastest loop that also does so.
  std::optional<Figures> like;
  std::optional<Figures> loads;  // in cache: loading all arrays once
  // The minimum arithmetic of a kernel: in cache for halves and Adam, always for encoded gradients.
  std::optional<Figures> arithmetic;
  std::optional<Figures> separate;  // out of cache, fused: sum and update as two passes

  double BytesPerSecond() const;
  double CeilingBytesPerSecond() const;
  // The kernel's rate in percent of the ceiling's rate; in cache, of the loads' rate.
  double Percent() const;
  double PercentOfCeiling() const;
  double PercentOfLike() const;        // only with `like`
  double PercentOfArithmetic() const;  // only with `arithmetic`
  // Fusing saves memory traffic. This is the saved time in percent of the time that the saved bytes
  // predict. Requires `separate`.
  double FusingPercent() const;
  double FusingSpeedup() const;
};

// Goals: percent of the ceiling out of cache, of the loads in cache, and of the predicted savings.
inline constexpr double kMemoryGoalPercent = 90.0;
// Percent of loops that move and store alike, where neither loads nor stores past the caches
// compare.
inline constexpr double kMovesGoalPercent = 90.0;
// Percent of the arithmetic alone, where it takes longer than the loads.
inline constexpr double kArithmeticGoalPercent = 90.0;
inline constexpr double kCacheGoalPercent = 80.0;
inline constexpr double kFusingGoalPercent = 90.0;
double GoalPercent(Place place);

class Measurement {
 public:
  static absl::StatusOr<Measurement> Create(const Settings& settings, std::uint32_t threads_max);

  // Returns an internal error with the first difference if the results differ from the reference.
  absl::StatusOr<Result> Measure(const Case& each);

 private:
  explicit Measurement(const Settings& settings) : settings_(settings) {}

  Settings settings_;
  std::vector<Arena> arenas_;                 // one for each thread
  std::vector<std::unique_ptr<Crew>> crews_;  // crews_[threads - 1], created on first use
};

}  // namespace phub::bench
