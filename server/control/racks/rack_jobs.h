// Jobs that span racks, while they run: what racks report to each other, and how jobs end. Owned by
// Control; under control's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "phub/v1/peer.pb.h"
#include "server/control/context.h"
#include "server/control/jobs/job_observer.h"
#include "server/control/jobs/peer_racks.h"
#include "server/control/racks/known_racks.h"

namespace phub::server {

class Barriers;
class Ending;
class JobTable;
class Keys;
class PendingCalls;
class RackMessages;

class RackJobs final : public PeerRacks, public JobObserver {
 public:
  static constexpr DurationNs kFirstFaultWaitMax = 500 * kMillisecond;

  RackJobs(Context& context, KnownRacks& known, JobTable& jobs, Barriers& barriers, Ending& ending,
           Keys& keys, PendingCalls& pending_calls, RackMessages& messages)
      : context_(context),
        known_(known),
        jobs_(jobs),
        barriers_(barriers),
        ending_(ending),
        keys_(keys),
        pending_calls_(pending_calls),
        messages_(messages) {}

  bool HaveKeys(const Job& job, std::uint32_t batches) const override;
  std::size_t KeysBytesMax(const Job& job) const override;
  void TellOfKeys(const Job& job, const SharedPeerMessage& message) override;
  bool ReachedBarrier(Job& job) override;
  std::vector<std::string> DepartedRanks(const Job& job) const override;
  void TellOfDeparture(const Job& job, Rank rank) override;
  void EndIfAllLeft(Job& job) override;
  bool IsLeaving(const Job& job) const override;
  void ForgiveSilence(DurationNs duration) override;
  void TellOfRefusedLoad(const Job& job, std::uint64_t load_number, int code,
                         const std::string& why) override;

  // Notifies the other racks. Rack 0 also forwards a failure that another rack reported. So all
  // racks receive the first fault that rack 0 has recorded. The ranks of the others wait for it for
  // kFirstFaultWaitMax at most, or a quarter of liveness_timeout, and get it instead of what their
  // own rack has found.
  void OnFailed(Job& job) override;
  void TakeFirstFault(Job& job, const v1::PeerFailed& failed);
  // Keeps the job's measurements.
  void OnReleased(Job& job) override;

  // Reports to the other racks the keys that the core loops have acknowledged.
  void AnnounceProgress(Job& job);
  // A rank of another rack added a batch first, or at the same time as a rank of this one. The keys
  // are built or compared without the lock.
  void HandlePeerKeys(Job& job, RackIndex from, std::shared_ptr<const v1::PeerKeys> keys);
  void HandleKeysAdded(Job& job, RackIndex from, std::uint32_t batches);
  void HandleRankLeft(Job& job, RackIndex from, const v1::PeerRankLeft& left);

 private:
  bool AwaitsFirstFault(const Job& job) const;
  void TakePeerKeys(Job& job, RackIndex from, const std::shared_ptr<const v1::PeerKeys>& keys);
  void ComparePeerKeys(Job& job, RackIndex from, const std::shared_ptr<const v1::PeerKeys>& keys);
  void EndKeyWork(Job& job, RackIndex from);
  void FailOverKeys(Job& job, const std::string& what);

  Context& context_;
  KnownRacks& known_;
  JobTable& jobs_;
  Barriers& barriers_;
  Ending& ending_;
  Keys& keys_;
  PendingCalls& pending_calls_;
  RackMessages& messages_;
};

}  // namespace phub::server
