#include "server/control/peer_links.h"

#include <fmt/format.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "common/base/cpu_topology.h"
#include "common/base/log.h"
#include "common/base/status_text.h"
#include "common/transport/tcp/tcp_dial.h"
#include "common/transport/tls/tls_dial.h"
#include "phub/v1/peer.grpc.pb.h"
#include "server/control/racks.h"

namespace phub::server {
namespace {

// That wait for one rack.
constexpr std::size_t kMessagesMax = 4096;
constexpr std::size_t kMessageBytesMax = 256 << 20;
constexpr int kHeartbeatsPerTimeout = 4;
constexpr DurationNs kRetryInterval = 50 * kMillisecond;
// A rack's lanes are dialled one after the other, for all jobs.
constexpr DurationNs kDialTimeoutMax = 3 * kSecond;

}  // namespace

struct PeerLinks::Link {
  RackIndex rack{};
  std::unique_ptr<v1::Peer::Stub> stub;
  std::thread thread;
  std::thread dialer;
  std::mutex mutex;  // of what follows
  std::condition_variable changed;
  std::deque<Call> calls;
  std::deque<v1::PeerMessage> messages;
  std::size_t message_bytes = 0;     // of all
  std::uint64_t first_sequence = 0;  // of messages.front()
  bool stopping = false;
  grpc::ClientContext* under_way = nullptr;
  std::string last_error;  // the link's own thread
};

PeerLinks::PeerLinks(ControlThread& control, const Clock& clock, PeerLinkOptions options)
    : control_(control), clock_(clock), options_(std::move(options)) {
  for (std::uint32_t rack = 0; rack < options_.racks.size(); ++rack) {
    links_.push_back(rack == options_.self ? nullptr : std::make_unique<Link>());
    if (links_.back() != nullptr) links_.back()->rack = RackIndex{rack};
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
    link->thread = std::thread([this, raw = link.get()] {
      NameThisThread("peer-link");
      Deliver(*raw);
    });
    link->dialer = std::thread([this, raw = link.get()] {
      NameThisThread("peer-dialer");
      DialLanes(*raw);
    });
  }
  return absl::OkStatus();
}

void PeerLinks::Connect(Link& link) {
  link.stub = v1::Peer::NewStub(MakePeerChannel(options_.racks[link.rack.value], credentials_));
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

std::size_t PeerLinks::Send(RackIndex to, v1::PeerMessage message) {
  Link& link = *links_[to.value];
  const std::size_t bytes = message.ByteSizeLong();
  std::size_t dropped = 0;
  const std::lock_guard lock(link.mutex);
  if (link.messages.size() >= kMessagesMax || link.message_bytes + bytes > kMessageBytesMax) {
    dropped = link.messages.size();
    LogWarning("event=peer_messages_dropped rack={} count={}", to.value, dropped);
    link.first_sequence += dropped;
    link.messages.clear();
    link.message_bytes = 0;
  }
  link.message_bytes += bytes;
  link.messages.push_back(std::move(message));
  link.changed.notify_all();
  return dropped;
}

void PeerLinks::Deliver(Link& link) {
  const DurationNs interval = options_.liveness_timeout / kHeartbeatsPerTimeout;
  for (;;) {
    const bool delivered = SendEnvelope(link);
    std::unique_lock lock(link.mutex);
    if (link.stopping) return;
    if (delivered && !link.messages.empty()) continue;
    const auto wait = std::chrono::nanoseconds(delivered ? interval : kRetryInterval);
    link.changed.wait_for(lock, wait,
                          [&] { return link.stopping || (delivered && !link.messages.empty()); });
    if (link.stopping) return;
  }
}

// True if there is a receipt.
bool PeerLinks::SendEnvelope(Link& link) {
  v1::PeerEnvelope envelope =
      control_.Run([&](Control& control) { return control.MakeEnvelope(link.rack); });
  grpc::ClientContext context;
  {
    const std::lock_guard lock(link.mutex);
    if (link.stopping) return false;
    envelope.set_first_sequence(link.first_sequence);
    FillEnvelope(link.messages, envelope);
    link.under_way = &context;
  }
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::nanoseconds(options_.liveness_timeout));
  v1::PeerReceipt receipt;
  const grpc::Status status = link.stub->Exchange(&context, envelope, &receipt);
  {
    const std::lock_guard lock(link.mutex);
    link.under_way = nullptr;
    if (status.ok()) {
      // What was dropped meanwhile has moved the front on by itself.
      const std::uint64_t taken =
          envelope.first_sequence() + static_cast<std::uint64_t>(envelope.messages_size());
      while (!link.messages.empty() && link.first_sequence < taken) {
        link.message_bytes -= link.messages.front().ByteSizeLong();
        link.messages.pop_front();
        ++link.first_sequence;
      }
    }
  }
  if (status.ok()) {
    if (!link.last_error.empty()) LogInfo("event=peer_reached rack={}", link.rack.value);
    link.last_error.clear();
    control_.Run([&](Control& control) { control.OnReceipt(link.rack, receipt); });
    return true;
  }
  if (status.error_message() != link.last_error) {
    LogWarning("event=peer_not_reached rack={} endpoint={} code={} message=\"{}\"", link.rack.value,
               options_.racks[link.rack.value], static_cast<int>(status.error_code()),
               status.error_message());
    link.last_error = status.error_message();
  }
  // The certificate of the connection has ended, perhaps: a new one has the certificate of now.
  if (status.error_code() == grpc::StatusCode::UNAUTHENTICATED) Connect(link);
  return false;
}

void PeerLinks::DialLane(RackIndex to, std::string host, std::uint16_t port,
                         const wire::LaneHello& hello, bool tls) {
  Link& link = *links_[to.value];
  const std::lock_guard lock(link.mutex);
  link.calls.push_back({to, std::move(host), port, hello, tls});
  link.changed.notify_all();
}

void PeerLinks::DialLanes(Link& link) {
  for (;;) {
    Call call;
    {
      std::unique_lock lock(link.mutex);
      link.changed.wait(lock, [&] { return link.stopping || !link.calls.empty(); });
      if (link.stopping) return;
      call = std::move(link.calls.front());
      link.calls.pop_front();
    }
    Dial(call);
  }
}

void PeerLinks::Dial(const Call& call) {
  const bool lacks =
      control_.Run([&](Control& control) { return control.LacksPeerLane(call.hello, call.to); });
  if (!lacks) return;  // its job has ended
  const std::string host =
      call.host.empty() ? HostOfRack(options_.racks[call.to.value]) : call.host;
  const auto dial = call.tls ? transport::DialTls : transport::DialTcp;
  auto connection =
      dial(host, call.port, call.hello, std::min(options_.liveness_timeout, kDialTimeoutMax), {});
  control_.Run([&](Control& control) {
    if (!connection.ok()) {
      return control.PeerLaneFailed(call.hello, call.to, connection.status());
    }
    control.AttachPeerLane(call.hello, call.to, *std::move(connection), options_.tcp_index,
                           fmt::format("{} {}:{}", call.tls ? "tcp+tls" : "tcp", host, call.port));
  });
}

}  // namespace phub::server
