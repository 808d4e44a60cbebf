// The timeline of this process (PHUB_TIMELINE): when each round of each key was pushed, sent and
// complete, how long threads waited, and what the program says that they computed, written as
// Chrome trace JSON for Perfetto.
//
// One object for each process, never destroyed, since threads may use it while the process exits.
// It keeps the newest records in memory of fixed size and writes the file after the last job was
// left, and at exit. A file that cannot be written is a warning: a job never fails because of it.
//
// A key has one track: its rounds do not overlap. A round has these spans there:
//
//   push    from the call of PushPull() until the last chunk was given to a transport
//   queued  its first part, until the first chunk was
//   pull    from then on until all new parameters have arrived
//
// Threads: any. Locks: its own mutex only.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "client/session/measured_clock.h"
#include "common/base/clock.h"
#include "phub/status.h"

namespace phub::client {

struct TimelineSettings {
  std::string path;  // empty: no timeline is wanted
  // The iterations of each key that are recorded, from `first` to the one before `end`.
  std::uint64_t first = 0;
  std::uint64_t end = UINT64_MAX;
  std::size_t records_max = 1 << 18;  // 24 MiB if all are used
  std::size_t keys_max = 1 << 14;     // later keys are not recorded
};
// path, window: the values of PHUB_TIMELINE and PHUB_TIMELINE_ITERATIONS, or null.
Result<TimelineSettings> ReadTimelineSettings(const char* path, const char* window);
// "%r" becomes the rank. Without it, ".rank0" is inserted before ".json" or appended.
std::string TimelinePath(std::string_view path, std::uint32_t rank);

class Timeline {
 public:
  struct Record {
    std::uint32_t track = 0;  // for a computation: the index of its name
    std::int32_t thread = 0;  // not 0: this thread waited, or computed, from `begin` to `end`
    bool computation = false;
    bool skipped = false;
    bool pooled = false;               // a round of a pool,
    std::uint32_t pool_operation = 0;  // of its operation of this number
    TimeNs begin = 0;                  // for a round: the push
    TimeNs sending = 0;
    TimeNs sent = 0;
    TimeNs end = 0;  // for a round: complete
    std::uint64_t round = 0;
    std::uint64_t iteration = 0;
    std::uint64_t bytes_up = 0;
    std::uint64_t bytes_down = 0;
    const char* operation = "";  // static storage
  };
  static constexpr std::uint32_t kNoTrack = UINT32_MAX;

  explicit Timeline(TimelineSettings settings) : settings_(std::move(settings)) {}
  // That of the environment; null if it is not set. A value that is not valid is a warning.
  static Timeline* OfProcess();

  bool Includes(std::uint64_t iteration) const {
    return settings_.first <= iteration && iteration < settings_.end;
  }
  // kNoTrack: there are too many keys.
  std::uint32_t AddKey(std::string_view job, std::uint32_t rank, std::string_view key);
  void Add(const Record& record);
  // This thread computed from `begin` to `end`. Ignored if the window does not have the iteration.
  void AddComputation(std::string_view name, std::uint64_t iteration, TimeNs begin, TimeNs end);

  // The rank of the first job is that of the process. clocks: those that the rank measured.
  void JobBegan(std::uint32_t rank, const std::vector<MeasuredClock>& clocks = {});
  void JobEnded();  // writes the file after the last one
  // Writes the file if there is anything new.
  void Write();
  std::string Json() const;

 private:
  // Takes the file's text in pieces; false: it does not want more.
  using Sink = std::function<bool(std::string_view text)>;
  // REQUIRE: mutex_ is held.
  bool WriteJson(const Sink& sink) const;
  void WriteLocked();
  void AddLocked(const Record& record);
  void NoteClock(const MeasuredClock& measured);

  const TimelineSettings settings_;
  mutable std::mutex mutex_;
  std::optional<std::uint32_t> rank_;
  int jobs_ = 0;
  bool changed_ = false;
  bool warned_ = false;
  std::vector<MeasuredClock> clocks_;  // one for each daemon: the measurement with the least error
  std::vector<std::string> tracks_;    // their names
  std::uint64_t keys_left_out_ = 0;
  std::vector<std::string> computations_;  // their names
  std::map<std::string, std::uint32_t, std::less<>> computation_of_;
  std::vector<Record> records_;  // a ring once it has records_max
  std::uint64_t added_ = 0;
};

// One key's part of the timeline. Push() is called before the engine knows of the round, Sent() and
// Complete() by the engine's thread during it, so they do not run at the same time.
class KeyTrace {
 public:
  void Begin(Timeline& timeline, std::uint32_t track);  // before the first push
  bool on() const { return timeline_ != nullptr; }

  // `round` has the push, its sizes and its operation.
  void Push(std::uint64_t ticket, const Timeline::Record& round);
  void Sent(bool all);
  void Complete(bool skipped);

  // Records how long this thread waits for a round, if that round is recorded.
  class Waiting {
   public:
    Waiting(const KeyTrace& trace, std::uint64_t ticket);
    ~Waiting();
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    Timeline* timeline_ = nullptr;
    Timeline::Record record_;
  };

 private:
  Timeline* timeline_ = nullptr;
  std::uint32_t track_ = 0;
  bool recording_ = false;
  Timeline::Record round_;
  std::atomic<std::uint64_t> recorded_ticket_{0};
};

}  // namespace phub::client
