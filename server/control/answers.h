// How control answers: callbacks for calls, sinks for streams. All are called with control's lock
// held and must not call back into control.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "phub/v1/admin.pb.h"
#include "phub/v1/session.pb.h"

namespace phub::server {

// Called exactly once, before the call returns or later.
template <typename Response>
using Answer = std::function<void(const absl::Status&, const Response&)>;

// Where a session's events go: one Attend stream.
class EventSink {
 public:
  virtual ~EventSink() = default;
  virtual void Send(const v1::SessionEvent& event) = 0;
  // The last call: control has dropped the sink. OK after a job's orderly end.
  virtual void End(const absl::Status& status) = 0;
};
using StreamId = std::uint64_t;
using LoadId = std::uint64_t;

// Where a snapshot's parts go: one ReadSnapshot stream.
class SnapshotSink {
 public:
  virtual ~SnapshotSink() = default;
  // One part. The next one comes after Snapshots::SnapshotPartSent.
  virtual void Send(const v1::SnapshotPart& part) = 0;
  // The last call: control has dropped the sink. OK: all parts were sent.
  virtual void End(const absl::Status& status) = 0;
};

}  // namespace phub::server
