#include "common/transport/shm/shm_dial.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <limits>
#include <thread>
#include <utility>

#include "common/base/errno_text.h"
#include "common/base/shortage.h"
#include "common/transport/lane_request.h"
#include "common/transport/shm/shm_address.h"
#include "common/transport/shm/shm_lane.h"

namespace phub::transport {
namespace {

static_assert(wire::kLaneHelloBytes == wire::kSharedBatchRequestBytes);
constexpr std::size_t kAnswerBytesMax =
    wire::kLaneWelcomeBytes + std::max(wire::kSharedLaneBytes, wire::kSharedBatchBytes);

absl::Status TimedOut(const std::string& peer, DurationNs timeout) {
  return absl::DeadlineExceededError(
      fmt::format("{} did not answer within {} ms; the daemon is probably overloaded", peer,
                  timeout / kMillisecond));
}

absl::StatusOr<Descriptor> ConnectTo(const std::string& name, const std::string& peer,
                                     TimeNs deadline, DurationNs timeout, const Clock& clock) {
  if (name.empty() || name.size() > ShmAddress::kNameMax) {
    return absl::InvalidArgumentError(
        fmt::format("'{}' is not a valid name of a Unix socket", name));
  }
  const ShmAddress address(name);
  Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) {
    return DescriptorShortage(fmt::format("create a socket for {}", peer), errno);
  }
  while (connect(socket.get(), address.get(), address.bytes) != 0) {
    if (errno == EAGAIN) {  // the daemon's backlog is full; no event reports that it has room
      if (clock.Now() >= deadline) return TimedOut(peer, timeout);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    } else if (errno != EINTR) {
      return absl::UnavailableError(fmt::format(
          "cannot connect to {}: {}; the daemon has exited, or this process is in another network "
          "namespace (such as a container): run both in one namespace, or set transport=tcp",
          peer, ErrnoText(errno)));
    }
  }
  return socket;
}

struct Answer {
  std::uint8_t version = 0;  // the lane's
  Descriptor socket;
  ReceivedPacket packet;
  std::array<std::byte, kAnswerBytesMax> bytes;
  std::span<const std::byte> rest;  // the bytes after the welcome
};

absl::Status ReceiveAnswer(Answer& answer, const std::string& peer, TimeNs deadline,
                           DurationNs timeout, const Clock& clock) {
  for (;;) {
    const DurationNs left_ms = (deadline - clock.Now()) / kMillisecond;
    if (left_ms < 0) return TimedOut(peer, timeout);
    pollfd item{answer.socket.get(), POLLIN, 0};
    const int ready =
        poll(&item, 1,
             static_cast<int>(std::min<DurationNs>(left_ms + 1, std::numeric_limits<int>::max())));
    if (ready == 0 || (ready < 0 && errno == EINTR)) continue;
    answer.packet = ReceivePacket(answer.socket.get(), answer.bytes);
    // A daemon that refuses before it reads closes with our request unread. ECONNRESET reports that
    // once; the answer follows.
    if (answer.packet.bytes == -EAGAIN || answer.packet.bytes == -ECONNRESET) continue;
    if (answer.packet.bytes > 0) return absl::OkStatus();
    return absl::UnavailableError(fmt::format(
        "{} closed the connection without an answer{}", peer,
        answer.packet.bytes < 0 ? ": " + ErrnoText(static_cast<int>(-answer.packet.bytes)) : ""));
  }
}

// Sends one request and receives one answer. A refusal is an error.
absl::Status Ask(const std::string& name, std::span<const std::byte> request, VersionOffer offer,
                 const std::string& what, DurationNs timeout, Answer& answer) {
  const SystemClock clock;
  const TimeNs deadline = clock.Now() + timeout;
  const std::string peer = fmt::format("phubd at Unix socket @{}", name);
  absl::StatusOr<Descriptor> socket = ConnectTo(name, peer, deadline, timeout, clock);
  if (!socket.ok()) return socket.status();
  answer.socket = *std::move(socket);
  // Fits into an empty socket. A daemon that refuses before it reads may have closed the socket;
  // its answer says why.
  [[maybe_unused]] const bool sent = SendPacket(answer.socket.get(), request, {});
  const absl::Status status = ReceiveAnswer(answer, peer, deadline, timeout, clock);
  if (!status.ok()) return status;
  const auto bytes = static_cast<std::size_t>(answer.packet.bytes);
  // A packet that is too long was truncated, so it is not a valid answer either.
  const bool fits = bytes >= wire::kLaneWelcomeBytes && bytes <= answer.bytes.size();
  const auto version = JudgeWelcome(
      std::span(answer.bytes).first(fits ? wire::kLaneWelcomeBytes : 0), offer, peer, what);
  if (!version.ok()) return version.status();
  answer.version = *version;
  answer.rest =
      std::span(answer.bytes).subspan(wire::kLaneWelcomeBytes, bytes - wire::kLaneWelcomeBytes);
  return absl::OkStatus();
}

absl::Status NoSense(const std::string& name, const char* what) {
  return absl::InternalError(
      fmt::format("phubd at Unix socket @{} sent an invalid answer: {}", name, what));
}

absl::StatusOr<std::shared_ptr<const SharedMemory>> MapPassed(const Descriptor& descriptor,
                                                              std::uint64_t bytes,
                                                              SharedMemory::Access access) {
  auto mapped = SharedMemory::Map(descriptor, bytes, access);
  if (!mapped.ok()) return MapError(mapped.status());
  return std::make_shared<const SharedMemory>(*std::move(mapped));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Connection>> DialShm(const std::string& name,
                                                    const wire::LaneHello& hello,
                                                    DurationNs timeout,
                                                    std::shared_ptr<const SharedRegions> regions,
                                                    const ShmLimits& limits) {
  wire::LaneHello offered = hello;
  const VersionOffer offer = OfferVersions(offered);
  std::array<std::byte, wire::kLaneHelloBytes> request;
  wire::EncodeLaneHello(offered, request);
  Answer answer;
  const absl::Status status =
      Ask(name, request, offer,
          fmt::format("the lane of rank {} to core {}", hello.rank.value, hello.core.value),
          timeout, answer);
  if (!status.ok()) return status;
  wire::SharedLane shape;
  if (!wire::DecodeSharedLane(answer.rest, shape)) return NoSense(name, "no lane");
  auto connection =
      AcceptShmLane(std::move(answer.socket), shape, answer.packet, std::move(regions), limits);
  if (!connection.ok()) return connection.status();
  (*connection)->SetVersion(answer.version);
  return std::unique_ptr<Connection>(*std::move(connection));
}

absl::StatusOr<FetchedBatch> FetchSharedBatch(const std::string& name,
                                              const wire::SharedBatchRequest& request,
                                              DurationNs timeout) {
  wire::SharedBatchRequest offered = request;
  const VersionOffer offer = OfferVersions(offered);
  std::array<std::byte, wire::kSharedBatchRequestBytes> bytes;
  wire::EncodeSharedBatchRequest(offered, bytes);
  Answer answer;
  const absl::Status status =
      Ask(name, bytes, offer, fmt::format("the key memory of rank {}", request.rank.value), timeout,
          answer);
  if (!status.ok()) return status;
  wire::SharedBatch batch;
  if (!wire::DecodeSharedBatch(answer.rest, batch)) return NoSense(name, "no key memory");
  if (answer.packet.descriptors_lost) return PassedDescriptorShortage("map the memory of keys");
  const std::size_t expected = (batch.worker_bytes > 0) + (batch.parameters_bytes > 0);
  if (answer.packet.descriptor_count != expected) {
    return NoSense(name, "the number of descriptors does not match the announced memory");
  }
  FetchedBatch fetched;
  std::size_t next = 0;
  if (batch.worker_bytes > 0) {
    auto mapped = MapPassed(answer.packet.descriptors[next++], batch.worker_bytes,
                            SharedMemory::Access::kWrite);
    if (!mapped.ok()) return mapped.status();
    fetched.worker = *std::move(mapped);
    fetched.worker_region = batch.worker_region;
  }
  if (batch.parameters_bytes > 0) {
    auto mapped = MapPassed(answer.packet.descriptors[next++], batch.parameters_bytes,
                            SharedMemory::Access::kRead);
    if (!mapped.ok()) return mapped.status();
    fetched.parameters = *std::move(mapped);
    fetched.parameters_region = batch.parameters_region;
  }
  return fetched;
}

absl::Status AddRegions(const FetchedBatch& batch, SharedRegions& regions) {
  struct Each {
    const std::shared_ptr<const SharedMemory>& memory;
    std::uint32_t index;
  };
  std::array<Each, 2> each = {Each{batch.worker, batch.worker_region},
                              Each{batch.parameters, batch.parameters_region}};
  const bool swap = batch.parameters_region < batch.worker_region && batch.parameters != nullptr;
  for (const std::size_t i :
       swap ? std::array<std::size_t, 2>{1, 0} : std::array<std::size_t, 2>{0, 1}) {
    if (each[i].memory == nullptr) continue;
    // The daemon may write everything that it maps.
    const std::uint32_t index = regions.Add(each[i].memory, /*writable_by_peer=*/true);
    if (index == each[i].index) continue;
    return absl::InternalError(
        fmt::format("the daemon announced a region of shared memory with index {}, but the next "
                    "index of this process is {}",
                    each[i].index, index));
  }
  return absl::OkStatus();
}

}  // namespace phub::transport
