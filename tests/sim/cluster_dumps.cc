// Administrators who ask what the ranks of a job are doing, at any time: while ranks join, train,
// are lost or leave. Every question is answered exactly once, and nobody else notices.
#include <fmt/format.h>

#include "server/control/admin/job_dumps.h"
#include "tests/sim/cluster_state.h"

namespace phub::sim {

void Cluster::StartDumps() {
  if (!random_.Chance(1, 2)) return;
  dumps_.resize(rack_.size());
  dumps_left_ = static_cast<std::uint32_t>(1 + random_.Below(30));
  ScheduleDump();
}

void Cluster::ScheduleDump() {
  const auto pause = static_cast<DurationNs>(random_.Below(400)) * kMillisecond;
  network_.Schedule(network_.clock().Now() + pause, [this] {
    if (dumps_left_-- == 0) return;
    v1::DumpJobRequest request;
    request.set_job(jobs_[random_.Below(jobs_.size())]->script.name);
    request.set_wait_ns(static_cast<DurationNs>(1 + random_.Below(1'000)) * kMillisecond);
    const std::size_t at = random_.Below(rack_.size());
    rack_[at]->CallControl([this, request, at](server::Control& control) {
      ++dumps_[at].asked;
      control.job_dumps().DumpJob(request,
                                  [this, at](const absl::Status& status, const v1::JobDump& dump) {
                                    ++dumps_[at].answered;
                                    if (!status.ok()) return;
                                    ++dumps_taken_;
                                    for (const v1::RankDump& rank : dump.ranks()) {
                                      rank.answered() ? ++dump_records_ : ++dump_silences_;
                                    }
                                  });
    });
    if (dumps_left_ > 0) ScheduleDump();
  });
}

std::string Cluster::JudgeDumps() const {
  for (std::size_t at = 0; at < dumps_.size(); ++at) {
    const Dumps& dumps = dumps_[at];
    if (!rack_[at]->alive() || dumps.asked == dumps.answered) continue;
    return fmt::format("{} answered {} of {} dumps", rack_[at]->endpoint(), dumps.answered,
                       dumps.asked);
  }
  return "";
}

}  // namespace phub::sim
