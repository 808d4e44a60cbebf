// Probes: this daemon measures to another rack's, or answers another one that measures
// (server/probe/measure.h), by a lane to its data port.
//
// A daemon is in one probe at a time, at whichever end; who asks for another is refused and told
// which one is under way. A probe has a thread of its own, that ends with it; core loops know
// nothing of it. The lane is granted by the other end's control plane, to another rack's daemon
// only, and once: by a nonce as those of jobs, with TLS where those have it.
//
// Threads: the calls of the service come with Control's lock held and return at once; those of the
// gate are the listener's; Start and Stop are the owner's.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/random.h"
#include "common/plan/topology.h"
#include "common/transport/transport.h"
#include "common/wire/lane_hello.h"
#include "phub/v1/probe.pb.h"
#include "server/control/jobs/granted_nonce.h"
#include "server/control/ports/control_thread.h"
#include "server/control/rpc/peer_channel.h"
#include "server/probe/measure.h"

namespace grpc {
class ClientContext;
}  // namespace grpc

namespace phub::server {

// What a probing lane's hello says as rank: this plus the rack that measures. Its incarnation is
// the probe.
inline constexpr std::uint32_t kProbeRankBase = kPeerRankBase + 4096;
static_assert(kProbeRankBase >= kPeerRankBase + kRacksMax);

struct ProberOptions {
  // "host:port" of their control planes: the topology's members, and then aggregators, which are
  // not probed.
  std::vector<std::string> racks;
  std::uint32_t self = 0;
  std::shared_ptr<const plan::Topology> topology;
  PeerCredentials credentials;
  DurationNs liveness_timeout = 0;
  bool tls_lanes = false;
};

class Prober {
 public:
  // Both outlive it.
  Prober(ControlThread& control, const Clock& clock, ProberOptions options);
  ~Prober();  // Stop()
  Prober(const Prober&) = delete;
  Prober& operator=(const Prober&) = delete;

  // Where its own data port is. Before Start.
  void SetDataEndpoint(std::string host, std::uint16_t port);
  // FAILED_PRECONDITION: a file of the credentials cannot be read.
  absl::Status Start();
  // Ends what is under way. Nothing begins any more.
  void Stop();

  // --- phub.v1.Probe. Answered later, with Control's lock held. ---------------------------------
  void GetRacks(Control& control, const v1::GetRacksRequest& request, Answer<v1::RacksInfo> answer);
  void ApplyTopology(Control& control, const v1::ApplyTopologyRequest& request,
                     Answer<v1::RacksInfo> answer);
  void ProbePair(Control& control, const v1::ProbePairRequest& request,
                 Answer<v1::ProbePairResponse> answer);
  void RelayProbe(Control& control, const v1::PeerProbeRequest& request,
                  Answer<v1::ProbePairResponse> answer);
  void GrantProbe(Control& control, const v1::PeerProbeRequest& request,
                  Answer<v1::ProbeGrant> answer);

  // --- Lanes, as transport::LaneGate says. ------------------------------------------------------
  static bool IsProbe(const wire::LaneHello& hello) { return hello.rank.value >= kProbeRankBase; }
  std::optional<wire::Nonce> FindNonce(const wire::LaneHello& hello);
  wire::LaneRefusal Admit(const wire::LaneHello& hello, bool encrypted);
  void Attach(const wire::LaneHello& hello, std::unique_ptr<transport::Connection> connection);

  bool stopping() const { return stopping_; }
  // A thread of its own for it, which Stop() waits for; probes end then. False: it is stopping.
  bool Launch(std::function<void()> function);

 private:
  // The probe that this daemon is in.
  struct UnderWay {
    std::uint64_t id = 0;
    std::uint32_t other = 0;  // rack
    bool measures = false;
    probe::Limits limits;
    GrantedNonce nonce;    // of an answering end, until the lane comes
    bool is_open = false;  // a thread works on it
  };
  struct Worker {
    std::thread thread;
    std::atomic<bool> done{false};
  };
  class Call;

  std::size_t rack_count() const { return options_.topology->members().size(); }
  std::string Name(std::uint32_t rack) const;  // "rack 1 (10.0.1.5:7700)"
  absl::StatusOr<probe::Limits> Check(const v1::ProbePairRequest& request) const;
  // Takes the place of the one probe, or says who has it.
  absl::StatusOr<UnderWay> Begin(UnderWay wanted);
  void End(std::uint64_t id);
  UnderWay* Granted(const wire::LaneHello& hello);  // under mutex_
  bool BeginRelay();                                // false: too many wait already
  void EndRelay();

  // The call to rack 0's daemon, which answers as it would its own operators. Method: of the stub.
  template <typename Request, typename Method>
  void AskRack0(Control& control, Request request, Answer<v1::RacksInfo> answer, Method method);

  void MeasureHere(Control& control, const v1::ProbePairRequest& request, std::uint64_t id,
                   const probe::Limits& limits, Answer<v1::ProbePairResponse> answer);
  void RelayTo(Control& control, const v1::ProbePairRequest& request, const probe::Limits& limits,
               Answer<v1::ProbePairResponse> answer);
  // On a thread of their own.
  absl::StatusOr<v1::ProbePairResponse> RunMeasure(const v1::PeerProbeRequest& request,
                                                   const probe::Limits& limits);
  absl::StatusOr<v1::ProbeGrant> AskForLane(const v1::PeerProbeRequest& request);
  void Finish(const v1::ProbePairRequest& request,
              const absl::StatusOr<v1::ProbePairResponse>& result,
              const Answer<v1::ProbePairResponse>& answer);

  ControlThread& control_;
  const Clock& clock_;
  const ProberOptions options_;
  std::shared_ptr<grpc::ChannelCredentials> credentials_;  // since Start
  std::string data_host_;
  std::uint16_t data_port_ = 0;

  std::mutex mutex_;  // of what follows; Control's lock may be held by who takes it
  SystemRandom random_;
  std::optional<UnderWay> under_way_;
  int relays_ = 0;
  std::list<Worker> workers_;
  std::set<grpc::ClientContext*> calls_;
  std::atomic<bool> stopping_{false};  // set under mutex_
};

}  // namespace phub::server
