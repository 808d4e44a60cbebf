#include "bench/kernels/crew.h"

#include <time.h>

#include <algorithm>
#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/cpu_topology.h"
#include "common/simd/kernels.h"

namespace phub::bench {
namespace {

std::int64_t Now(clockid_t clock) {
  timespec now{};
  PHUB_CHECK(clock_gettime(clock, &now) == 0);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Crew>> Crew::Create(std::uint32_t threads) {
  const absl::StatusOr<CpuTopology> topology = CpuTopology::Create();
  if (!topology.ok()) return topology.status();
  if (threads > topology->cores().size()) {
    return absl::InvalidArgumentError(absl::StrCat("cannot run ", threads,
                                                   " threads: this process may use only ",
                                                   topology->cores().size(), " cores"));
  }
  return std::unique_ptr<Crew>(new Crew(topology->Choose(threads)));
}

Crew::Crew(const std::vector<std::uint32_t>& cores)
    : start_(static_cast<std::ptrdiff_t>(cores.size()) + 1),
      end_(static_cast<std::ptrdiff_t>(cores.size()) + 1),
      spans_(cores.size()) {
  for (std::uint32_t thread = 0; thread < cores.size(); ++thread) {
    threads_.emplace_back([this, thread, core = cores[thread]] { Serve(thread, core); });
  }
}

Crew::~Crew() {
  work_ = nullptr;
  start_.arrive_and_wait();
}

void Crew::Serve(std::uint32_t thread, std::uint32_t core) {
  const absl::Status pinned = PinThisThread(core);
  PHUB_CHECK(pinned.ok(), "core={} status={}", core, pinned.ToString());
  simd::SetFloatingPointMode();
  for (;;) {
    start_.arrive_and_wait();
    if (work_ == nullptr) return;
    const std::int64_t start_cpu_ns = Now(CLOCK_THREAD_CPUTIME_ID);
    Span& span = spans_[thread];
    span.start_ns = Now(CLOCK_MONOTONIC);
    (*work_)(thread);
    span.end_ns = Now(CLOCK_MONOTONIC);
    span.cpu_ns = Now(CLOCK_THREAD_CPUTIME_ID) - start_cpu_ns;
    end_.arrive_and_wait();
  }
}

Timing Crew::Run(const Work& work) {
  work_ = &work;
  start_.arrive_and_wait();
  end_.arrive_and_wait();
  std::int64_t start_ns = spans_[0].start_ns;
  std::int64_t end_ns = spans_[0].end_ns;
  std::int64_t cpu_ns = 0;
  for (const Span& span : spans_) {
    start_ns = std::min(start_ns, span.start_ns);
    end_ns = std::max(end_ns, span.end_ns);
    cpu_ns += span.cpu_ns;
  }
  return {static_cast<double>(end_ns - start_ns) * 1e-9, static_cast<double>(cpu_ns) * 1e-9};
}

}  // namespace phub::bench
