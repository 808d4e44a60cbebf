// Measures how long the peer of a lane has been silent, and judges what the silence of a process's
// lanes means.
//
// Every received byte counts as a sign of life, also inside a message. Silence is observed time: it
// grows only by the time between two looks at a lane whose owner had read everything by then.
// One such step counts for at most an eighth of the timeout. So an observer that was stopped,
// starved or busy, or that does not read the lane (Transport::Hold), does not accuse its peer.
//
//   time              |--look--|--look--|----- this process stopped -----|--look--|
//   received           byte     -        -                                 -
//   silence            0        1/16     2/16                              4/16 of the timeout
//
// The thread that serves the lane measures; any thread may read the result.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "common/base/clock.h"

namespace phub::transport {

// What a connection has received so far.
struct Activity {
  std::uint64_t received = 0;  // changes whenever anything arrives
  bool read_all = false;       // everything that had arrived when the owner last polled was read
};

class SilenceMeter {
 public:
  // The lane was just adopted. A peer that never sends anything is silent from here on.
  void Begin(const Activity& activity) {
    received_ = activity.received;
    read_all_ = true;
    silence_.store(0, std::memory_order_relaxed);
  }
  // `step`: the time since the last look that counts, see LookTimer.
  void Look(const Activity& activity, DurationNs step) {
    if (activity.received != received_) {
      received_ = activity.received;
      silence_.store(0, std::memory_order_relaxed);
    } else if (activity.read_all && read_all_) {
      silence_.store(silence() + step, std::memory_order_relaxed);
    }
    read_all_ = activity.read_all;
  }
  DurationNs silence() const { return silence_.load(std::memory_order_relaxed); }

 private:
  std::uint64_t received_ = 0;
  bool read_all_ = false;
  std::atomic<DurationNs> silence_{0};
};

// When the owner of lanes looks at them and sends keep-alives. One thread.
class LookTimer {
 public:
  // 0: never.
  explicit LookTimer(DurationNs liveness_timeout)
      : timeout_(liveness_timeout),
        next_(timeout_ > 0 ? 0 : std::numeric_limits<TimeNs>::max()) {}  // 0: at once

  TimeNs next() const { return next_; }
  bool IsDue(TimeNs now) const { return now >= next_; }

  // Begins a look. Returns the time since the last one that counts as silence. REQUIRES:
  // IsDue(now).
  DurationNs Take(TimeNs now) {
    const DurationNs step = looked_ ? std::min(now - last_, timeout_ / kStepsMax) : 0;
    looked_ = true;
    last_ = now;
    next_ = now + timeout_ / kLooks;
    return step;
  }
  // True if keep-alives must be sent now. They are due at every second look, and may be due before
  // the next one.
  bool TakeKeepAlive(TimeNs now) {
    if (timeout_ == 0 || now < next_keep_alive_) return false;
    next_keep_alive_ = now + timeout_ / kKeepAlives - timeout_ / kLooks / 2;
    return true;
  }
  // One end of a lane (the worker; between racks, the higher rack) stops sending keep-alives when
  // the other end has been silent for longer than this. So if only the direction to it fails, the
  // other end notices as well.
  DurationNs echo_limit() const { return timeout_ / kEchoFraction; }

 private:
  static constexpr int kLooks = 16;      // per timeout
  static constexpr int kKeepAlives = 8;  // per timeout
  static constexpr int kStepsMax = 8;    // one step counts for at most this fraction
  static constexpr int kEchoFraction = 4;

  const DurationNs timeout_;
  TimeNs next_;
  TimeNs last_ = 0;
  TimeNs next_keep_alive_ = 0;
  bool looked_ = false;
};

// Judges the lanes between one process and one daemon. Pure.
//
// A process is silent if all its lanes are. If some lanes are silent and others are not, their
// paths or core loops have failed. Lanes that fall silent together do so within a few looks, so the
// judge waits a little for the others before it accuses a single lane.
class SilenceJudge {
 public:
  enum class Verdict : std::uint8_t { kAlive, kLaneSilent, kAllSilent };

  void Add(std::uint32_t lane, DurationNs silence) {
    if (count_ == 0 || silence < least_) least_ = silence;
    if (count_ == 0 || silence > most_) {
      most_ = silence;
      most_silent_ = lane;
    }
    ++count_;
  }
  Verdict Judge(DurationNs timeout) const {
    if (count_ == 0 || most_ < timeout) return Verdict::kAlive;
    if (least_ >= timeout) return Verdict::kAllSilent;
    const bool others_live = least_ < timeout / 2;
    return others_live || most_ >= timeout + timeout / 4 ? Verdict::kLaneSilent : Verdict::kAlive;
  }
  // How soon the verdict may change.
  DurationNs LookAgain(DurationNs timeout) const {
    return std::clamp(timeout - most_, timeout / 16, timeout / 4);
  }
  std::uint32_t count() const { return count_; }
  DurationNs least() const { return least_; }
  DurationNs most() const { return most_; }
  std::uint32_t most_silent() const { return most_silent_; }

 private:
  std::uint32_t count_ = 0;
  DurationNs least_ = 0;
  DurationNs most_ = 0;
  std::uint32_t most_silent_ = 0;
};

}  // namespace phub::transport
