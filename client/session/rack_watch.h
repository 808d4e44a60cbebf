// Watches over a worker's daemons: sends heartbeats, notices who died, fell silent or lost a lane,
// and, under policy wait, brings back what can be brought back. What cannot is a verdict, which the
// owner is told, with the daemon that it concerns.
//
// Policy fail. A stream that ends, or silence for liveness_timeout, is a verdict at once; of a lost
// lane, after liveness_timeout, since the control stream may say by then who is to blame.
// Policy wait. A stream that broke is attached again, a silent connection is replaced, a lost lane
// is opened again, each with growing pauses, until wait_timeout is over. A daemon that has
// forgotten the session was started anew: nothing can bring back what it held, so that is a verdict
// at once. So is a peer that breaks the lane's rules.
//
// Threads. Two of its own: one sends heartbeats and looks at the clock, and never blocks on
// anything else; under policy wait another one dials. OnLaneClosed() comes on the engine's thread,
// events on the channels' threads. One lock, never held while anybody is called.
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
    // The job is over. Any thread but the engine's; perhaps more than once. key: that it names.
    virtual void OnVerdict(Status verdict, const std::string& key, const DaemonLink& from) = 0;
    // A daemon says that the job's state is on disk. The channels' threads.
    virtual void OnSavedState(const v1::SavedState& state) = 0;
    // A lane was opened again. The reconnecting thread.
    virtual void OnLaneOpened(std::uint32_t lane, std::uint8_t transport_index,
                              transport::Connection& connection) = 0;
  };

  // Everything given outlives this object.
  RackWatch(RackWatchSettings settings, const DaemonLinks& links, RackLanes& lanes,
            const Clock& clock, CallWaiter& waiter, Owner& owner);
  ~RackWatch();

  // Opens the streams and starts the threads.
  void Start();
  void OnLaneClosed(const LaneClosed& closed);
  // The rank leaves, or the job has its verdict: what is lost from now on is no loss. Heartbeats go
  // on, so that the daemons hear the end from this worker and not from its silence.
  void StandDown() { standing_down_.store(true, std::memory_order_release); }
  // Ends the threads. Waits for a dialling under way.
  void Quit();

 private:
  // One daemon, as it is doing.
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
    // With RackWatch::mutex_.
    bool attended = false;        // the stream is open
    bool must_reconnect = false;  // the stream is open and leads nowhere
    TimeNs lost_at = 0;           // 0: it answers
    Status why;                   // lost
    TimeNs next_attempt = 0;
    DurationNs pause = 0;  // before the next attempt but one
  };
  struct LaneWatch {
    TimeNs lost_at = 0;    // 0: it is open
    TimeNs opened_at = 0;  // again; 0: it was never lost
    TimeNs began_at = 0;   // of this spell of losses
    Status why;
  };
  struct Finding {
    Status verdict = {};        // OK: none
    DurationNs look_again = 0;  // how long nothing needs to be looked at
  };

  bool over() const { return standing_down_.load(std::memory_order_acquire); }
  void OnEvent(Watched& watched, const v1::SessionEvent& event);
  void OnAttendClosed(Watched& watched, const absl::Status& status);
  void Log(Watched& watched, const v1::SessionEvent& event);
  Status Decorate(const Watched& watched, Status status) const;
  void Attend(Watched& watched);
  void SendHeartbeat(const Watched& watched);
  void Pulse();  // the heartbeat thread
  Finding LookAtControl(Watched& watched, TimeNs now);
  Finding LookAtLanes(const Watched& watched, TimeNs now);
  DurationNs LookAt(Watched& watched, TimeNs now);
  void Recover();  // the reconnecting thread
  Watched* NextToRecover(TimeNs now, DurationNs& wait);
  bool NeedsRecovery(const Watched& watched) const;
  void RecoverControl(Watched& watched);
  bool RecoverLanes(Watched& watched);

  const RackWatchSettings settings_;
  const DaemonLinks& links_;
  RackLanes& lanes_;
  const Clock& clock_;
  CallWaiter& waiter_;
  Owner& owner_;
  DurationNs liveness_timeout_ = 0;  // the shortest of the daemons'
  std::vector<std::unique_ptr<Watched>> watched_;
  std::atomic<std::uint64_t> heartbeats_{0};
  std::atomic<bool> standing_down_{false};

  std::mutex mutex_;
  std::condition_variable changed_;
  bool quit_ = false;
  std::vector<LaneWatch> lane_watches_;  // [lane]
  std::thread pulse_thread_;
  std::thread recover_thread_;
};

}  // namespace phub::client
