// Probes: this daemon measures the network to another rack, or answers another daemon that measures
// (server/probe/measure.h), over a lane to the answering daemon's data port.
//
// A daemon takes part in one probe at a time, at either end. A request for another one is refused,
// with the name of the current one. Each probe has its own thread, which ends with it; core loops
// are not involved. The answering daemon's control plane grants the lane, once, and only to another
// rack's daemon. As for jobs, the lane needs a nonce, and TLS if jobs' lanes use it.
//
// Threads: functions for the service are called with Control's lock held and return at once; those
// for the gate are called by the listener; only the owner calls Start and Stop.
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

// The rank in a probe lane's hello is this plus the measuring rack. Its incarnation is the probe's
// id.
inline constexpr std::uint32_t kProbeRankBase = kPeerRankBase + 4096;
static_assert(kProbeRankBase >= kPeerRankBase + kRacksMax);

struct ProberOptions {
  // "host:port" of the racks' control planes: first the topology's members, then aggregators, which
  // are not probed.
  std::vector<std::string> racks;
  std::uint32_t self = 0;
  std::shared_ptr<const plan::Topology> topology;
  PeerCredentials credentials;
  DurationNs liveness_timeout = 0;
  bool tls_lanes = false;
};

class Prober {
 public:
  // Both must outlive it.
  Prober(ControlThread& control, const Clock& clock, ProberOptions options);
  ~Prober();  // Stop()
  Prober(const Prober&) = delete;
  Prober& operator=(const Prober&) = delete;

  // Sets the address of this daemon's data port. To be called before Start.
  void SetDataEndpoint(std::string host, std::uint16_t port);
  // FAILED_PRECONDITION: a file of the credentials cannot be read.
  absl::Status Start();
  // Cancels running probes and calls, and allows no new ones.
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

  // --- Lanes, for transport::LaneGate. ----------------------------------------------------------
  static bool IsProbe(const wire::LaneHello& hello) { return hello.rank.value >= kProbeRankBase; }
  std::optional<wire::Nonce> FindNonce(const wire::LaneHello& hello);
  wire::LaneRefusal Admit(const wire::LaneHello& hello, bool encrypted);
  void Attach(const wire::LaneHello& hello, std::unique_ptr<transport::Connection> connection);

  bool stopping() const { return stopping_; }
  // Runs `function` on a thread of its own, which Stop() waits for; probes end then. False:
  // stopping.
  absl::Status Launch(std::function<void()> function);

 private:
  // The probe in which this daemon takes part.
  struct UnderWay {
    std::uint64_t id = 0;
    std::uint32_t other = 0;  // rack
    bool measures = false;
    probe::Limits limits;
    GrantedNonce nonce;    // at the answering end, until the lane connects
    bool is_open = false;  // a thread runs it
  };
  struct Worker {
    std::thread thread;
    std::atomic<bool> done{false};
  };
  class Call;

  std::size_t rack_count() const { return options_.topology->members().size(); }
  std::string Name(std::uint32_t rack) const;  // "rack 1 (10.0.1.5:7700)"
  absl::StatusOr<probe::Limits> Check(const v1::ProbePairRequest& request) const;
  // Starts the one probe, or returns an error that names the current one.
  absl::StatusOr<UnderWay> Begin(UnderWay wanted);
  void End(std::uint64_t id);
  UnderWay* Granted(const wire::LaneHello& hello);  // under mutex_
  bool BeginRelay();                                // false: too many are waiting
  void EndRelay();

  // Calls rack 0's daemon, which answers as it answers its own operators. `method` is a method of
  // the stub.
  template <typename Request, typename Method>
  void AskRack0(Control& control, Request request, Answer<v1::RacksInfo> answer, Method method);

  void MeasureHere(Control& control, const v1::ProbePairRequest& request, std::uint64_t id,
                   const probe::Limits& limits, Answer<v1::ProbePairResponse> answer);
  void RelayTo(Control& control, const v1::ProbePairRequest& request, const probe::Limits& limits,
               Answer<v1::ProbePairResponse> answer);
  // Run on their own thread.
  absl::StatusOr<v1::ProbePairResponse> RunMeasure(const v1::PeerProbeRequest& request,
                                                   const probe::Limits& limits);
  absl::StatusOr<v1::ProbeGrant> AskForLane(const v1::PeerProbeRequest& request);
  void Finish(const v1::ProbePairRequest& request,
              const absl::StatusOr<v1::ProbePairResponse>& result,
              const Answer<v1::ProbePairResponse>& answer);

  ControlThread& control_;
  const Clock& clock_;
  const ProberOptions options_;
  std::shared_ptr<grpc::ChannelCredentials> credentials_;  // set by Start
  std::string data_host_;
  std::uint16_t data_port_ = 0;

  std::mutex mutex_;  // guards what follows; may be taken while holding Control's lock
  SystemRandom random_;
  std::optional<UnderWay> under_way_;
  int relays_ = 0;
  std::list<Worker> workers_;
  std::set<grpc::ClientContext*> calls_;
  std::atomic<bool> stopping_{false};  // set under mutex_
};

}  // namespace phub::server
