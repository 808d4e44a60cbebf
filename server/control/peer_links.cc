#include "server/control/peer_links.h"

#include <fmt/format.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <utility>

#include "common/base/cpu_topology.h"
#include "common/base/log.h"
#include "common/base/secret_file.h"
#include "common/base/status_text.h"
#include "common/transport/tcp/tcp_dial.h"
#include "common/transport/tls/tls_dial.h"
#include "phub/v1/peer.grpc.pb.h"

namespace phub::server {
namespace {

constexpr std::size_t kMessagesMax = 4096;  // that wait for one rack
constexpr std::size_t kMessagesPerEnvelope = 64;
constexpr int kHeartbeatsPerTimeout = 4;
constexpr DurationNs kRetryInterval = 50 * kMillisecond;

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeCredentials(
    const PeerCredentials& files) {
  if (files.certificate.empty()) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions options;
  if (!files.ca.empty()) {
    auto authority = ReadPublicFile(files.ca);
    if (!authority.ok()) return authority.status();
    options.pem_root_certs = *std::move(authority);
  }
  auto certificate = ReadPublicFile(files.certificate);
  if (!certificate.ok()) return certificate.status();
  auto key = ReadSecretFile(files.key);
  if (!key.ok()) return key.status();
  options.pem_cert_chain = *std::move(certificate);
  options.pem_private_key = *std::move(key);
  return grpc::SslCredentials(options);
}

std::shared_ptr<grpc::Channel> MakeChannel(
    const std::string& endpoint, const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  grpc::ChannelArguments arguments;
  // A daemon that comes back is to be found at once.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  return grpc::CreateCustomChannel(endpoint, credentials, arguments);
}

}  // namespace

struct PeerLinks::Link {
  RackIndex rack{};
  std::unique_ptr<v1::Peer::Stub> stub;
  std::thread thread;
  std::mutex mutex;  // of what follows
  std::condition_variable changed;
  std::deque<v1::PeerMessage> messages;
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
  const auto credentials = MakeCredentials(options_.credentials);
  if (!credentials.ok()) return credentials.status();
  for (const auto& link : links_) {
    if (link == nullptr) continue;
    link->stub = v1::Peer::NewStub(MakeChannel(options_.racks[link->rack.value], *credentials));
    link->thread = std::thread([this, raw = link.get()] {
      NameThisThread("peer-link");
      Deliver(*raw);
    });
  }
  dialer_ = std::thread([this] {
    NameThisThread("peer-dialer");
    DialLanes();
  });
  return absl::OkStatus();
}

void PeerLinks::Stop() {
  for (const auto& link : links_) {
    if (link == nullptr) continue;
    const std::lock_guard lock(link->mutex);
    link->stopping = true;
    if (link->under_way != nullptr) link->under_way->TryCancel();
    link->changed.notify_all();
  }
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    calls_changed_.notify_all();
  }
  for (const auto& link : links_) {
    if (link != nullptr && link->thread.joinable()) link->thread.join();
  }
  if (dialer_.joinable()) dialer_.join();
}

void PeerLinks::Send(RackIndex to, v1::PeerMessage message) {
  Link& link = *links_[to.value];
  const std::lock_guard lock(link.mutex);
  if (link.messages.size() >= kMessagesMax) {
    LogWarning("event=peer_messages_dropped rack={} count={}", to.value, link.messages.size());
    link.first_sequence += link.messages.size();
    link.messages.clear();
  }
  link.messages.push_back(std::move(message));
  link.changed.notify_all();
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
    for (const v1::PeerMessage& message : link.messages) {
      if (envelope.messages_size() == static_cast<int>(kMessagesPerEnvelope)) break;
      *envelope.add_messages() = message;
    }
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
  return false;
}

void PeerLinks::DialLane(RackIndex to, std::string host, std::uint16_t port,
                         const wire::LaneHello& hello, bool tls) {
  const std::lock_guard lock(mutex_);
  calls_.push_back({to, std::move(host), port, hello, tls});
  calls_changed_.notify_all();
}

void PeerLinks::DialLanes() {
  for (;;) {
    Call call;
    {
      std::unique_lock lock(mutex_);
      calls_changed_.wait(lock, [&] { return stopping_ || !calls_.empty(); });
      if (stopping_) return;
      call = std::move(calls_.front());
      calls_.pop_front();
    }
    Dial(call);
  }
}

void PeerLinks::Dial(const Call& call) {
  std::string host = call.host;
  if (host.empty()) {
    const std::string& endpoint = options_.racks[call.to.value];
    host = endpoint.substr(0, endpoint.rfind(':'));
    if (host.starts_with('[')) host = host.substr(1, host.size() - 2);
  }
  const auto dial = call.tls ? transport::DialTls : transport::DialTcp;
  auto connection = dial(host, call.port, call.hello, options_.liveness_timeout, {});
  control_.Run([&](Control& control) {
    if (!connection.ok()) {
      return control.PeerLaneFailed(call.hello, call.to, connection.status());
    }
    control.AttachPeerLane(call.hello, call.to, *std::move(connection), options_.tcp_index,
                           fmt::format("{} {}:{}", call.tls ? "tcp+tls" : "tcp", host, call.port));
  });
}

}  // namespace phub::server
