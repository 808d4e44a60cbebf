#include "server/control/rpc/peer_links.h"

#include <fmt/format.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "common/base/check.h"
#include "common/base/cpu_topology.h"
#include "common/base/log.h"
#include "common/base/shortage.h"
#include "common/base/status_text.h"
#include "phub/v1/peer.grpc.pb.h"
#include "server/control/racks/peer_lanes.h"
#include "server/control/racks/rack_messages.h"

namespace phub::server {
namespace {

constexpr int kHeartbeatsPerTimeout = 4;
constexpr DurationNs kRetryInterval = 50 * kMillisecond;
constexpr DurationNs kLongDial = kSecond / 2;
constexpr DurationNs kAvoidAfterLongDial = 60 * kSecond;

// The daemon was reached and refuses the messages: a retry does not help.
bool IsRefusal(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::FAILED_PRECONDITION ||
         status.error_code() == grpc::StatusCode::PERMISSION_DENIED ||
         status.error_code() == grpc::StatusCode::UNAUTHENTICATED ||
         status.error_code() == grpc::StatusCode::UNIMPLEMENTED;
}

}  // namespace

struct PeerLinks::Link {
  // A transport over which no lane could be made to the rack.
  struct FailedTransport {
    Incarnation job{};         // it is not tried again for this job
    TimeNs avoided_until = 0;  // nor for other jobs until then, since the failure took long
  };

  RackIndex rack{};
  std::unique_ptr<v1::Peer::Stub> stub;
  std::thread thread;
  std::thread dialer;
  std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  std::deque<PeerLaneCall> calls;
  PeerQueue queue;
  bool stopping = false;
  std::string endpoint;
  bool moved = false;  // the stub has another endpoint
  grpc::ClientContext* under_way = nullptr;
  std::string last_error;                          // used by the link's thread only
  std::map<std::uint8_t, FailedTransport> failed;  // by transport index; used by the dialer only
};

PeerLinks::PeerLinks(ControlThread& control, const Clock& clock, PeerLinkOptions options)
    : control_(control), clock_(clock), options_(std::move(options)) {
  for (std::uint32_t rack = 0; rack < options_.racks.size(); ++rack) {
    links_.push_back(rack == options_.self ? nullptr : std::make_unique<Link>());
    if (links_.back() == nullptr) continue;
    links_.back()->rack = RackIndex{rack};
    links_.back()->endpoint = options_.racks[rack];
  }
}

PeerLinks::~PeerLinks() { Stop(); }

absl::Status PeerLinks::Start() {
  auto credentials = MakePeerCredentials(options_.credentials);
  if (!credentials.ok()) return credentials.status();
  credentials_ = *std::move(credentials);
  for (const auto& link : links_) {
    if (link == nullptr) continue;
    Connect(*link);
    absl::Status started = StartThread(link->thread, "peer-link", [this, raw = link.get()] {
      NameThisThread("peer-link");
      Deliver(*raw);
    });
    if (started.ok()) {
      started = StartThread(link->dialer, "peer-dialer", [this, raw = link.get()] {
        NameThisThread("peer-dialer");
        DialLanes(*raw);
      });
    }
    if (!started.ok()) return started;
  }
  return absl::OkStatus();
}

void PeerLinks::Connect(Link& link) {
  link.stub = v1::Peer::NewStub(MakePeerChannel(EndpointOf(link), credentials_));
}

std::string PeerLinks::EndpointOf(Link& link) {
  const std::lock_guard lock(link.mutex);
  return link.endpoint;
}

void PeerLinks::SetEndpoint(RackIndex rack, const std::string& endpoint) {
  if (links_[rack.value] == nullptr) return;
  Link& link = *links_[rack.value];
  const std::lock_guard lock(link.mutex);
  link.endpoint = endpoint;
  link.moved = true;
  if (link.under_way != nullptr) link.under_way->TryCancel();
}

void PeerLinks::Stop() {
  for (const auto& link : links_) {
    if (link == nullptr) continue;
    const std::lock_guard lock(link->mutex);
    link->stopping = true;
    if (link->under_way != nullptr) link->under_way->TryCancel();
    link->changed.notify_all();
  }
  for (const auto& link : links_) {
    if (link == nullptr) continue;
    if (link->thread.joinable()) link->thread.join();
    if (link->dialer.joinable()) link->dialer.join();
  }
}

DroppedMessages PeerLinks::Send(RackIndex to, const PeerSender& sender, SharedPeerMessage message) {
  Link& link = *links_[to.value];
  const std::lock_guard lock(link.mutex);
  link.changed.notify_all();
  return link.queue.Push(sender, std::move(message));
}

void PeerLinks::Deliver(Link& link) {
  const DurationNs interval = options_.liveness_timeout / kHeartbeatsPerTimeout;
  for (;;) {
    const bool delivered = SendEnvelope(link);
    std::unique_lock lock(link.mutex);
    if (link.stopping) return;
    if (delivered && !link.queue.empty()) continue;
    const auto wait = std::chrono::nanoseconds(delivered ? interval : kRetryInterval);
    link.changed.wait_for(lock, wait,
                          [&] { return link.stopping || (delivered && !link.queue.empty()); });
    if (link.stopping) return;
  }
}

// True if the peer sent a receipt.
bool PeerLinks::SendEnvelope(Link& link) {
  v1::PeerEnvelope envelope = control_.Run(
      [&](Control& control) { return control.rack_messages().MakeEnvelope(link.rack); });
  grpc::ClientContext context;
  std::vector<SharedPeerMessage> messages;
  bool moved = false;
  {
    const std::lock_guard lock(link.mutex);
    moved = std::exchange(link.moved, false);
  }
  if (moved) Connect(link);
  {
    const std::lock_guard lock(link.mutex);
    if (link.stopping) return false;
    envelope.set_first_sequence(link.queue.first_sequence());
    messages = link.queue.NextMessages();
    link.under_way = &context;
  }
  // Control waits for this mutex under its own lock, so large messages are copied without it.
  for (const SharedPeerMessage& each : messages) *envelope.add_messages() = *each.message;
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::nanoseconds(options_.liveness_timeout));
  v1::PeerReceipt receipt;
  const grpc::Status status = link.stub->Exchange(&context, envelope, &receipt);
  {
    const std::lock_guard lock(link.mutex);
    link.under_way = nullptr;
    // Messages dropped meanwhile have already advanced the front of the queue.
    if (status.ok()) {
      link.queue.Take(envelope.first_sequence() +
                      static_cast<std::uint64_t>(envelope.messages_size()));
    }
  }
  if (status.ok()) {
    if (!link.last_error.empty()) LogInfo("event=peer_reached rack={}", link.rack.value);
    link.last_error.clear();
    control_.Run([&](Control& control) { control.rack_messages().OnReceipt(link.rack, receipt); });
    return true;
  }
  const std::string error =
      fmt::format("{} {}", static_cast<int>(status.error_code()), status.error_message());
  if (error != link.last_error) {
    LogWarning("event=peer_not_reached rack={} endpoint={} code={} message=\"{}\"", link.rack.value,
               EndpointOf(link), static_cast<int>(status.error_code()), status.error_message());
    link.last_error = error;
    if (IsRefusal(status)) {
      control_.Run([&](Control& control) {
        control.rack_messages().OnPeerRefusal(link.rack, status.error_message());
      });
    }
  }
  // The connection's certificate has probably expired; a new connection uses the current one.
  if (status.error_code() == grpc::StatusCode::UNAUTHENTICATED) Connect(link);
  return false;
}

void PeerLinks::DialLane(PeerLaneCall call) {
  Link& link = *links_[call.to.value];
  const std::lock_guard lock(link.mutex);
  link.calls.push_back(std::move(call));
  link.changed.notify_all();
}

void PeerLinks::DialLanes(Link& link) {
  for (;;) {
    PeerLaneCall call;
    {
      std::unique_lock lock(link.mutex);
      link.changed.wait(lock, [&] { return link.stopping || !link.calls.empty(); });
      if (link.stopping) return;
      call = std::move(link.calls.front());
      link.calls.pop_front();
    }
    Dial(link, call);
  }
}

void PeerLinks::Dial(Link& link, const PeerLaneCall& call) {
  const bool lacks = control_.Run(
      [&](Control& control) { return control.peer_lanes().LacksPeerLane(call.hello, call.to); });
  if (!lacks) return;  // its job has ended
  const PeerLaneTarget target{.host = call.host.empty() ? HostOfRack(EndpointOf(link)) : call.host,
                              .port = call.port,
                              .hello = call.hello,
                              .tls = call.tls,
                              .timeout = std::min(options_.liveness_timeout, kPeerDialTimeoutMax)};
  std::uint8_t transport_index = 0;
  absl::StatusOr<DialledPeerLane> dialled = DialOffers(link, call, target, transport_index);
  if (!dialled.ok() && !call.offers_only) {
    transport_index = 0;
    dialled = options_.dialers.front()->DialPeer(target);
  }
  control_.Run([&](Control& control) {
    if (!dialled.ok())
      return control.peer_lanes().PeerLaneFailed(call.hello, call.to, dialled.status());
    control.peer_lanes().AttachPeerLane(call.hello, call.to, std::move(dialled->connection),
                                        transport_index, std::move(dialled->description));
  });
}

// A transport over which a lane failed is not tried for the other lanes of the job to that rack,
// and if the failure took long, not for other jobs for a while: all of them wait for one another.
absl::StatusOr<DialledPeerLane> PeerLinks::DialOffers(Link& link, const PeerLaneCall& call,
                                                      const PeerLaneTarget& target,
                                                      std::uint8_t& transport_index) {
  absl::StatusOr<DialledPeerLane> dialled = absl::UnimplementedError("no transport was tried");
  for (const PeerLaneOffer& offer : call.offers) {
    const TimeNs begun = clock_.Now();
    Link::FailedTransport& failed = link.failed[offer.transport_index];
    const bool is_avoided = failed.job == call.hello.incarnation || begun < failed.avoided_until;
    if (is_avoided && !call.offers_only) continue;
    PHUB_CHECK(options_.dialers[offer.transport_index] != nullptr, "rack={} transport={}",
               call.to.value, options_.transport_names[offer.transport_index]);
    PeerLaneTarget offered = target;
    offered.hello.nonce = offer.nonce;
    transport_index = offer.transport_index;
    dialled = options_.dialers[offer.transport_index]->DialPeer(offered);
    if (dialled.ok()) return dialled;
    LogWarning("event=peer_lane_not_over_{} rack={} core={} reason=\"{}\"",
               options_.transport_names[offer.transport_index], call.to.value,
               call.hello.core.value, MessageOf(dialled.status()));
    failed.job = call.hello.incarnation;
    const TimeNs now = clock_.Now();
    if (now - begun > kLongDial) failed.avoided_until = now + kAvoidAfterLongDial;
  }
  return dialled;
}

}  // namespace phub::server
