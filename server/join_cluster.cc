#include "server/join_cluster.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <thread>
#include <utility>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/status_text.h"
#include "server/config/place_setting.h"
#include "server/config/view_settings.h"
#include "server/open_store.h"

namespace phub::server {
namespace {

constexpr DurationNs kLookAgain = 250 * kMillisecond;
// Daemons that start together need a moment.
constexpr DurationNs kLogAfter = 2 * kSecond;
constexpr DurationNs kLogEvery = 10 * kSecond;

// Logs what the daemon waits for, at first after a while.
class Waiting {
 public:
  explicit Waiting(StartState& state) : state_(state), log_at_(clock_.Now() + kLogAfter) {}

  void For(const std::string& what, std::int64_t view) {
    state_.Set(what);
    if (clock_.Now() < log_at_ && !logged_) return;
    if (logged_ && what == last_ && clock_.Now() < log_at_) return;
    logged_ = true;
    last_ = what;
    log_at_ = clock_.Now() + kLogEvery;
    LogWarning("event=waiting_for_cluster view={} reason=\"{}\" effect=\"phubd is not ready\"",
               view, what);
  }

 private:
  StartState& state_;
  const SystemClock clock_;
  TimeNs log_at_;
  bool logged_ = false;
  std::string last_;
};

// OK with settings.view set: the daemon can go on. OK without it: not yet.
absl::Status TryToJoin(Membership& membership, Waiting& waiting, Settings& settings) {
  absl::StatusOr<Membership::Known> known = membership.Read();
  if (known.ok() && known->view.number == 0) {
    waiting.For(std::string(kNoView), 0);
    return absl::OkStatus();
  }
  absl::Status status = known.status();
  // Also renews the lease while the daemon waits.
  if (status.ok()) status = membership.Claim();
  if (status.ok()) status = FindGroup(known->view, ViewPlaceOf(settings)).status();
  if (absl::IsUnavailable(status)) {
    waiting.For(std::string(MessageOf(status)), 0);
    return absl::OkStatus();
  }
  if (!status.ok()) return status;
  known = membership.Read();  // with this daemon's own endpoint
  if (!known.ok() || !FindGroup(known->view, ViewPlaceOf(settings)).ok()) return absl::OkStatus();
  if (!known->missing.empty()) {
    waiting.For(fmt::format("no daemon has been at {} yet", fmt::join(known->missing, ", ")),
                known->view.number);
    return absl::OkStatus();
  }
  if (absl::Status used = UseView(known->view, known->endpoints, settings); !used.ok()) return used;
  membership.UseView(*known);
  return absl::OkStatus();
}

}  // namespace

void StartState::Set(std::string waits_for) {
  const std::lock_guard lock(mutex_);
  waits_for_ = std::move(waits_for);
}

std::string StartState::Get() const {
  const std::lock_guard lock(mutex_);
  return waits_for_;
}

absl::Status OpenAndJoin(Random& random, const std::function<void()>& waiting, StartState& state,
                         Settings& settings, std::unique_ptr<ControlStore>& store) {
  auto opened = OpenStore(settings, random, waiting);
  if (!opened.ok()) return opened.status();
  store = *std::move(opened);
  const auto stopped = [&waiting] {
    waiting();
    return IsAskedToStop();
  };
  return JoinCluster(*store->membership(), stopped, state, settings);
}

absl::Status JoinCluster(Membership& membership, const std::function<bool()>& stopped,
                         StartState& state, Settings& settings) {
  Waiting waiting(state);
  for (;;) {
    absl::Status status = TryToJoin(membership, waiting, settings);
    if (!status.ok()) return status;
    if (settings.view.number != 0) break;
    if (stopped()) {
      return absl::CancelledError(
          fmt::format("phubd was stopped while it waited: {}", state.Get()));
    }
    std::this_thread::sleep_for(std::chrono::nanoseconds(kLookAgain));
  }
  state.Set("");
  LogInfo(
      "event=view_used view={} digest={} place={} daemons=\"{}\" racks=\"{}\" aggregators=\"{}\"",
      settings.view.number, DigestOf(settings.view).substr(0, 12), settings.place, settings.daemons,
      settings.racks, settings.aggregators);
  return absl::OkStatus();
}

}  // namespace phub::server
