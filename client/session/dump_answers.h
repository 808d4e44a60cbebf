// Answers a daemon's request for a record of what this rank is doing (phubctl job dump): the rounds
// that it has pushed and that are not complete, its calls to daemons that have not returned, and
// what the program's recorder adds.
//
// Threads. Answer() runs on a channel's thread, takes short locks only, and reports rounds and
// calls at once. The recorder belongs to the program and may block, for example on an interpreter's
// lock, so a thread of its own calls it and reports its result later. That thread exists once a
// recorder was set.
//
// A request that arrives while the recorder runs replaces one that waits: a daemon has at most one
// dump of a job at a time.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "client/session/daemon_link.h"
#include "client/session/key_impl.h"
#include "client/session/rack_calls.h"
#include "common/base/clock.h"
#include "phub/client.h"

namespace phub::client {

class DumpAnswers {
 public:
  using Keys = std::function<std::vector<std::shared_ptr<KeyImpl>>()>;

  // `keys` returns the job's keys; any thread. All references must outlive this object.
  DumpAnswers(RackCalls& calls, const Clock& clock, Keys keys)
      : calls_(calls), clock_(clock), keys_(std::move(keys)) {}
  ~DumpAnswers();  // after Quit()

  void Answer(const v1::DumpRequested& request, const DaemonLink& link);
  // Null: none. Returns after a call of the previous recorder has ended.
  Status SetRecorder(Recorder recorder);
  // Ends the thread, after a call of the recorder. Later requests are answered without it.
  void Quit();

 private:
  struct Question {
    const DaemonLink* link = nullptr;
    std::uint64_t number = 0;
    std::size_t bytes_max = 0;
  };
  // What the thread uses while it is in the recorder. The program may end the job there: an
  // interpreter's garbage collection runs in any thread.
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::shared_ptr<const Recorder> recorder;  // null: none
    bool calling = false;                      // the thread is in a recorder
    bool quit = false;
    std::vector<Question> questions;  // at most one from each daemon
  };

  v1::RankRecord OwnRecord(std::size_t bytes_max) const;
  // `then` runs when the daemon has the report, in a channel's thread; it may outlive this object.
  void Report(const Question& question, v1::RankRecord record, bool more,
              std::function<void()> then) const;
  void Run(std::shared_ptr<State> state);
  bool IsOwnThread() const { return std::this_thread::get_id() == thread_id_.load(); }

  RackCalls& calls_;
  const Clock& clock_;
  const Keys keys_;
  const std::shared_ptr<State> state_ = std::make_shared<State>();
  std::mutex set_mutex_;  // held by SetRecorder() and Quit(), taken before the state's
  std::thread thread_;
  std::atomic<std::thread::id> thread_id_{};
};

}  // namespace phub::client
