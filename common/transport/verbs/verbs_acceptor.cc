#include "common/transport/verbs/verbs_acceptor.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <array>
#include <optional>
#include <utility>

#include "common/base/cpu_topology.h"
#include "common/base/log.h"
#include "common/base/status_text.h"
#include "common/transport/pending_lanes.h"

namespace phub::transport {

VerbsAcceptor::VerbsAcceptor(VerbsGate& gate, Random& random) : gate_(gate), random_(random) {
  for (std::size_t i = 0; i < kThreads; ++i) threads_.emplace_back([this] { Work(); });
}

VerbsAcceptor::~VerbsAcceptor() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

bool VerbsAcceptor::Claims(std::span<const std::byte> first) const {
  wire::LaneHello hello;
  return wire::DecodeVerbsHello(first, hello);
}

absl::StatusOr<std::unique_ptr<VerbsConnection>> VerbsAcceptor::Make(const wire::LaneHello& hello,
                                                                     const wire::VerbsOffer& peer) {
  absl::StatusOr<VerbsLaneParts> parts = gate_.Parts(hello);
  if (!parts.ok()) return parts.status();
  auto made =
      VerbsConnection::Create(VerbsEnd::kDaemon, std::move(parts->queue), std::move(parts->domain),
                              std::move(parts->staging), parts->limits, random_);
  if (!made.ok()) return made.status();
  if (absl::Status status = (*made)->Connect(peer); !status.ok()) return status;
  return made;
}

LaneKind::Outcome VerbsAcceptor::Decide(Descriptor& socket, std::span<const std::byte> request,
                                        const std::string& origin, wire::LaneRefusal& refusal) {
  Request taken;
  if (!wire::DecodeVerbsHello(request.first(wire::kLaneHelloBytes), taken.hello) ||
      !wire::DecodeVerbsOffer(request.subspan(wire::kLaneHelloBytes), taken.peer) ||
      taken.peer.slot_count != 0 || taken.peer.inbox_key == 0) {
    return Outcome::kForm;
  }
  const std::optional<std::uint8_t> version =
      CommonVersion(taken.hello.version_min, taken.hello.version_max);
  {
    // Only this thread adds: there will be room, then.
    const std::lock_guard lock(mutex_);
    if (waiting_count_ == kWaitingMax) {
      refusal = wire::LaneRefusal::kCapacity;
      return Outcome::kRefused;
    }
  }
  // A nonce is spent on admission only, so all else is settled before it is looked at.
  refusal = version ? gate_.Admit(taken.hello, origin) : wire::LaneRefusal::kVersion;
  if (refusal != wire::LaneRefusal::kNone) return Outcome::kRefused;
  taken.version = *version;
  taken.origin = origin;
  const Incarnation job = taken.hello.incarnation;
  const std::lock_guard lock(mutex_);
  taken.socket = std::move(socket);
  waiting_[job].push_back(std::move(taken));
  ++waiting_count_;
  changed_.notify_one();
  return Outcome::kTaken;
}

LaneKind::Decided VerbsAcceptor::TakeDecided() {
  const std::lock_guard lock(mutex_);
  return std::exchange(decided_, {});
}

void VerbsAcceptor::Work() {
  NameThisThread("rdma-accept");
  Request request;
  while (Next(request)) Serve(std::move(request));
}

// Of the job after the one that was served last.
bool VerbsAcceptor::Next(Request& request) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return stopping_ || waiting_count_ > 0; });
  if (stopping_) return false;
  auto job = waiting_.upper_bound(served_last_);
  if (job == waiting_.end()) job = waiting_.begin();
  served_last_ = job->first;
  request = std::move(job->second.front());
  job->second.pop_front();
  if (job->second.empty()) waiting_.erase(job);
  --waiting_count_;
  return true;
}

void VerbsAcceptor::Serve(Request request) {
  // Fits the empty buffer of a new socket. If the peer is gone, the lane will say so.
  const auto answer = [&](std::span<const std::byte> bytes) {
    [[maybe_unused]] const ssize_t put =
        send(request.socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  };
  std::array<std::byte, wire::kLaneWelcomeBytes + wire::kVerbsOfferBytes> bytes;
  const auto welcome_bytes = std::span(bytes).first<wire::kLaneWelcomeBytes>();
  const wire::LaneHello& hello = request.hello;
  absl::StatusOr<std::unique_ptr<VerbsConnection>> connection = Make(hello, request.peer);
  if (!connection.ok()) {
    LogWarning("event=lane_failed transport=verbs rank={} core={} peer={} reason=\"{}\"",
               hello.rank.value, hello.core.value, request.origin, MessageOf(connection.status()));
    {
      const std::lock_guard lock(mutex_);
      ++decided_.refused_capacity;
    }
    wire::LaneWelcome welcome = WelcomeOf(0);
    welcome.refusal = wire::LaneRefusal::kCapacity;
    wire::EncodeLaneWelcome(welcome, welcome_bytes);
    return answer(welcome_bytes);
  }
  {
    const std::lock_guard lock(mutex_);
    ++decided_.accepted;
  }
  wire::EncodeLaneWelcome(WelcomeOf(request.version), welcome_bytes);
  wire::EncodeVerbsOffer((*connection)->Offer(), std::span(bytes).last<wire::kVerbsOfferBytes>());
  answer(bytes);
  Gid gid;
  for (std::size_t i = 0; i < gid.size(); ++i) {
    gid[i] = std::to_integer<std::uint8_t>(request.peer.gid[i]);
  }
  const VerbsDevice& device = (*connection)->device();
  std::string description =
      fmt::format("{} {} from {}", device.name(), GidText(device.gid().gid), GidText(gid));
  (*connection)
      ->SetSocket(std::move(request.socket), fmt::format("{} ({})", request.origin, GidText(gid)));
  gate_.Attach(hello, *std::move(connection), std::move(description));
}

}  // namespace phub::transport
