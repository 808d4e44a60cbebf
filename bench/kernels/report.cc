#include "bench/kernels/report.h"

#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "common/base/units.h"
#include "common/simd/kernels.h"

namespace phub::bench {
namespace {

double Gigabytes(double bytes) { return bytes * 1e-9; }

const char* ToString(Pages pages) { return pages == Pages::kHuge ? "huge" : "small"; }

double NanosecondsPerCall(const Result& result) {
  return result.kernel.median_s * 1e9 * result.measured.threads /
         static_cast<double>(result.piece_count);
}

double PercentOfMoves(const Result& result) {
  return result.like ? result.PercentOfLike() : result.PercentOfCeiling();
}

// A kernel that stores cannot reach the rate of loads alone in a small cache. A kernel that leaves
// its results in the cache cannot reach the rate of stores past the caches. For these, the limit is
// the rate of loops in the same run that move and store as the kernel does, or the arithmetic if it
// takes longer than those loops.
enum class Verdict : std::uint8_t { kReached, kMovesReached, kArithmeticReached, kMissed };
Verdict VerdictOn(const Result& result) {
  if (result.Percent() >= GoalPercent(result.measured.place)) return Verdict::kReached;
  if (PercentOfMoves(result) >= kMovesGoalPercent && (result.loads || result.like)) {
    return Verdict::kMovesReached;
  }
  return result.arithmetic && result.PercentOfArithmetic() >= kArithmeticGoalPercent
             ? Verdict::kArithmeticReached
             : Verdict::kMissed;
}
char MarkOf(Verdict verdict) {
  switch (verdict) {
    case Verdict::kReached: return ' ';
    case Verdict::kMovesReached: return '~';
    case Verdict::kArithmeticReached: return '=';
    case Verdict::kMissed: return '-';
  }
  return '?';
}

nlohmann::ordered_json ToJson(const Settings& settings, const Result& result) {
  nlohmann::ordered_json json;
  json["case"] = result.name;
  json["system"] = "phub";
  json["median_s"] = result.kernel.median_s;
  json["min_s"] = result.kernel.min_s;
  json["mad_s"] = result.kernel.mad_s;
  json["cpu_s"] = result.kernel.cpu_s;
  json["ceiling_s"] = static_cast<double>(result.traffic_bytes) / result.CeilingBytesPerSecond();
  json["runs"] = result.kernel.runs;
  json["verified"] = true;  // A failed verification yields no result.
  json["instruction_set"] = simd::TargetName();
  json["pages"] = ToString(settings.pages);
  json["traffic_bytes"] = result.traffic_bytes;
  json["bytes_per_s"] = result.BytesPerSecond();
  json["ceiling_bytes_per_s"] = result.CeilingBytesPerSecond();
  json["ceiling"] = result.loads ? "loads" : "moves, " + result.ceiling_form;
  json["percent"] = result.Percent();
  json["goal_percent"] = GoalPercent(result.measured.place);
  json["moves_s"] = (result.like ? *result.like : result.ceiling).median_s;
  json["moves_percent"] = PercentOfMoves(result);
  if (result.arithmetic) {
    json["arithmetic_s"] = result.arithmetic->median_s;
    json["arithmetic_percent"] = result.PercentOfArithmetic();
  }
  json["calls"] = result.piece_count;
  json["ns_per_call"] = NanosecondsPerCall(result);
  if (result.separate) {
    json["separate_s"] = result.separate->median_s;
    json["fusing_percent"] = result.FusingPercent();
    json["fusing_goal_percent"] = kFusingGoalPercent;
  }
  return json;
}

}  // namespace

void PrintHeader(const Settings& settings, std::uint32_t threads) {
  fmt::print(
      "phub kernels: {}, {} pages, arrays of {} out of cache, {} in L1 and {} in L2, chunks of {}, "
      "1..{} threads, {} interleaved rounds.\n"
      "GB/s: bytes read plus bytes written, divided by the median time.\n"
      "ceiling: out of cache, loops that move the same bytes and compute nothing, with plain or "
      "non-temporal stores, whichever is faster; in cache, loads alone.\n"
      "percent: the kernel's rate in percent of the ceiling.\n"
      "moves: the kernel's rate in percent of loops that move the same bytes, in cache as well; "
      "these loops use plain stores if the kernel leaves its results in the caches.\n"
      "arith: the kernel's rate in percent of the minimum arithmetic of halves or Adam (in cache), "
      "or of encoded gradients: int8 is widened, multiplied and added; values of topk and randomk "
      "are added at their places, one after the other.\n"
      "Before it is timed, each case is compared bit for bit with a serial reference.\n\n",
      simd::TargetName(), ToString(settings.pages), HumanBytes(settings.memory_bytes),
      HumanBytes(settings.l1_bytes), HumanBytes(settings.l2_bytes),
      HumanBytes(settings.chunk_bytes), threads, settings.rounds);
  fmt::print("{:<56} {:>7} {:>5} {:>7} {:>8} {:>6} {:>6} {:>10}  {}\n", "case", "GB/s", "+-%",
             "ceiling", "percent", "moves", "arith", "ns/call", "fused versus two passes");
  std::fflush(stdout);
}

void PrintRow(const Result& result) {
  const double percent = result.Percent();
  std::string fusing;
  if (result.separate) {
    fusing = fmt::format("{:.2f}x, {:.0f} % of predicted", result.FusingSpeedup(),
                         result.FusingPercent());
  }
  const std::string arithmetic =
      result.arithmetic ? fmt::format("{:.0f}", result.PercentOfArithmetic()) : "";
  fmt::print("{:<56} {:>7.1f} {:>5.1f} {:>7.1f} {:>7.0f}{} {:>6.0f} {:>6} {:>10.0f}  {}\n",
             result.name, Gigabytes(result.BytesPerSecond()),
             100.0 * result.kernel.mad_s / result.kernel.median_s,
             Gigabytes(result.CeilingBytesPerSecond()), percent, MarkOf(VerdictOn(result)),
             PercentOfMoves(result), arithmetic, NanosecondsPerCall(result), fusing);
  std::fflush(stdout);
}

void PrintSummary(const std::vector<Result>& results) {
  std::size_t reached = 0;
  std::size_t moves_reached = 0;
  std::size_t arithmetic_reached = 0;
  std::size_t fused = 0;
  std::size_t fusing_reached = 0;
  for (const Result& result : results) {
    const Verdict verdict = VerdictOn(result);
    if (verdict == Verdict::kReached) ++reached;
    if (verdict == Verdict::kMovesReached) ++moves_reached;
    if (verdict == Verdict::kArithmeticReached) ++arithmetic_reached;
    if (!result.separate) continue;
    ++fused;
    if (result.FusingPercent() >= kFusingGoalPercent) ++fusing_reached;
  }
  fmt::print(
      "\n{} of {} cases reach their goal ({:.0f} % of the ceiling out of cache, {:.0f} % of loads "
      "in cache).\n{} more cases (marked ~) reach {:.0f} % of loops that move the same bytes with "
      "the same stores.\n{} more cases (marked =) reach {:.0f} % of the arithmetic alone.\nThe "
      "others are marked -. Fusing: {} of {} cases gain {:.0f} % of the predicted savings.\n",
      reached, results.size(), kMemoryGoalPercent, kCacheGoalPercent, moves_reached,
      kMovesGoalPercent, arithmetic_reached, kArithmeticGoalPercent, fusing_reached, fused,
      kFusingGoalPercent);
}

absl::Status WriteJson(const std::string& path, const Settings& settings,
                       const std::vector<Result>& results) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Result& result : results) list.push_back(ToJson(settings, result));
  std::ofstream file(path);
  file << list.dump(1) << '\n';
  file.close();
  if (!file) return absl::UnavailableError("cannot write " + path);
  return absl::OkStatus();
}

}  // namespace phub::bench
