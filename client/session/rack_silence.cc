// How RackWatch judges a daemon by the silence of its lanes.
#include "client/engine.h"
#include "client/session/fault_text.h"
#include "client/session/rack_watch.h"
#include "common/transport/silence_meter.h"

namespace phub::client {

using transport::SilenceJudge;

RackWatch::Finding RackWatch::LookAtSilence(Watched& watched, TimeNs now, bool& vouched) {
  const DaemonLink& link = watched.link;
  const DurationNs timeout = link.joined.liveness_timeout_ns();
  SilenceJudge judge;
  for (std::uint32_t i = 0; i < link.lane_count(); ++i) {
    const DurationNs silence = owner_.LaneSilence(link.first_lane + i);
    if (silence == Engine::kNotWatched) return {.look_again = timeout};
    judge.Add(i, silence);
  }
  const SilenceJudge::Verdict verdict = judge.Judge(timeout);
  vouched = verdict == SilenceJudge::Verdict::kAlive;
  if (vouched) {
    watched.vouched_at = now;
    return {.look_again = judge.LookAgain(timeout)};
  }
  if (settings_.wait) {  // they are opened again
    for (std::uint32_t i = 0; i < link.lane_count(); ++i) {
      const std::uint32_t lane = link.first_lane + i;
      if (owner_.LaneSilence(lane) >= timeout) owner_.CloseSilentLane(lane);
    }
    return {.look_again = timeout / 4};
  }
  if (verdict == SilenceJudge::Verdict::kLaneSilent) {
    const std::uint32_t core = link.joined.cores(static_cast<int>(judge.most_silent())).core();
    return {.verdict =
                LaneSilent(link.endpoint, core, judge.most(), settings_.job, settings_.rank)};
  }
  const DurationNs age = now - watched.last_heard.load(std::memory_order_relaxed);
  return {.verdict =
              LanesSilent(link.endpoint, judge.least(), /*control_answers=*/age < timeout / 2,
                          settings_.job, settings_.rank)};
}

}  // namespace phub::client
