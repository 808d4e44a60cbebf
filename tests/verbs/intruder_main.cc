// An admitted worker of its own job that attacks another job on the same daemon. It sends hellos
// with nonces that are wrong, used, another lane's or expired. Then it guesses keys and addresses,
// each guess on a new lane, since a wrong one costs the queue pair. No attack may succeed. It runs
// in the guest at the same time as the other job (intruder_test), whose results are the other half
// of the check.
//
// verbs-intruder DEVICE HOST:PORT VICTIM GUESSES
#include <fmt/format.h>
#include <grpcpp/grpcpp.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <span>
#include <thread>

#include "common/base/check.h"
#include "common/base/random.h"
#include "common/base/status_text.h"
#include "common/transport/lane_request.h"
#include "common/transport/tcp/dial_socket.h"
#include "phub/v1/admin.grpc.pb.h"
#include "phub/v1/session.grpc.pb.h"
#include "tests/verbs/raw_peer.h"

namespace phub::verbs_tests {
namespace {

constexpr DurationNs kTimeout = 60 * kSecond;  // generous, since the guest is emulated
constexpr std::uint32_t kGuessCore = 0;
constexpr std::uint32_t kNonceCore = 1;

template <typename Service, typename Request, typename Response>
Response Call(Service& stub,
              grpc::Status (Service::*method)(grpc::ClientContext*, const Request&, Response*),
              const Request& request) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::nanoseconds(kTimeout));
  Response response;
  const grpc::Status status = (stub.*method)(&context, request, &response);
  PHUB_CHECK(status.ok(), "{}", status.error_message());
  return response;
}

class Intruder {
 public:
  Intruder(const char* device, const std::string& endpoint, std::string victim)
      : host_(endpoint.substr(0, endpoint.rfind(':'))),
        victim_(std::move(victim)),
        channel_(grpc::CreateChannel(endpoint, grpc::InsecureChannelCredentials())),
        session_(v1::Session::NewStub(channel_)),
        admin_(v1::Admin::NewStub(channel_)) {
    auto opened = transport::VerbsDevice::Open(
        {.name = device, .port = 0, .gid_index = {}, .peer = transport::ParseGid(host_)});
    PHUB_CHECK(opened.ok(), "{}", MessageOf(opened.status()));
    device_ = *std::move(opened);
  }
  ~Intruder() {
    leaving_ = true;
    if (heart_.joinable()) heart_.join();
  }

  void Join() {
    v1::JoinRequest request;
    request.set_protocol_version_min(1);
    request.set_protocol_version_max(1);
    request.set_job("intruder");
    request.mutable_options()->set_world_size(1);
    request.mutable_options()->set_on_loss(v1::LOSS_POLICY_WAIT);
    request.set_host("intruder");
    joined_ = Call(*session_, &v1::Session::Stub::Join, request);
    PHUB_CHECK(joined_.cores_size() > static_cast<int>(kNonceCore));
    v1::CommitRequest commit;
    commit.set_session_id(joined_.session_id());
    Call(*session_, &v1::Session::Stub::Commit, commit);
    heart_ = std::thread([this] { Beat(); });
  }

  // Invalid nonces: each is refused as such, and counted.
  void TryNonces() {
    const std::uint64_t before = Refused();
    const wire::Nonce expiring = NonceFor(kNonceCore);
    const TimeNs expires = clock_.Now() + valid_for_;
    const wire::Nonce right = NonceFor(kGuessCore);
    wire::Nonce wrong = right;
    wrong.back() ^= std::byte{1};
    ExpectRefused(Hello(kGuessCore, wrong), "a bit is wrong");
    ExpectRefused(Hello(kNonceCore, right), "another lane's");
    wire::LaneHello of_victim = Hello(kGuessCore, right);
    of_victim.incarnation = VictimsIncarnation();
    ExpectRefused(of_victim, "for another job");
    RawPeer peer(device_);
    PHUB_CHECK(Ask(Hello(kGuessCore, right), peer) == wire::LaneRefusal::kNone, "the right one");
    ExpectRefused(Hello(kGuessCore, right), "used");
    constexpr int kGuesses = 200;
    SystemRandom random;
    for (int i = 0; i < kGuesses; ++i) {
      wire::LaneHello hello = of_victim;
      for (std::byte& byte : hello.nonce) byte = static_cast<std::byte>(random.Next());
      ExpectRefused(hello, "guessed");
    }
    while (clock_.Now() <= expires) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    ExpectRefused(Hello(kNonceCore, expiring), "expired");
    const std::uint64_t counted = Refused() - before;
    PHUB_CHECK(counted == tried_, "tried={} counted={}", tried_, counted);
    fmt::print("intruder: nonces refused={}\n", counted);
  }

  // Keys near its own, and any others; addresses near its own slots, but not in them.
  void Guess(int guesses) {
    SeededRandom random(8);
    std::uint32_t known = 0;
    for (int i = 0; i < guesses; ++i) {
      RawPeer peer(device_);
      const wire::LaneRefusal refusal = Ask(Hello(kGuessCore, NonceFor(kGuessCore)), peer);
      PHUB_CHECK(refusal == wire::LaneRefusal::kNone, "{}", wire::ToString(refusal));
      peer.Connect(offer_);
      PHUB_CHECK(send(socket_.get(), &wire::kVerbsReady, 1, MSG_NOSIGNAL) == 1);
      if (known == 0) known = peer.region_key();
      constexpr std::uint32_t kNear = 1u << 14;
      const bool near = random.Chance(1, 2);
      const auto key = near ? known + static_cast<std::uint32_t>(random.Below(2 * kNear)) - kNear
                            : static_cast<std::uint32_t>(random.Next());
      const std::uint64_t own =
          std::uint64_t{offer_.slot_count} * (wire::kSlotHeaderBytes + offer_.slot_bytes);
      constexpr std::uint64_t kSpan = 64 << 20;
      const std::uint64_t distance = random.Below(kSpan) / 64 * 64;
      const std::uint64_t address = random.Chance(1, 2)
                                        ? offer_.slots_address + own + distance
                                        : offer_.slots_address - kSpan + distance - 4096;
      const auto opcode = random.Chance(1, 4) ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
      PHUB_CHECK(peer.Do(opcode, address, key, 64, 0) != IBV_WC_SUCCESS, "key={:#x} address={:#x}",
                 key, address);
    }
    fmt::print("intruder: keys and addresses refused={}\n", guesses);
  }

 private:
  // A session without heartbeats is lost.
  void Beat() {
    grpc::ClientContext context;
    auto stream = session_->Attend(&context);
    v1::Heartbeat heartbeat;
    heartbeat.set_session_id(joined_.session_id());
    while (!leaving_) {
      heartbeat.set_sequence(heartbeat.sequence() + 1);
      if (!stream->Write(heartbeat)) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
    }
    context.TryCancel();
    stream->Finish();
  }

  wire::Nonce NonceFor(std::uint32_t core) {
    v1::OpenLanesRequest request;
    request.set_session_id(joined_.session_id());
    request.add_cores(core);
    const v1::OpenLanesResponse response = Call(*session_, &v1::Session::Stub::OpenLanes, request);
    valid_for_ = response.valid_for_ns();
    wire::Nonce nonce;
    PHUB_CHECK(response.grants_size() == 1 && response.grants(0).nonce().size() == nonce.size());
    for (std::size_t i = 0; i < nonce.size(); ++i) {
      nonce[i] = static_cast<std::byte>(response.grants(0).nonce()[i]);
    }
    return nonce;
  }

  wire::LaneHello Hello(std::uint32_t core, const wire::Nonce& nonce) const {
    return {.version_min = 0,
            .version_max = 0,
            .core = CoreIndex{core},
            .rank = Rank{0},
            .incarnation = Incarnation{joined_.incarnation()},
            .membership_epoch = MembershipEpoch{joined_.membership_epoch()},
            .nonce = nonce};
  }

  // Returns the data port's answer. If it is welcome, keeps its offer in offer_, and the socket
  // open.
  wire::LaneRefusal Ask(wire::LaneHello hello, const RawPeer& peer) {
    const transport::DialDeadline deadline{clock_, clock_.Now() + kTimeout, kTimeout};
    const auto port = static_cast<std::uint16_t>(joined_.cores(0).port());
    auto socket = transport::DialSocket(host_, port, deadline);
    PHUB_CHECK(socket.ok(), "{}", MessageOf(socket.status()));
    transport::OfferVersions(hello);
    std::array<std::byte, wire::kLaneHelloBytes + wire::kVerbsOfferBytes> request;
    wire::EncodeVerbsHello(hello, std::span(request).first<wire::kLaneHelloBytes>());
    wire::EncodeVerbsOffer(peer.Offer(), std::span(request).last<wire::kVerbsOfferBytes>());
    PHUB_CHECK(transport::SendAll(socket->get(), request, deadline));
    std::array<std::byte, wire::kLaneWelcomeBytes> answer;
    wire::LaneWelcome welcome;
    const absl::Status read = transport::ReadAll(socket->get(), answer, "the daemon", deadline);
    PHUB_CHECK(read.ok(), "{}", MessageOf(read));
    PHUB_CHECK(wire::DecodeLaneWelcome(answer, welcome));
    if (welcome.version == 0) return welcome.refusal;
    std::array<std::byte, wire::kVerbsOfferBytes> offer;
    PHUB_CHECK(transport::ReadAll(socket->get(), offer, "daemon", deadline).ok());
    PHUB_CHECK(wire::DecodeVerbsOffer(offer, offer_));
    socket_ = *std::move(socket);
    return wire::LaneRefusal::kNone;
  }

  void ExpectRefused(const wire::LaneHello& hello, const char* what) {
    const RawPeer peer(device_);
    const wire::LaneRefusal refusal = Ask(hello, peer);
    PHUB_CHECK(refusal == wire::LaneRefusal::kNonce, "{}: {}", what, wire::ToString(refusal));
    ++tried_;
  }

  Incarnation VictimsIncarnation() {
    v1::GetJobRequest request;
    request.set_job(victim_);
    const v1::JobInfo job = Call(*admin_, &v1::Admin::Stub::GetJob, request);
    return Incarnation{std::stoull(job.incarnation(), nullptr, 16)};
  }
  std::uint64_t Refused() {
    const v1::GetStatsResponse stats =
        Call(*admin_, &v1::Admin::Stub::GetStats, v1::GetStatsRequest());
    const auto refused =
        std::ranges::find(stats.counters(), "phub_lanes_refused_nonce_total", &v1::Counter::name);
    PHUB_CHECK(refused != stats.counters().end(), "no such counter");
    return refused->value();
  }

  const std::string host_;
  const std::string victim_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::Session::Stub> session_;
  const std::unique_ptr<v1::Admin::Stub> admin_;
  std::shared_ptr<const transport::VerbsDevice> device_;
  const SystemClock clock_;
  v1::JoinResponse joined_;
  DurationNs valid_for_ = 0;
  wire::VerbsOffer offer_;
  Descriptor socket_;
  std::uint64_t tried_ = 0;
  std::atomic<bool> leaving_{false};
  std::thread heart_;
};

}  // namespace
}  // namespace phub::verbs_tests

int main(int argument_count, char** arguments) {
  PHUB_CHECK(argument_count == 5, "verbs-intruder DEVICE HOST:PORT VICTIM GUESSES");
  phub::verbs_tests::Intruder intruder(arguments[1], arguments[2], arguments[3]);
  intruder.Join();
  intruder.Guess(std::atoi(arguments[4]));  // while the victim trains
  intruder.TryNonces();
  return 0;
}
