// phubd's side of the front: judges the first call of each connection (Access), and hands gRPC one
// end of a new pair of sockets for a connection that may pass. Only memory is read, without
// control's lock, so newcomers do not wait for a busy control; refusals are counted on a thread of
// their own.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/descriptor.h"
#include "common/base/work_thread.h"
#include "server/control/rpc/service.h"
#include "server/control/rpc/tenant_places.h"
#include "server/front/supervisor.h"

namespace phub::server {

class FrontGate final : public FrontSupervisor::Host {
 public:
  // Gives gRPC a connected, non-blocking stream socket.
  using HandOver = std::function<void(Descriptor connection)>;
  // `shared` must outlive it. The front serves when it returns.
  static absl::StatusOr<std::unique_ptr<FrontGate>> Start(std::vector<Descriptor> listening,
                                                          const FrontSupervisor::Options& options,
                                                          Shared& shared, HandOver hand_over);
  ~FrontGate() override;  // Stop()

  void SetServing(bool serving) { front_->SetServing(serving); }
  void Drain() { front_->Drain(); }
  void Stop();  // after gRPC has ended its connections; idempotent

  FrontVerdict Judge(const FrontCall& call, Descriptor& upstream) override;
  void OnGone(std::uint64_t connection) override;
  void OnAllGone() override;
  void OnCounts(const FrontCounts& counts) override;
  bool OnOutage(TimeNs since) override;
  bool Alive() override;

 private:
  FrontGate(Shared& shared, HandOver hand_over)
      : shared_(shared), hand_over_(std::move(hand_over)) {}
  Admission AdmissionOf(const FrontCall& call) const;

  Shared& shared_;
  const HandOver hand_over_;
  const SystemClock clock_;
  // The front's thread only.
  struct Upstream {
    std::string name;
    RequestTurns::Token charge;  // paid by the tenant of the first call
    TenantPlaces::Holder place = {};
  };

  TenantPlaces places_{CrowdLimitsOfProcess()};
  std::map<std::uint64_t, Upstream> upstreams_;  // by the front's connection
  FrontCounts uncounted_;
  TimeNs asked_ = 0;
  // When control has answered last.
  std::atomic<TimeNs> answered_{0};
  std::atomic<bool> asking_{false};
  WorkThread notes_{"front-notes", 256};  // waits for control's lock
  std::unique_ptr<FrontSupervisor> front_;
};

}  // namespace phub::server
