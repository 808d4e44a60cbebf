#include "server/probe/lane_io.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "common/net/dial.h"

namespace phub::server::probe {
namespace {

using transport::IoResult;
using transport::IoStatus;

// How often a wait checks whether the daemon is shutting down.
constexpr DurationNs kLook = 50 * kMillisecond;

absl::Status Gone() {
  return absl::AbortedError("the lane was closed: the peer is gone, or the link to it failed");
}

}  // namespace

// Uses BBR if available, because it matches the rate of a link and keeps its queue short. Behind
// shaped uplinks, rates measured with BBR were 8 to 14 % off, with CUBIC 16 to 28 % (bench/run
// probe). Lanes of jobs have other requirements (transport/tcp/tcp_socket.h).
LaneIo::LaneIo(transport::TcpConnection& lane, const Clock& clock, TimeNs deadline,
               const std::atomic<bool>& stopping)
    : lane_(lane), clock_(clock), deadline_(deadline), stopping_(stopping) {
  constexpr std::string_view kBbr = "bbr";
  // If the host does not allow BBR, the lane keeps its congestion control.
  [[maybe_unused]] const int result =
      setsockopt(lane_.socket(), IPPROTO_TCP, TCP_CONGESTION, kBbr.data(), kBbr.size());
}

absl::Status LaneIo::Await(short events) {
  for (;;) {
    if (stopping_.load(std::memory_order_relaxed))
      return absl::AbortedError("phubd is shutting down");
    const TimeNs now = clock_.Now();
    if (now >= deadline_) {
      return absl::AbortedError(
          "the peer did not answer in time; it hangs, or the link is too slow for a probe of this "
          "duration");
    }
    const TimeNs look = std::min(deadline_, now + kLook);
    if (net::WaitSocket(lane_.socket(), events, look, clock_)) return absl::OkStatus();
  }
}

absl::StatusOr<std::size_t> LaneIo::TryRead(std::span<std::byte> buffer) {
  const std::array<iovec, 1> part{{{buffer.data(), buffer.size()}}};
  const IoResult result = lane_.Readv(part);
  if (result.status == IoStatus::kClosed || result.status == IoStatus::kReset) return Gone();
  return result.bytes;
}

absl::StatusOr<std::size_t> LaneIo::TryWrite(std::span<const std::byte> bytes) {
  // writev() only reads the bytes, so the cast is safe.
  const std::array<iovec, 1> part{{{const_cast<std::byte*>(bytes.data()), bytes.size()}}};
  const IoResult result = lane_.Writev(part);
  if (result.status == IoStatus::kReset) return Gone();
  return result.bytes;
}

absl::Status LaneIo::ReadOver(std::span<std::byte> buffer, std::uint64_t count) {
  for (std::uint64_t got = 0; got < count;) {
    const std::size_t at = got % buffer.size();
    const auto bytes = std::min<std::uint64_t>(buffer.size() - at, count - got);
    const auto read = TryRead(buffer.subspan(at, static_cast<std::size_t>(bytes)));
    if (!read.ok()) return read.status();
    got += *read;
    // After a short read more bytes may already be available.
    if (*read > 0) continue;
    if (absl::Status status = Await(POLLIN); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status LaneIo::WriteOver(std::span<const std::byte> buffer, std::uint64_t count) {
  for (std::uint64_t put = 0; put < count;) {
    const std::size_t at = put % buffer.size();
    const auto bytes = std::min<std::uint64_t>(buffer.size() - at, count - put);
    const auto written = TryWrite(buffer.subspan(at, static_cast<std::size_t>(bytes)));
    if (!written.ok()) return written.status();
    put += *written;
    if (*written == bytes) continue;
    if (absl::Status status = Await(POLLOUT); !status.ok()) return status;
  }
  return absl::OkStatus();
}

LaneIo::Moved LaneIo::moved() const {
  tcp_info info{};
  socklen_t bytes = sizeof info;
  if (getsockopt(lane_.socket(), IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return {};
  return {info.tcpi_bytes_acked, info.tcpi_bytes_received};
}

absl::Status LaneIo::AwaitEnd() {
  std::byte rest{};
  const std::array<iovec, 1> part{{{&rest, 1}}};
  for (;;) {
    const IoResult result = lane_.Readv(part);
    if (result.status == IoStatus::kClosed || result.status == IoStatus::kReset) {
      return absl::OkStatus();
    }
    if (result.bytes > 0) return absl::AbortedError("the peer sent more data than requested");
    if (absl::Status status = Await(POLLIN); !status.ok()) return status;
  }
}

}  // namespace phub::server::probe
