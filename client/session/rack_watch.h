// Monitors a worker's daemons: sends heartbeats and detects daemons that died, became silent or
// closed a lane. Reconnects to control, and under policy wait reopens lanes. If it cannot recover,
// it passes a verdict and the failed daemon to the owner.
//
//   failure                    policy fail                    policy wait
//   stream ended               open the stream again          open the stream again
//   lanes silent               verdict at once                close and reopen the lanes
//   only control silent        replace its connection         replace its connection
//   lane lost                  verdict after liveness_timeout reopen the lane
//   all lanes lost, no control verdict after kDeathGrace      reopen the lanes
//   session unknown            verdict at once                verdict at once
//   lane protocol violated     verdict                        verdict
//
// Lanes show that a daemon is alive: its core loops send keep-alives, and the engine measures how
// long each lane has been silent (common/transport/silence_meter.h). While the lanes work, control
// may be stuck or unreachable for any time. Only until all lanes are open, and for older daemons, a
// daemon whose control is silent for liveness_timeout counts as silent.
//
// The end of a stream shows nothing about the daemon: training continues on the lanes, and the
// stream is opened again with growing, random pauses for as long as that takes. A dead daemon is
// found by its lanes, whose sockets end with it. Policy fail waits after a lost lane, since the
// stream may meanwhile report the cause, unless no control answers either. Policy wait retries with
// growing pauses until wait_timeout. An outage of control, while another lane shows that the daemon
// is alive, uses up no wait_timeout, since lanes cannot be reopened meanwhile. Without such a lane
// the time counts until the daemon answers, and then no more. A daemon that does not know the
// session was restarted, and its state is lost. So is the session if the daemon refuses it for any
// other reason.
//
// Threads. The heartbeat thread sends heartbeats, checks timeouts, and never blocks on anything
// else. A second thread reconnects. OnLaneClosed() is called on the engine's thread, events arrive
// on the channels' threads. One lock, never held during a call to another object.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "client/commands.h"
#include "client/session/call_waiter.h"
#include "client/session/daemon_link.h"
#include "client/session/rack_lanes.h"
#include "common/base/clock.h"
#include "common/base/random.h"
#include "phub/status.h"

namespace phub::client {

struct RackWatchSettings {
  std::string job;
  std::uint32_t rank = 0;
  bool wait = false;
  DurationNs wait_timeout = 0;
  DurationNs call_timeout = 0;
};

class RackWatch {
 public:
  class Owner {
   public:
    virtual ~Owner() = default;
    // The job is over. Called on any thread except the engine's, possibly more than once. key: the
    // key that the verdict names.
    virtual void OnVerdict(Status verdict, const std::string& key, const DaemonLink& from) = 0;
    // A daemon reports that a checkpoint of the job is on disk. The channels' threads.
    virtual void OnSavedState(const v1::SavedState& state) = 0;
    // A daemon asks what this rank is doing. The channels' threads.
    virtual void OnDumpRequested(const v1::DumpRequested& request, const DaemonLink& from) = 0;
    // See Engine::Silence. The heartbeat thread, like the next one.
    virtual DurationNs LaneSilence(std::uint32_t lane) const = 0;
    // Policy wait: the daemon is silent on the lane, which is to be closed and opened again.
    virtual void CloseSilentLane(std::uint32_t lane) = 0;
    // A lane was opened again. The reconnecting thread.
    virtual void OnLaneOpened(std::uint32_t lane, std::uint8_t transport_index,
                              transport::Connection& connection) = 0;
  };

  // All references must outlive this object.
  RackWatch(RackWatchSettings settings, const DaemonLinks& links, RackLanes& lanes,
            const Clock& clock, CallWaiter& waiter, Owner& owner);
  ~RackWatch();

  // Starts the threads and opens the streams. An error, without effect: the process lacks threads.
  absl::Status Start();
  void OnLaneClosed(const LaneClosed& closed);
  // The rank leaves or the job has its verdict: failures no longer matter. Heartbeats continue, so
  // that the daemons receive this worker's Leave and do not report it as silent.
  void StandDown() { standing_down_.store(true, std::memory_order_release); }
  // Ends the threads. Waits for a running attempt to reconnect.
  void Quit();

 private:
  // The state of one daemon.
  struct Watched final : ControlChannel::Observer {
    Watched(RackWatch& watch_in, const DaemonLink& link_in) : watch(watch_in), link(link_in) {}
    void OnEvent(const v1::SessionEvent& event) override { watch.OnEvent(*this, event); }
    void OnAttendClosed(const absl::Status& status) override {
      watch.OnAttendClosed(*this, status);
    }

    RackWatch& watch;
    const DaemonLink& link;
    std::atomic<TimeNs> last_heard{0};
    std::atomic<bool> draining{false};
    // Protected by RackWatch::mutex_.
    bool attended = false;        // the stream is open
    bool answered = false;        // the stream has had an event
    bool must_reconnect = false;  // the stream is open, but its connection is dead
    TimeNs attended_at = 0;       // when the stream was opened
    TimeNs looked_at = 0;         // when its lanes were last looked at
    TimeNs vouched_at = 0;        // when its lanes last showed that it is alive
    TimeNs unreachable_at = 0;    // the last attempt to open it that reached nobody; 0: none
    TimeNs lost_at = 0;           // 0: control answers
    Status why;                   // reason of the loss
    absl::Status stream_status;   // how the last stream ended
    TimeNs silent_at = 0;         // policy wait: lost, and silent since then; 0: it is not
    TimeNs next_attempt = 0;
    DurationNs pause = 0;  // between the next attempt and the following one
  };
  struct LaneWatch {
    TimeNs lost_at = 0;    // 0: the lane is open
    TimeNs opened_at = 0;  // last reopened; 0: it was never lost
    TimeNs began_at = 0;   // first of a series of losses in quick succession
    Status why;
  };
  struct Finding {
    Status verdict = {};        // OK: no verdict
    DurationNs look_again = 0;  // time until the next check
  };

  bool over() const { return standing_down_.load(std::memory_order_acquire); }
  void OnEvent(Watched& watched, const v1::SessionEvent& event);
  void OnAttendClosed(Watched& watched, const absl::Status& status);
  void Log(Watched& watched, const v1::SessionEvent& event);
  void LogLate(const v1::RoundLate& late, const std::string& daemon);
  void LogMissing(const v1::RanksMissing& missing, const std::string& daemon) const;
  Status Decorate(const Watched& watched, Status status) const;
  void Attend(Watched& watched);
  void SendHeartbeat(const Watched& watched);
  void NoteLoss(Watched& watched, TimeNs now, Status why);  // holding mutex_
  void Pulse();                                             // the heartbeat thread
  // vouched: set to true if the daemon's lanes show that it is alive.
  Finding LookAtSilence(Watched& watched, TimeNs now, bool& vouched);
  Finding LookAtControl(Watched& watched, TimeNs now, bool vouched);
  Finding LookAtLanes(Watched& watched, TimeNs now, bool lanes_live);
  bool HasLiveLane(const DaemonLink& link) const;
  void ForgiveOutage(const DaemonLink& link, TimeNs since, TimeNs now);
  DurationNs OutageSince(Watched& watched, TimeNs now, bool lanes_live);  // holding mutex_
  bool IsUnreachable(const Watched& watched) const;                       // holding mutex_
  DurationNs LookAt(Watched& watched, TimeNs now);
  void Recover();                                       // the reconnecting thread
  void AwaitStart(std::unique_lock<std::mutex>& lock);  // until begun_ or quit_
  Watched* NextToRecover(TimeNs now, DurationNs& wait);
  DurationNs Jitter(DurationNs pause);  // holding mutex_
  bool NeedsRecovery(const Watched& watched) const;
  void RecoverControl(Watched& watched);
  bool RecoverLanes(Watched& watched);

  const RackWatchSettings settings_;
  const DaemonLinks& links_;
  RackLanes& lanes_;
  const Clock& clock_;
  CallWaiter& waiter_;
  Owner& owner_;
  DurationNs liveness_timeout_ = 0;  // the shortest of all daemons
  std::vector<std::unique_ptr<Watched>> watched_;
  std::atomic<std::uint64_t> heartbeats_{0};
  std::atomic<bool> standing_down_{false};

  std::mutex mutex_;
  std::condition_variable changed_;
  bool begun_ = false;  // the streams are open, so the threads may begin
  bool quit_ = false;
  TimeNs late_logged_at_ = 0;            // 0: never
  SeededRandom random_;                  // for pauses
  std::vector<LaneWatch> lane_watches_;  // [lane]
  std::thread pulse_thread_;
  std::thread recover_thread_;
};

}  // namespace phub::client
