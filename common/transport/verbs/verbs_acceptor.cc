#include "common/transport/verbs/verbs_acceptor.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <utility>

#include "common/base/check.h"
#include "common/base/cpu_topology.h"
#include "common/base/log.h"
#include "common/base/shortage.h"
#include "common/base/status_text.h"
#include "common/net/host_port.h"
#include "common/transport/pending_lanes.h"

namespace phub::transport {
namespace {

// Whether two requests are for the same lane. A client that asks again has given up the first
// request.
bool HaveSamePlace(const wire::LaneHello& a, const wire::LaneHello& b) {
  return a.incarnation == b.incarnation && a.rank == b.rank && a.core == b.core;
}

}  // namespace

VerbsAcceptor::VerbsAcceptor(VerbsGate& gate, Random& random, DurationNs ready_timeout,
                             std::size_t waiting_max)
    : gate_(gate), random_(random), ready_timeout_(ready_timeout), waiting_max_(waiting_max) {
  started_ = doorbell_.status();
  for (std::size_t i = 0; i < kThreads && started_.ok(); ++i) {
    started_ = StartThread(threads_[i], "rdma-accept", [this] { Work(); });
  }
  if (started_.ok()) {
    started_ = StartThread(threads_.back(), "rdma-ready", [this] { HearClients(); });
  }
}

VerbsAcceptor::~VerbsAcceptor() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  doorbell_.Ring();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
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
  const Incarnation job = taken.hello.incarnation;
  {
    // Only this thread adds requests, so there will still be room below.
    const std::lock_guard lock(mutex_);
    if (!HasRoom(job)) {
      refusal = wire::LaneRefusal::kCapacity;
      return Outcome::kRefused;
    }
  }
  // The gate consumes the nonce, so check everything else first.
  refusal = version ? gate_.Admit(taken.hello, origin) : wire::LaneRefusal::kVersion;
  if (refusal != wire::LaneRefusal::kNone) return Outcome::kRefused;
  taken.version = *version;
  taken.origin = origin;
  taken.number = ++asked_;
  const std::lock_guard lock(mutex_);
  taken.socket = std::move(socket);
  std::deque<Request>& queue = waiting_[job];
  const auto given_up = std::ranges::find_if(
      queue, [&](const Request& one) { return HaveSamePlace(one.hello, taken.hello); });
  if (given_up != queue.end()) {
    *given_up = std::move(taken);
    return Outcome::kTaken;
  }
  queue.push_back(std::move(taken));
  ++held_[job];
  ++held_count_;
  changed_.notify_one();
  return Outcome::kTaken;
}

bool VerbsAcceptor::HasRoom(Incarnation job) const {
  const auto held = held_.find(job);
  return (held == held_.end() ? 0 : held->second) < waiting_max_ - held_count_;
}

void VerbsAcceptor::GiveRoom(Incarnation job) {
  const std::lock_guard lock(mutex_);
  const auto held = held_.find(job);
  if (--held->second == 0) held_.erase(held);
  --held_count_;
}

// ---- Creating lanes ----------------------------------------------------------------------------

void VerbsAcceptor::Work() {
  NameThisThread("rdma-accept");
  Request request;
  while (Next(request)) Serve(std::move(request));
}

// Takes a request of the next job: jobs are served in turn.
bool VerbsAcceptor::Next(Request& request) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
  if (stopping_) return false;
  auto job = waiting_.upper_bound(served_last_);
  if (job == waiting_.end()) job = waiting_.begin();
  served_last_ = job->first;
  request = std::move(job->second.front());
  job->second.pop_front();
  if (job->second.empty()) waiting_.erase(job);
  return true;
}

void VerbsAcceptor::Serve(Request request) {
  const wire::LaneHello& hello = request.hello;
  absl::StatusOr<std::unique_ptr<VerbsConnection>> connection = Make(hello, request.peer);
  if (!connection.ok()) {
    if (const auto left_out = failures_.Take(net::AddressBlock(request.origin), clock_.Now())) {
      LogWarning(
          "event=lane_failed transport=verbs rank={} core={} peer={} reason=\"{}\" left_out={}",
          hello.rank.value, hello.core.value, request.origin, MessageOf(connection.status()),
          *left_out);
    }
    SendRefusal(request.socket, wire::LaneRefusal::kCapacity);
    return GiveRoom(hello.incarnation);
  }
  (*connection)->SetVersion(request.version);
  std::array<std::byte, wire::kLaneWelcomeBytes + wire::kVerbsOfferBytes> bytes;
  wire::EncodeLaneWelcome(WelcomeOf(request.version),
                          std::span(bytes).first<wire::kLaneWelcomeBytes>());
  wire::EncodeVerbsOffer((*connection)->Offer(), std::span(bytes).last<wire::kVerbsOfferBytes>());
  // Fits into the empty buffer of a new socket. HearClients notices if the peer has closed it.
  [[maybe_unused]] const ssize_t put =
      send(request.socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  {
    const std::lock_guard lock(mutex_);
    offered_.push_back({.request = std::move(request),
                        .connection = *std::move(connection),
                        .deadline = clock_.Now() + ready_timeout_});
  }
  doorbell_.Ring();
}

// ---- Confirmations -----------------------------------------------------------------------------

void VerbsAcceptor::HearClients() {
  NameThisThread("rdma-ready");
  std::vector<Offered> offered;
  while (TakeOffered(offered)) {
    WaitForWords(offered);
    for (Offered& one : offered) {
      one.over = Settle(one);
      if (one.over) GiveRoom(one.request.hello.incarnation);
    }
    std::erase_if(offered, [](const Offered& one) { return one.over; });
  }
}

// Requests may finish in another order than they came in, so compare their numbers.
bool VerbsAcceptor::TakeOffered(std::vector<Offered>& offered) {
  std::vector<Offered> fresh;
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return false;
    fresh = std::exchange(offered_, {});
  }
  for (Offered& one : fresh) {
    const wire::LaneHello& hello = one.request.hello;
    const auto other = std::ranges::find_if(
        offered, [&](const Offered& known) { return HaveSamePlace(known.request.hello, hello); });
    if (other == offered.end()) {
      offered.push_back(std::move(one));
      continue;
    }
    GiveRoom(hello.incarnation);
    if (one.request.number > other->request.number) *other = std::move(one);
  }
  return true;
}

void VerbsAcceptor::WaitForWords(const std::vector<Offered>& offered) {
  std::vector<pollfd> watched;
  watched.push_back({.fd = doorbell_.descriptor(), .events = POLLIN, .revents = 0});
  TimeNs first = INT64_MAX;
  for (const Offered& one : offered) {
    watched.push_back({.fd = one.request.socket.get(), .events = POLLIN, .revents = 0});
    first = std::min(first, one.deadline);
  }
  int wait_ms = -1;
  if (first != INT64_MAX) {
    const DurationNs wait = std::max<DurationNs>(0, first - clock_.Now());
    wait_ms = static_cast<int>(std::min<DurationNs>(wait / kMillisecond + 1, 60'000));
  }
  const int ready = poll(watched.data(), watched.size(), wait_ms);
  PHUB_CHECK(ready >= 0 || errno == EINTR, "poll errno={}", errno);
  doorbell_.Clear();
}

bool VerbsAcceptor::Settle(Offered& offered) {
  std::byte word{};
  const ssize_t got = recv(offered.request.socket.get(), &word, 1, MSG_DONTWAIT);
  if (got == 1 && word == wire::kVerbsReady) {
    Attach(offered);
    return true;
  }
  const bool silent = got < 0 && (errno == EAGAIN || errno == EINTR);
  if (silent && clock_.Now() < offered.deadline) return false;
  const auto left_out = failures_.Take(net::AddressBlock(offered.request.origin), clock_.Now());
  if (!left_out) return true;
  const wire::LaneHello& hello = offered.request.hello;
  LogWarning(
      "event=lane_given_up transport=verbs rank={} core={} peer={} reason=\"{}\" left_out={}",
      hello.rank.value, hello.core.value, offered.request.origin,
      silent     ? "the client did not confirm its connection before the timeout"
      : got == 1 ? "the client sent an invalid confirmation of its connection"
                 : "the client closed the connection before it was connected",
      *left_out);
  return true;
}

void VerbsAcceptor::Attach(Offered& offered) {
  Request& request = offered.request;
  Gid gid;
  for (std::size_t i = 0; i < gid.size(); ++i) {
    gid[i] = std::to_integer<std::uint8_t>(request.peer.gid[i]);
  }
  const VerbsDevice& device = offered.connection->device();
  std::string description =
      fmt::format("{} {} from {}", device.name(), GidText(device.gid().gid), GidText(gid));
  offered.connection->SetSocket(std::move(request.socket),
                                fmt::format("{} ({})", request.origin, GidText(gid)));
  gate_.Attach(request.hello, std::move(offered.connection), std::move(description));
}

}  // namespace phub::transport
