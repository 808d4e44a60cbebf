// Keeps a mirror equal to etcd, with two threads:
//
//   store-watch   reads everything once, then the stream of changes; again after each end of the
//                 stream, after a compaction, and after a backup was restored
//   store-probe   asks for the newest revision once a second, by a linearizable read, which a
//   member
//                 without a quorum cannot answer. It ends a stream that has not delivered what etcd
//                 has, and knows how old the mirror may be.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "common/base/clock.h"
#include "common/base/work_thread.h"
#include "server/etcd/client.h"
#include "server/etcd/mirror.h"

namespace phub::server::etcd {

// All that is below the prefix, except the audit log, at one revision.
absl::StatusOr<std::vector<Item>> ReadAll(Client& client, const std::string& prefix,
                                          std::int64_t& revision);

class WatchLoop {
 public:
  // `client` and `mirror` must outlive it.
  WatchLoop(Client& client, Mirror& mirror, std::string prefix, DurationNs stale_max);
  ~WatchLoop() { Stop(); }

  // The mirror has everything up to its revision.
  absl::Status Start();
  void Stop();  // idempotent

  // Why the mirror may be too old for new jobs; empty: it is not. Any thread.
  std::string Fault() const;
  // Whether the mirror has everything up to this revision. Any thread.
  bool HasDelivered(std::int64_t revision) const { return mirror_.revision() >= revision; }
  // OK, or why etcd did not answer the last time. Any thread.
  absl::Status reachable() const;
  // A call has failed with this. Until etcd answers again, reachable() returns it. Any thread.
  void NoteUnreachable(const absl::Status& status);

 private:
  void Watch();
  void Follow();
  bool Apply(const pb::WatchResponse& response);
  bool Read();
  void Probe();
  void ProbeOnce();
  void CancelStream();
  std::int64_t NewestRevision() const;
  bool Pause(DurationNs duration);  // false: Stop() was called

  Client& client_;
  Mirror& mirror_;
  const std::string prefix_;
  const DurationNs stale_max_;
  const SystemClock clock_;
  mutable std::mutex mutex_;
  std::condition_variable stopping_;
  bool stopped_ = false;  // this and the rest: under mutex_
  WatchStream* stream_ = nullptr;
  absl::Status reachable_;
  TimeNs fresh_at_;          // the mirror had everything that etcd had at that time
  TimeNs behind_since_ = 0;  // 0: the mirror had what etcd had
  std::int64_t newest_ = 0;  // the highest revision that etcd has named
  bool restored_ = false;    // a lower one was named afterwards
  std::unique_ptr<WorkThread> watch_thread_;  // owner's thread
  std::unique_ptr<WorkThread> probe_thread_;
};

}  // namespace phub::server::etcd
