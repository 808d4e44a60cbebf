// Loads checkpoints. Pieces are checked one by one and collected in images, which the core loops
// get once the checkpoint is complete. A job that spans racks is loaded through one daemon, which
// distributes the other racks' parts. See checkpoints.h for the lifetime of images. Owned by
// Control; under control's lock.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/control/checkpoint/images.h"
#include "server/control/jobs/job_observer.h"
#include "server/control/jobs/job_table.h"
#include "server/control/jobs/pending_calls.h"
#include "server/control/jobs/sessions.h"

namespace phub::server {

class Loads final : public JobObserver {
 public:
  Loads(Context& context, JobTable& jobs, const HostMemory& host_memory, Sessions& sessions,
        PendingCalls& pending_calls, PeerRacks& peer_racks)
      : context_(context),
        jobs_(jobs),
        host_memory_(host_memory),
        sessions_(sessions),
        pending_calls_(pending_calls),
        peer_racks_(peer_racks) {}

  // The LoadState call: BeginLoad for its first message, LoadPart for every message (the first,
  // too), FinishLoad when the client has sent everything; it answers the call. If a load has
  // failed, the next LoadPart returns the reason. LoadPart must wait until AcceptsParts; if that is
  // false, `resume` is called once it is true.
  absl::StatusOr<LoadId> BeginLoad(v1::LoadStateRequest first);
  bool AcceptsParts(LoadId load, std::function<void()> resume);
  absl::Status LoadPart(LoadId load, const v1::LoadStateRequest& part);
  // The same for a few keys or pieces from `next` on, which it advances up to UnitsOf(part): one
  // turn of control. Later() calls `then` in another turn, after turns of other tenants.
  absl::Status LoadPieces(LoadId load, const v1::LoadStateRequest& part, int& next);
  static int UnitsOf(const v1::LoadStateRequest& part) {
    return part.keys_size() + part.pieces_size();
  }
  void Later(LoadId load, std::function<void()> then);
  void FinishLoad(LoadId load, Answer<v1::LoadStateResponse> answer);
  void CancelLoad(LoadId load);  // ignored if it is over
  // To be called after each part of a load into a job that spans racks. Returns by rack what to
  // send to the other racks' daemons, as messages of a LoadState call. Call FinishLoad only after
  // those calls have succeeded.
  std::map<std::uint32_t, v1::LoadStateRequest> PartsForRacks(LoadId load);
  void GetLoadedState(const v1::GetLoadedStateRequest& request, Answer<v1::LoadedState> answer);

  // Rank 0 could not load: drops the checkpoint that is loaded or being loaded. code: an
  // absl::StatusCode.
  void DropLoaded(Job& job, int code, const std::string& why);
  void AdvanceLoad(Job& job, TimeNs now);

  void OnOver(Job& job, const absl::Status& why) override;
  bool RefersToKeys(const Job& job) const override;
  void OnTakenOver(Job& job, Rank rank, const absl::Status& why) override;

 private:
  static absl::Status Over();
  Job* FindLoad(LoadId load) const;
  absl::StatusOr<Seating> FindLoader(const v1::LoadStateRequest& first);
  absl::Status CheckLoader(const Job& job, const std::string& session_id);
  using KeyInfos = google::protobuf::RepeatedPtrField<v1::KeyStateInfo>;
  void MapArrival(Job& job, v1::LoadStateRequest first);
  void EnterArrival(Job& job, CheckpointArrival draft,
                    std::vector<std::shared_ptr<CheckpointImage>> mapped,
                    const absl::Status& named);
  static void PrepareParts(const ChunkSource& source, std::size_t key_count,
                           CheckpointArrival& arrival);
  static void CountReductionsElsewhere(std::span<const ChunkRef> chunks, std::size_t key_count,
                                       CheckpointArrival& arrival);
  static absl::Status NameKeys(const std::string& job, const KeyTable& job_keys,
                               std::span<const v1::KeyStateInfo* const> keys,
                               CheckpointArrival& arrival);
  static absl::Status NameMoreKeys(const Job& job, const v1::LoadStateRequest& part,
                                   CheckpointArrival& arrival, int& next, int end);
  absl::Status TakePiece(const Job& job, CheckpointArrival& arrival, const v1::StatePiece& piece);
  void NotePages(Job& job);
  static void SetAccepts(CheckpointArrival& arrival);
  void FailArrival(Job& job, const absl::Status& status);
  void SendCheckpoint(Job& job);
  LoadId RefuseLoad(Job& job, Rank rank, const v1::LoadStateRequest& refusal);
  static void SwapIterations(Job& job, DeliveredCheckpoint& checkpoint);

  Context& context_;
  JobTable& jobs_;
  const HostMemory& host_memory_;
  Sessions& sessions_;
  PendingCalls& pending_calls_;
  PeerRacks& peer_racks_;
  LoadId loads_begun_ = 0;
};

}  // namespace phub::server
