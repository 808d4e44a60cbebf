#include <unistd.h>

#include <chrono>
#include <cstdio>

#include "client/examples/digits/training.h"

namespace digits {
namespace {

constexpr std::int64_t kTerminalPeriodNs = 100'000'000;  // 100 ms looks continuous
constexpr std::size_t kLinesOffTerminal = 10;

std::int64_t NowNs() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

}  // namespace

Progress::Progress(const Settings& settings)
    : iterations_(settings.iterations),
      quiet_(settings.quiet),
      terminal_(isatty(STDERR_FILENO) == 1),
      printed_ns_(NowNs()) {}

void Progress::Add(std::size_t iteration, double loss_sum, std::size_t correct,
                   std::size_t digits_of_rank, std::size_t digits) {
  loss_sum_ += loss_sum;
  correct_ += correct;
  digits_of_rank_ += digits_of_rank;
  digits_ += digits;
  if (quiet_) return;
  const std::size_t done = iteration + 1;
  const std::int64_t now_ns = NowNs();
  const std::int64_t elapsed_ns = now_ns - printed_ns_;
  const bool last = done == iterations_;
  const bool tenth =
      done * kLinesOffTerminal / iterations_ != iteration * kLinesOffTerminal / iterations_;
  if (!last && !(terminal_ ? elapsed_ns >= kTerminalPeriodNs : tenth)) return;
  const double seen = static_cast<double>(digits_of_rank_);
  const double per_second =
      static_cast<double>(digits_) * 1e9 / static_cast<double>(elapsed_ns > 0 ? elapsed_ns : 1);
  std::fprintf(stderr, "%siteration %zu/%zu  loss %.4f  accuracy %.3f  %.0f digits/s%s",
               terminal_ ? "\r" : "", done, iterations_, loss_sum_ / seen,
               static_cast<double>(correct_) / seen, per_second,
               terminal_ && !last ? "\033[K" : "\n");
  printed_ns_ = now_ns;
  loss_sum_ = 0;
  correct_ = digits_of_rank_ = digits_ = 0;
}

}  // namespace digits
