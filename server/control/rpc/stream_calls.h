// The gRPC calls of one stream that are deferred or have not returned. gRPC may call the stream
// back, and the stream may start another call, before a call returns. So they are counted, and the
// stream must not finish while there are any: gRPC deletes it soon after.
#pragma once

#include <functional>
#include <utility>

#include "server/control/ports/control_thread.h"

namespace phub::server {

class StreamCalls {
 public:
  // `stream`: its name in the log, static text. `advance`: called under the lock whenever a call
  // has returned; not after the stream has finished.
  StreamCalls(ControlThread& thread, const char* stream, std::function<void()> advance)
      : thread_(thread), turn_{TurnKind::kStream, stream}, advance_(std::move(advance)) {}
  StreamCalls(const StreamCalls&) = delete;
  StreamCalls& operator=(const StreamCalls&) = delete;

  // Under the lock, both. Start: calls `call` after the lock is released.
  void Start(std::function<void()> call) {
    ++pending_;
    thread_.Defer([this, call = std::move(call)] {
      call();
      thread_.Run(turn_, [this](Control&) {
        --pending_;
        advance_();
      });
    });
  }
  bool pending() const { return pending_ > 0; }

 private:
  ControlThread& thread_;
  const ControlThread::Turn turn_;
  const std::function<void()> advance_;
  int pending_ = 0;
};

}  // namespace phub::server
