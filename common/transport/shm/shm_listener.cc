#include "common/transport/shm/shm_listener.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/errno_text.h"
#include "common/base/log.h"
#include "common/base/refusal_log.h"
#include "common/base/status_text.h"
#include "common/transport/shm/shm_address.h"

namespace phub::transport {
namespace {

constexpr int kBacklog = 1024;

static_assert(wire::kLaneHelloBytes == wire::kSharedBatchRequestBytes);

// Reads the credentials that the kernel recorded when the peer connected.
bool GetCredentials(const Descriptor& socket, PeerCredentials& credentials) {
  ucred noted{};
  socklen_t bytes = sizeof noted;
  if (getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &noted, &bytes) != 0) return false;
  credentials = {noted.pid, noted.uid, noted.gid};
  return true;
}

void SendBatch(int socket, std::uint8_t version, const BatchMemory& memory) {
  std::array<std::byte, wire::kLaneWelcomeBytes + wire::kSharedBatchBytes> bytes;
  const std::span<std::byte> all(bytes);
  wire::SharedBatch batch;
  std::array<int, 2> descriptors;
  std::size_t count = 0;
  if (memory.worker != nullptr) {
    batch.worker_bytes = memory.worker->bytes();
    batch.worker_region = memory.worker_region;
    descriptors[count++] = memory.worker->descriptor();
  }
  if (memory.parameters != nullptr) {
    batch.parameters_bytes = memory.parameters->bytes();
    batch.parameters_region = memory.parameters_region;
    descriptors[count++] = memory.parameters->descriptor();
  }
  for (std::size_t i = 0; i < count; ++i) PHUB_CHECK(descriptors[i] >= 0, "memory is closed");
  wire::EncodeLaneWelcome(WelcomeOf(version), all.first<wire::kLaneWelcomeBytes>());
  wire::EncodeSharedBatch(batch, all.last<wire::kSharedBatchBytes>());
  [[maybe_unused]] const bool sent = SendPacket(socket, bytes, std::span(descriptors).first(count));
}

}  // namespace

std::string ToString(const PeerCredentials& credentials) {
  return fmt::format("shm pid {} uid {}", credentials.pid, credentials.uid);
}

std::string UserOf(const PeerCredentials& credentials) {
  return fmt::format("uid {}", credentials.uid);
}

struct ShmListener::Impl final : PendingLanes {
  Impl(const ShmListenerOptions& options, ShmGate& gate_in, const Clock& clock_in)
      : PendingLanes({.request_timeout = options.hello_timeout,
                      .places_max = options.pending_max,
                      .places_per_origin_max = options.pending_per_user_max,
                      .packets = true,
                      .transport_name = "shm"},
                     clock_in),
        clock(clock_in),
        limits(options.limits),
        gate(gate_in) {}

  Descriptor Accept(const Descriptor& listening, Origin& origin) override;
  void Decide(Descriptor socket, std::span<const std::byte> request, const Origin& origin) override;
  void DecideLane(Descriptor socket, const wire::LaneHello& hello,
                  const PeerCredentials& credentials);
  void DecideBatch(const Descriptor& socket, const wire::SharedBatchRequest& request,
                   const PeerCredentials& credentials);

  const Clock& clock;
  const ShmLimits limits;
  ShmGate& gate;
  RefusalLog failures;
  std::string name;
  std::atomic<std::uint64_t> batches{0};
};

absl::StatusOr<std::unique_ptr<ShmListener>> ShmListener::Create(const ShmListenerOptions& options,
                                                                 ShmGate& gate, const Clock& clock,
                                                                 Random& random) {
  auto impl = std::make_unique<Impl>(options, gate, clock);
  impl->name = fmt::format("phub-{:016x}{:016x}", random.Next(), random.Next());
  const ShmAddress address(impl->name);
  Descriptor listening(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const std::string where = fmt::format("Unix socket @{}", impl->name);
  if (!listening || bind(listening.get(), address.get(), address.bytes) != 0 ||
      listen(listening.get(), kBacklog) != 0) {
    return absl::UnavailableError(fmt::format("cannot listen on {}: {}", where, ErrnoText(errno)));
  }
  std::vector<Descriptor> sockets;
  sockets.push_back(std::move(listening));
  const absl::Status watched = impl->Listen(std::move(sockets), where);
  if (!watched.ok()) return watched;
  return std::unique_ptr<ShmListener>(new ShmListener(std::move(impl)));
}

ShmListener::ShmListener(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ShmListener::~ShmListener() = default;

const std::string& ShmListener::name() const { return impl_->name; }
const LaneListenerCounters& ShmListener::counters() const { return impl_->counters(); }
std::uint64_t ShmListener::batches() const {
  return impl_->batches.load(std::memory_order_relaxed);
}
std::uint32_t ShmListener::pending_count() const { return impl_->count(); }
bool ShmListener::PollOnce(DurationNs timeout) { return impl_->PollOnce(timeout); }

Descriptor ShmListener::Impl::Accept(const Descriptor& listening, Origin& origin) {
  Descriptor socket(accept4(listening.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  PeerCredentials credentials;
  if (!socket || !GetCredentials(socket, credentials)) return {};
  std::memcpy(origin.key.data(), &credentials.uid, sizeof credentials.uid);
  origin.text = ToString(credentials);
  return socket;
}

void ShmListener::Impl::Decide(Descriptor socket, std::span<const std::byte> request,
                               const Origin& /*origin*/) {
  PeerCredentials credentials;
  wire::LaneHello hello;
  wire::SharedBatchRequest batch;
  // Do not answer: the peer does not speak this protocol.
  if (!GetCredentials(socket, credentials)) return CountRefusedForm();
  if (wire::DecodeLaneHello(request, hello)) {
    return DecideLane(std::move(socket), hello, credentials);
  }
  if (wire::DecodeSharedBatchRequest(request, batch)) {
    return DecideBatch(socket, batch, credentials);
  }
  CountRefusedForm();
}

// The gate consumes the nonce, so check the versions first.
void ShmListener::Impl::DecideLane(Descriptor socket, const wire::LaneHello& hello,
                                   const PeerCredentials& credentials) {
  const std::optional<std::uint8_t> version = CommonVersion(hello.version_min, hello.version_max);
  if (!version) return Refuse(socket, wire::LaneRefusal::kVersion);
  const wire::LaneRefusal refusal = gate.Admit(hello, credentials);
  if (refusal != wire::LaneRefusal::kNone) return Refuse(socket, refusal);
  const absl::StatusOr<LaneMemory> memory = gate.Memory(hello);
  absl::Status status = memory.status();
  if (memory.ok()) {
    auto connection = OfferShmLane(socket, WelcomeOf(*version), *memory, limits);
    status = connection.status();
    if (status.ok()) {
      CountAccepted();
      return gate.Attach(hello, *std::move(connection), ToString(credentials));
    }
  }
  if (const auto left_out = failures.Take(UserOf(credentials), clock.Now())) {
    LogWarning(
        "event=lane_failed transport=shm rank={} core={} peer=\"{}\" reason=\"{}\" left_out={}",
        hello.rank.value, hello.core.value, ToString(credentials), MessageOf(status), *left_out);
  }
  Refuse(socket, wire::LaneRefusal::kCapacity);
}

void ShmListener::Impl::DecideBatch(const Descriptor& socket,
                                    const wire::SharedBatchRequest& request,
                                    const PeerCredentials& credentials) {
  const std::optional<std::uint8_t> version =
      CommonVersion(request.version_min, request.version_max);
  if (!version) return Refuse(socket, wire::LaneRefusal::kVersion);
  BatchMemory memory;
  const wire::LaneRefusal refusal = gate.AdmitBatch(request, credentials, memory);
  if (refusal != wire::LaneRefusal::kNone) return Refuse(socket, refusal);
  Count(batches);
  SendBatch(socket.get(), *version, memory);
}

}  // namespace phub::transport
