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
  // The references must outlive the object. After `deadline` every call fails.
  LaneIo(transport::TcpConnection& lane, const Clock& clock, TimeNs deadline,
         const std::atomic<bool>& stopping);

  // Transfer all bytes, or return Aborted with the reason. If the buffer is smaller than `count`
  // bytes, it is reused.
  absl::Status Read(std::span<std::byte> bytes) { return ReadOver(bytes, bytes.size()); }
  absl::Status ReadOver(std::span<std::byte> buffer, std::uint64_t count);
  absl::Status Write(std::span<const std::byte> bytes) { return WriteOver(bytes, bytes.size()); }
  absl::Status WriteOver(std::span<const std::byte> buffer, std::uint64_t count);
  // Blocks until the peer has closed the lane.
  absl::Status AwaitEnd();

  // Transfer without blocking; the result may be 0 bytes.
  absl::StatusOr<std::size_t> TryRead(std::span<std::byte> buffer);
  absl::StatusOr<std::size_t> TryWrite(std::span<const std::byte> bytes);
  // Blocks until one of poll's events occurs.
  absl::Status Await(short events);

  // Bytes that the peer's kernel has acknowledged, and that this kernel has received, since the
  // lane was connected. Bytes in socket buffers count, so the threads' speed does not matter as
  // long as one end always has data to send and the other end reads it.
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
