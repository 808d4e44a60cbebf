// How control answers: callbacks for calls, sinks for streams. Control calls them with its lock
// held, and they must not call back into control.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "phub/v1/admin.pb.h"
#include "phub/v1/session.pb.h"

namespace phub::server {

// Called exactly once, either before the call returns or later.
template <typename Response>
using Answer = std::function<void(const absl::Status&, Response)>;

// Receives the events of a session: one Attend stream.
class EventSink {
 public:
  virtual ~EventSink() = default;
  virtual void Send(const v1::SessionEvent& event) = 0;
  // The last call: control has dropped the sink. The status is OK if the job ended in order.
  virtual void End(const absl::Status& status) = 0;
};
using StreamId = std::uint64_t;
using LoadId = std::uint64_t;

// Receives the parts of a snapshot: one ReadSnapshot stream.
class SnapshotSink {
 public:
  virtual ~SnapshotSink() = default;
  // Sends one part. Control sends the next one after Snapshots::SnapshotPartSent.
  virtual void Send(v1::SnapshotPart part) = 0;
  // The last call: control has dropped the sink. The status is OK if all parts were sent.
  virtual void End(const absl::Status& status) = 0;
};

}  // namespace phub::server
