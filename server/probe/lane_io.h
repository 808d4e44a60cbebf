// Blocking reads and writes on a probe's lane. One thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/transport/tcp/tcp_connection.h"

namespace phub::server::probe {

class LaneIo {
 public:
  // All outlive it. After `deadline` every call fails.
  LaneIo(transport::TcpConnection& lane, const Clock& clock, TimeNs deadline,
         const std::atomic<bool>& stopping);

  // All of the bytes, or Aborted: says what is in the way. The buffer of `count` bytes in all is
  // used again and again if it is smaller.
  absl::Status Read(std::span<std::byte> bytes) { return ReadOver(bytes, bytes.size()); }
  absl::Status ReadOver(std::span<std::byte> buffer, std::uint64_t count);
  absl::Status Write(std::span<const std::byte> bytes) { return WriteOver(bytes, bytes.size()); }
  absl::Status WriteOver(std::span<const std::byte> buffer, std::uint64_t count);
  // Until the other end has closed the lane.
  absl::Status AwaitEnd();

  // What goes without waiting; may be nothing.
  absl::StatusOr<std::size_t> TryRead(std::span<std::byte> buffer);
  absl::StatusOr<std::size_t> TryWrite(std::span<const std::byte> bytes);
  // Until one of poll's events is there.
  absl::Status Await(short events);

  // What the other end's kernel has acknowledged, and what this end's has received, since the lane
  // was connected: bytes that lie in buffers count. So neither end's threads matter, as long as one
  // always has something to send and the other takes it.
  struct Moved {
    std::uint64_t acknowledged = 0;
    std::uint64_t received = 0;
  };
  Moved moved() const;

  TimeNs Now() const { return clock_.Now(); }

 private:
  transport::TcpConnection& lane_;
  const Clock& clock_;
  const TimeNs deadline_;
  const std::atomic<bool>& stopping_;
};

}  // namespace phub::server::probe
