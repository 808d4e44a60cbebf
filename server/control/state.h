// What is inside Control. One object, its rules in several files by concern:
//   join.cc      creating and joining jobs         keys.cc     adding keys, placement
//   rack.cc      the other daemons                 seats.cc    reservations, Commit
//   lanes.cc     nonces, connections               sessions.cc barriers, leaving, streams, liveness
//   shared_memory.cc  what ranks share with it     drain.cc    draining, evicting
//   failure.cc   diagnosis, faults, ending jobs    events.cc   what core loops report, Poll
//   stalls.cc    who waits for whom                admin.cc    the administrator's other questions
//   wait.cc      ranks that may come back          versions.cc where the keys' chunks are
//   snapshot.cc, snapshot_read.cc  state on its way out; load_state.cc in; saved_state.cc on disk
//   shares.cc    weights and bandwidths            metrics.cc  the daemon in numbers
//   racks.cc     the daemons of other racks        rack_opening.cc, rack_jobs.cc  jobs that span
//   rack_plans.cc, rack_state.cc  their plans; loads     racks; peer_lanes.cc  lanes between them
#pragma once

#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "server/control/control.h"
#include "server/control/counters.h"
#include "server/control/jobs/job.h"
#include "server/control/racks/racks.h"
#include "server/metrics/sample.h"
#include "server/tenant/ledger.h"

namespace phub::server {

struct Control::State {
  State(const Clock& clock, Random& random, std::vector<CoreHandle> handles,
        ControlOptions options);

  // Whose session it is.
  struct Seating {
    Job* job = nullptr;
    Rank rank{};
  };

  // --- join.cc
  void Join(const v1::JoinRequest& request, std::string_view peer_address,
            Answer<v1::JoinResponse> answer);
  absl::Status Refuse(ControlCounter counter, absl::Status status);
  absl::Status CheckRoom(const v1::JoinRequest& request);
  // run: of a job that spans racks.
  absl::StatusOr<Job*> CreateJob(const v1::JoinRequest& request, const JobSettings& settings,
                                 std::shared_ptr<RackRun> run = nullptr);
  std::uint64_t MemoryOfJob(const Job& job) const;
  absl::Status BuildShards(Job& job);
  absl::Status CheckPlace(const Job& job, const v1::JoinRequest& request,
                          const JobSettings& settings);
  void Seat(Job& job, const v1::JoinRequest& request, std::string_view peer_address);
  v1::JoinResponse DescribeSeat(const Job& job, Rank rank, std::uint32_t version, bool created);
  Incarnation DrawIncarnation();

  // --- rack.cc
  // Core loops of every daemon of the rack, if the request fits the rack and this daemon's place.
  absl::StatusOr<std::vector<std::uint32_t>> CheckRack(const v1::JoinRequest& request) const;
  // The run that a worker is to join: null if it is to be created. An older one may end here.
  absl::StatusOr<Job*> FindRunToJoin(const v1::JoinRequest& request, const std::string& tenant);
  Job* FindRun(Incarnation incarnation);  // remembered ones too
  // That run of the job: null if it is not known, ABORTED if it is over.
  absl::StatusOr<Job*> FindRunOf(Incarnation incarnation, const std::string& tenant,
                                 const std::string& name);
  void Supersede(Job& job, Incarnation by, const std::string& who);
  v1::Rack DescribeRack() const;
  bool is_anchor() const { return options.rack_self == 0; }
  // Barriers are held by one daemon.
  absl::Status CheckAnchor(const Job& job) const;

  // --- seats.cc
  void Commit(const v1::CommitRequest& request, Answer<v1::CommitResponse> answer);
  absl::StatusOr<Seating> FindCommitted(std::string_view session_id);
  // Takes a reservation back: the seat is free, and a job that nobody is in ends; or it is lost, if
  // the rank was in the job before.
  void FreeSeat(Job& job, Rank rank, const absl::Status& why);
  void CheckLeases(TimeNs now);
  TimeNs NextLease(const Job& job) const;

  // --- shared_memory.cc
  bool shares_memory() const { return !shared_memory.name().empty(); }
  LentMemory::Kind lent_kind() const {
    return shares_memory() ? LentMemory::Kind::kShared : LentMemory::Kind::kOrdinary;
  }
  absl::Status TakeStaging(const Job& job, Member& member) const;
  // A new process has taken the rank over: nothing that the old one maps is used for it any more.
  absl::Status RenewRankMemory(Job& job, Rank rank);
  void DropRankMemory(Job& job, Member& member);
  bool IsProcessOf(Job& job, Rank rank, const PeerProcess& process);
  absl::StatusOr<transport::LaneMemory> SharedLaneMemory(const wire::LaneHello& hello);
  absl::StatusOr<LaneStaging> StagingOf(const wire::LaneHello& hello);
  void TellOfParameters(const Job& job, BatchRecord& record);
  absl::Status ShareBatch(Job& job, Rank rank, std::uint32_t batch, std::uint64_t worker_bytes);
  absl::Status MakeWorkerRegion(Job& job, Member& member, RankBatch& entry, std::uint64_t bytes);
  void GrantBatch(const Job& job, Member& member, std::uint32_t batch,
                  v1::AddKeysResponse& response);
  wire::LaneRefusal CheckBatch(const wire::SharedBatchRequest& request, const PeerProcess& process,
                               transport::BatchMemory& memory);
  wire::LaneRefusal AdmitBatch(const wire::SharedBatchRequest& request, const PeerProcess& process,
                               transport::BatchMemory& memory);

  // --- keys.cc
  void AddKeys(const v1::AddKeysRequest& request, Answer<v1::AddKeysResponse> answer);
  absl::Status AcceptBatch(Job& job, const KeySpecs& given, Rank rank);
  void HandOutBatches(Job& job);
  bool KeysAcknowledged(const Job& job, std::size_t batches) const;  // the first so many
  absl::Status CheckChunkCounts(const Job& job,
                                const std::vector<std::vector<BinIndex>>& placement) const;
  absl::Status BuildParts(Job& job, const KeySpecs& keys,
                          const std::vector<std::vector<BinIndex>>& placement, BatchRecord& record);
  static absl::Status BuildExchangeParts(Job& job,
                                         const std::vector<std::vector<KeyShardSpec>>& parts,
                                         BatchRecord& record);
  static void DescribePlacement(const Job& job, const std::vector<std::vector<BinIndex>>& placement,
                                BatchRecord& record);
  void AnswerBatch(Job& job, Rank rank, std::uint32_t batch,
                   const Answer<v1::AddKeysResponse>& answer);
  void FailOverKeys(Job& job, Rank first, Rank rank, const std::string& difference);
  absl::Status TakePagesOf(std::vector<UnbackedMemory> memory, PagesFlag& pages) const;

  // --- lanes.cc
  void OpenLanes(const v1::OpenLanesRequest& request, Answer<v1::OpenLanesResponse> answer);
  wire::LaneRefusal AdmitLane(const wire::LaneHello& hello, std::optional<PeerProcess> process,
                              bool encrypted);
  wire::LaneRefusal CheckLane(const wire::LaneHello& hello, std::optional<PeerProcess> process,
                              bool encrypted);
  // The place that the hello asks for, if a nonce was granted for it that is still good. Null, and
  // why.
  LanePlace* FindGranted(const wire::LaneHello& hello, wire::LaneRefusal& refusal);
  std::optional<wire::Nonce> FindNonce(const wire::LaneHello& hello);
  void AttachLane(const wire::LaneHello& hello, std::unique_ptr<transport::Connection> connection,
                  std::uint8_t transport_index, std::string description);
  Job* FindIncarnation(Incarnation incarnation);

  // --- sessions.cc
  // Whose session it is, and whether the job still runs: NOT_FOUND, or ABORTED with the fault.
  absl::StatusOr<Seating> FindSession(std::string_view session_id);
  absl::StatusOr<Seating> FindRunning(std::string_view session_id);
  void Barrier(const v1::BarrierRequest& request, Answer<v1::BarrierResponse> answer);
  void CompleteBarriers(Job& job);
  void RefuseBarriersWithout(Job& job, const std::string& departed);
  void Leave(const v1::LeaveRequest& request, Answer<v1::LeaveResponse> answer);
  absl::StatusOr<StreamId> AttachStream(std::string_view session_id,
                                        std::shared_ptr<EventSink> sink);
  absl::Status Heartbeat(std::string_view session_id, std::uint64_t sequence);
  void DetachStream(std::string_view session_id, StreamId stream);
  void CheckLiveness(TimeNs now);
  void CheckAbandoned(Job& job, TimeNs now);
  void HearOf(Member& member);
  // Time in which control itself could not listen is given back to the workers, with some for
  // heartbeats that lie unread; a few times in a row: a host that is always late notices the dead.
  void ForgiveSilence(DurationNs duration);

  // --- failure.cc
  void BeginDiagnosis(Job& job, Diagnosis diagnosis);
  void AdvanceDiagnosis(Job& job, TimeNs now);
  void ConcludeDiagnosis(Job& job);
  void FailOverCoreFault(Job& job, CoreIndex core, const Event& event);
  void NoteNonFinite(Job& job, const Event& event);
  // Fills in the names; `what` says what happened, and goes into the message.
  v1::Fault MakeFault(const Job& job, const char* code, const std::string& what) const;
  void BlameRank(const Job& job, Rank rank, v1::Fault& fault) const;
  void Fail(Job& job, v1::Fault fault);
  void EndInOrder(Job& job);
  void AnswerAllPending(Job& job, const absl::Status& status);
  void SendEndCommands(Job& job);
  void Release(Job& job);
  void FreeMemory(Job& job);
  void CloseAccount(Job& job);  // of a job that was released

  // --- events.cc
  void Poll();
  TimeNs NextDeadline(), NoteTimers();  // the latter: without what only waits for core loops
  TimeNs NextTimer() const;
  TimeNs NextTimer(const Job& job) const;
  void HandleEvent(CoreIndex core, const Event& event);
  void HandleLaneClosed(Job& job, CoreIndex core, const Event& event);
  void AnswerAcknowledged(Job& job);
  bool Acknowledged(const std::vector<Ticket>& tickets) const;
  void ReapReleased();

  // --- stalls.cc
  StallQuery& AskForStalls(Job& job, DurationNs timeout, std::function<void(StallQuery&)> done);
  void HandleStallsReported(Job& job, CoreIndex core, const Event& event);
  void CheckQueries(Job& job, TimeNs now);
  void ListStalls(const v1::ListStallsRequest& request, Answer<v1::ListStallsResponse> answer);
  void DescribeStalls(const Job& job, const StallQuery& query, DurationNs waiting_for_min,
                      v1::ListStallsResponse& response) const;
  std::string DescribeLane(const Member& member, CoreIndex core) const;

  // --- admin.cc
  void GetServer(Answer<v1::ServerInfo> answer);
  void ListJobs(const v1::ListJobsRequest& request, Answer<v1::ListJobsResponse> answer);
  void GetJob(const v1::GetJobRequest& request, Answer<v1::JobInfo> answer);
  v1::JobInfo DescribeJob(const Job& job) const;
  std::string ReasonOf(const Job& job, std::string_view lane) const;
  v1::ServerInfo DescribeServer() const;
  absl::StatusOr<const Job*> FindJob(const std::string& tenant, const std::string& name) const;
  // --- metrics.cc
  void GetStats(Answer<v1::GetStatsResponse> answer);
  MetricsSample Sample() const;
  std::map<std::string, TenantSample> SampleTenants() const;
  // What the job did so far; nothing, once it was released.
  static WorkTotals TotalsOf(const Job& job);
  // Keeps what the job did, for itself and its tenant's totals. Before its shards go.
  void NoteTotals(Job& job);
  RankMetricsSum SumOfRank(const Job& job, Rank rank) const;
  // --- wait.cc
  // Live or lost, as what is known of the rank says. Of a rank that has a place; policy wait.
  void CheckPresence(Job& job, Rank rank);
  void BeginAbsence(Job& job, Rank rank);
  void EndAbsence(Job& job, Rank rank, bool restarted);
  void SendAwaited(const Job& job, Rank to, EventSink& sink);
  void CheckWaiting(Job& job, TimeNs now);
  absl::Status CheckTakeOver(const Job& job, const v1::JoinRequest& request);
  absl::Status TakeOver(Job& job, Rank rank);
  void LoseSeat(Job& job, Rank rank, const absl::Status& why);
  void ForgetSessions(const Member& member);
  absl::Status TakenOver(const Job& job, Rank rank) const;
  void ForgiveAbsence(Member& member, DurationNs duration);
  std::string DescribeAbsence(const Job& job, Rank rank) const;
  // --- versions.cc
  void AskForVersions(Job& job, DurationNs timeout,
                      std::function<void(const absl::Status&, VersionQuery&)> done);
  void HandleVersionsReported(Job& job, CoreIndex core, const Event& event);
  void CheckVersionQueries(Job& job, TimeNs now);
  void AnswerVersions(Job& job, Answer<v1::GetVersionsResponse> answer);
  v1::GetVersionsResponse DescribeVersions(const Job& job, const VersionQuery& query) const;
  void GetVersions(const v1::GetVersionsRequest& request, Answer<v1::GetVersionsResponse> answer);
  void GetJobVersions(const v1::GetJobVersionsRequest& request,
                      Answer<v1::GetVersionsResponse> answer);
  absl::Status CheckQueryRoom(const Job& job) const;
  // --- snapshot.cc
  void BeginSnapshot(const v1::BeginSnapshotRequest& request, Answer<v1::Snapshot> answer);
  absl::Status CheckTargets(const Job& job, const v1::BeginSnapshotRequest& request) const;
  absl::Status TakeSnapshot(Job& job, const v1::BeginSnapshotRequest& request);
  void HandleSnapshotTaken(Job& job, CoreIndex core, const Event& event);
  void NoteSnapshotAcknowledged(Job& job);
  void AdvanceSnapshot(Job& job, TimeNs now);
  void DropSnapshot(Job& job, absl::Status why);
  void FreeSnapshot(Job& job);
  // Memory for images of all of the job's shards: reserved, or the shortfall.
  absl::StatusOr<std::vector<std::unique_ptr<StateImage>>> MakeImages(Job& job,
                                                                      std::uint64_t& bytes);
  std::vector<ChunkRef> ChunksOf(const Job& job) const;
  void AbandonSavedState(Job& job, const absl::Status& status);  // the job ended
  void FreeSavedState(Job& job);                                 // and the core loops let go
  // --- snapshot_read.cc
  absl::Status ReadSnapshot(const v1::ReadSnapshotRequest& request,
                            std::shared_ptr<SnapshotSink> sink);
  void SnapshotPartSent(std::string_view snapshot_id, const SnapshotSink* sink);
  void CancelSnapshot(std::string_view snapshot_id, const SnapshotSink* sink);
  void SendSnapshotPart(Job& job);
  Job* FindSnapshot(std::string_view snapshot_id);
  Job* FindReadOut(const v1::ReportSavedStateRequest& request);  // null: it was not read lately
  // --- load_state.cc
  absl::StatusOr<LoadId> BeginLoad(const v1::LoadStateRequest& first);
  absl::Status LoadPart(LoadId load, const v1::LoadStateRequest& part);
  void FinishLoad(LoadId load, Answer<v1::LoadStateResponse> answer);
  void CancelLoad(LoadId load);
  void GetLoadedState(const v1::GetLoadedStateRequest& request, Answer<v1::LoadedState> answer);
  absl::Status NameKeys(const Job& job, const v1::LoadStateRequest& first, StateArrival& arrival);
  absl::Status TakePiece(const Job& job, StateArrival& arrival, const v1::StatePiece& piece);
  void FailArrival(Job& job, const absl::Status& status);
  void BringState(Job& job);
  void AdvanceLoad(Job& job, TimeNs now);
  Job* FindLoad(LoadId load);
  absl::StatusOr<Seating> FindLoader(const v1::LoadStateRequest& first);  // rack_state.cc
  absl::Status CheckLoader(const Job& job, const std::string& session_id);
  // --- elsewhere.cc
  void EndByVerdict(Job& job, Rank rank, const std::string& verdict);
  LoadId RefuseLoad(Job& job, Rank rank, const v1::LoadStateRequest& refusal);
  void DropBrought(Job& job, int code, const std::string& why);
  void TakeOverIterations(Job& job, const v1::LoadedState& loaded);
  // --- shares.cc
  // The same number for all jobs of a tenant: what core loops tell tenants apart by.
  std::uint32_t NumberOfTenant(const std::string& tenant);
  // What its jobs may have of that core loop, as its quota is now.
  TenantShare ShareOf(const std::string& tenant, std::size_t core) const;
  // Tells the core loops; the second one only if where its chunks lie matters.
  void ShareOut(const std::string& tenant);
  void ShareOutAnew(const std::string& tenant);
  // --- racks.cc
  std::string DescribeRackBriefly(RackIndex rack) const;
  v1::PeerEnvelope MakeEnvelope(RackIndex to) const;
  absl::Status CheckEnvelope(const v1::PeerEnvelope& envelope);
  void OnEnvelope(const v1::PeerEnvelope& envelope, Answer<v1::PeerReceipt> answer);
  void OnReceipt(RackIndex from, const v1::PeerReceipt& receipt);
  void OnRackRestarted(RackIndex rack);
  void FailOverLostMessages(RackIndex rack, const char* what);
  void SendToRack(RackIndex to, Incarnation incarnation, v1::PeerMessage message);
  void SendToRacks(Incarnation incarnation, const v1::PeerMessage& message);
  void HandlePeerMessage(RackIndex from, const v1::PeerMessage& message);
  void Defer(RackIndex from, const v1::PeerMessage& message);
  void NoteIfNobodyIsHere(Job& job);
  void PollRacks(TimeNs now);
  void CheckRackLiveness(TimeNs now);
  TimeNs NextRackTimer() const;
  // --- rack_opening.cc
  absl::Status Hold(HeldJoin held);
  // The rank waits until rack 0 has opened its job.
  void AskToOpen(HeldJoin held, const JobSettings& settings);
  absl::StatusOr<Job*> OpenRackJob(const v1::JoinRequest& request, const JobSettings& settings);
  absl::StatusOr<Job*> OpenEverywhere(v1::PeerJob job, const JobSettings& settings,
                                      Incarnation incarnation);
  absl::Status CheckNoRun(RackIndex from, const v1::PeerMessage& message, bool& is_settled);
  absl::StatusOr<Job*> CreateRackJob(const v1::PeerJob& job, const JobSettings& settings,
                                     Incarnation incarnation);
  void HandleOpenRequest(RackIndex from, const v1::PeerMessage& message);
  void HandleOpen(RackIndex from, const v1::PeerMessage& message);
  void HandleOpened(Job& job, RackIndex from, const v1::PeerOpened& opened);
  void RefuseHeld(const v1::PeerRefused& refused, Incarnation incarnation);
  void JoinHeld(const v1::PeerJob& job, Incarnation incarnation);
  std::list<HeldJoin> TakeHeld(const std::string& tenant, const std::string& job,
                               Incarnation incarnation);
  void HandleReady(Job& job, RackIndex from);
  void HandleStart(Job& job, RackIndex from);
  void AdvanceRackRun(Job& job);
  void CheckOpening(Job& job, TimeNs now);
  void StandRackRun(Job& job);
  // --- rack_jobs.cc
  void AnnounceProgress(Job& job);
  bool RacksHave(const Job& job, std::uint32_t batches) const;
  absl::Status CheckKeysForRacks(const Job& job, const KeySpecs& keys) const;
  void TellRacksOfKeys(const Job& job, std::uint32_t batch);
  void HandlePeerKeys(Job& job, RackIndex from, const v1::PeerKeys& keys);
  void HandleRankLeft(Job& job, RackIndex from, const v1::PeerRankLeft& left);
  bool RacksReachedBarrier(Job& job);
  void EndIfAllLeft(Job& job);
  void TellRacksOfFailure(const Job& job);
  // --- rack_plans.cc
  absl::Status ChoosePlan(v1::PeerJob& job);
  void DescribeExchange(const Job& job, v1::ExchangeInfo& info) const;
  // --- peer_lanes.cc
  void GrantPeerLanes(Job& job);
  void HandleConnect(Job& job, RackIndex from, const v1::PeerConnect& connect);
  wire::LaneRefusal CheckPeerLane(const wire::LaneHello& hello, bool encrypted);
  PeerLanePlace* FindGrantedPeer(const wire::LaneHello& hello, wire::LaneRefusal& refusal);
  bool LacksPeerLane(Incarnation incarnation, RackIndex rack, CoreIndex core);
  void AttachPeerLane(Incarnation incarnation, RackIndex rack, CoreIndex core,
                      std::unique_ptr<transport::Connection> connection,
                      std::uint8_t transport_index, std::string description);
  void PeerLaneFailed(Incarnation incarnation, RackIndex rack, CoreIndex core,
                      const absl::Status& why);
  void CheckReady(Job& job);
  void HandlePeerLaneClosed(Job& job, CoreIndex core, const Event& event);
  void FailOverPeerFault(Job& job, CoreIndex core, const Event& event);
  // --- drain.cc
  void Drain(DurationNs grace);
  void SetDraining(DurationNs grace);
  void TellAll(const v1::SessionEvent& event);
  v1::Fault MakeDrainFault(const Job& job) const;
  void DrainServer(const v1::DrainServerRequest& request, Answer<v1::ServerInfo> answer);
  void UndrainServer(Answer<v1::ServerInfo> answer);
  void EvictJob(const v1::EvictJobRequest& request, Answer<v1::JobInfo> answer);
  // The job that runs, or why there is none to work on.
  absl::StatusOr<Job*> FindJobToWorkOn(const std::string& tenant, const std::string& name);
  Job* FindRunningJob(const std::string& tenant, const std::string& name);  // null: there is none
  CoreIndex CoreAt(std::size_t index) const { return {static_cast<std::uint32_t>(index)}; }

  const Clock& clock;
  Random& random;
  const ControlOptions options;
  const TimeNs started_at;
  const std::string rack_configuration;
  std::vector<CoreLink> links;  // [core]
  struct Endpoint {
    std::string host;
    std::uint16_t port = 0;
  };
  std::vector<Endpoint> endpoints;  // [core]
  JobMemoryListener* memory_listener = nullptr;
  PageTaker* page_taker = nullptr;         // both may be null
  v1::SharedMemoryEndpoint shared_memory;  // without a name: nothing is shared
  Ledger ledger;
  ControlCounters counters;
  std::map<std::string, std::uint32_t> tenant_numbers;
  std::map<std::string, WorkTotals> released_totals;  // [tenant], of jobs that were released
  std::list<std::unique_ptr<Job>> jobs;    // running or being torn down, in order of creation
  std::deque<std::unique_ptr<Job>> ended;  // released, oldest first
  std::map<std::string, Seating, std::less<>> sessions;  // of both, by session id
  struct ShardOwner {
    Job* job = nullptr;
    CoreIndex core{};
  };
  std::unordered_map<const JobShard*, ShardOwner> shard_owners;  // looked up, never iterated
  Racks racks;
  StreamId streams_made = 0;
  LoadId loads_begun = 0;
  bool draining = false, stopping = false;  // stopping: draining, and there is no way back
  TimeNs polled_at = started_at, drain_deadline = 0;
  TimeNs wake_at = kNever;                           // when Poll has to run again at the latest
  DurationNs drain_timeout = options.drain_timeout;  // may change while it runs
};

}  // namespace phub::server
