// The control plane's state machine: sessions, jobs, keys, lanes, liveness, faults, admission. It
// speaks the messages of proto/phub/v1 and commands core loops (server/core/commands.h), and
// nothing else: no threads, no gRPC, no locks, no wall clock, so the same object runs behind gRPC
// in phubd (server/control/rpc/grpc_server.h) and inside the deterministic simulation.
//
// Threads: one at a time; whoever shares it brings the lock
// (server/control/ports/control_thread.h). Answers: every call is answered through its callback
// exactly once, either before the call returns or from a later call to any member (mostly Poll).
// Callbacks and sinks must not call back into Control. A call that concerns the core loops is
// answered only once every core loop has acknowledged it: otherwise a gradient could overtake the
// key that it belongs to.
//
// Core loops and memory: Control builds the shards and key batches of server/core/job_shard.h, owns
// them, and frees them when every core loop has said kJobEnded. Destroying Control frees them
// outright, so the core loops must have stopped by then.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/random.h"
#include "common/plan/topology.h"
#include "common/transport/shm/shm_gate.h"
#include "common/transport/transport.h"
#include "common/wire/lane_hello.h"
#include "common/wire/shared_memory.h"
#include "phub/v1/admin.pb.h"
#include "phub/v1/peer.pb.h"
#include "phub/v1/session.pb.h"
#include "server/control/counters.h"
#include "server/control/racks/peer_network.h"
#include "server/control/racks/surveyor.h"
#include "server/core/core_loop.h"
#include "server/metrics/sample.h"
#include "server/tenant/ledger.h"

namespace phub::transport {
struct VerbsCounters;
}  // namespace phub::transport

namespace phub::server {

// The control protocol's versions that this build speaks.
inline constexpr std::uint32_t kProtocolVersionMin = 1;
inline constexpr std::uint32_t kProtocolVersionMax = 1;

// What Control needs of one core loop. Everything pointed to outlives Control.
struct CoreHandle {
  CoreQueues* queues = nullptr;
  const CoreCounters* counters = nullptr;
  std::function<void()> wake;  // called after commands were pushed; may be empty (simulation)
  const transport::VerbsCounters* verbs_counters = nullptr;  // null: it has no lanes over verbs
};

// A process of this host, as the kernel names it.
struct PeerProcess {
  std::int64_t pid = 0;
  std::uint32_t uid = 0;
  friend bool operator==(const PeerProcess&, const PeerProcess&) = default;
};

struct ControlOptions {
  std::string version = "0.1.0";  // of the daemon
  std::string commit;
  std::string simd_target;

  std::string lane_host;        // empty: where the client reached the control plane
  std::uint16_t lane_port = 0;  // of every core; see SetLaneEndpoint

  // The rack: control endpoints of its daemons, in the order of the configuration, and which of
  // them this is. Empty: a rack of its own.
  std::vector<std::string> rack_endpoints;
  std::uint32_t rack_self = 0;
  std::uint32_t daemons_in_rack() const {
    return rack_endpoints.empty() ? 1 : static_cast<std::uint32_t>(rack_endpoints.size());
  }

  // The racks: control endpoints of one daemon each, with the number that this one has in its own
  // (rack_self), which of them is this one's, and how they are connected: member r of the topology
  // is rack r. Empty: there is this one only.
  std::vector<std::string> racks;
  std::uint32_t rack_index = 0;
  std::shared_ptr<const plan::Topology> rack_topology;
  // It is measured by the daemons; then rack_topology stands in for it, and no plan is made for it.
  bool topology_is_measured = false;
  // So many of `racks`, the last, only sum and pass on, and have no ranks: they are the aggregating
  // switches of the topology, in its order. All of them, or none.
  std::uint32_t aggregator_count = 0;
  std::uint32_t racks_with_ranks() const {
    return static_cast<std::uint32_t>(racks.size()) - aggregator_count;
  }
  bool is_aggregator() const { return aggregator_count > 0 && rack_index >= racks_with_ranks(); }

  // Of rings, for each lane of a job, as shared memory charges them; see SetSharedMemoryEndpoint.
  std::uint64_t shared_lane_bytes = 0;
  // Of registered memory beside the slots, for each lane that may come over verbs, and before each
  // slot. 0: none do.
  std::uint64_t verbs_lane_bytes = 0;
  std::uint32_t slot_header_bytes = 0;

  // The same for each lane between this and another rack. 0: no such lane comes over verbs, and
  // why.
  std::uint64_t peer_verbs_lane_bytes = 0;
  std::string no_peer_verbs_reason = "this daemon has none";
  bool peer_verbs_only = false;  // such a lane is over verbs, or the job has none

  // Lanes over tcp are TLS; of sessions, for each such lane. And why they are, or are not.
  bool tls_lanes = false;
  std::uint64_t tls_lane_bytes = 0;
  std::string tls_reason;

  std::uint32_t chunk_bytes = 128 * 1024;              // when the job does not say
  std::uint32_t staging_bytes_per_lane = 1024 * 1024;  // when the job does not say

  std::uint32_t jobs_max = 1024;                            // running or being torn down
  std::uint64_t memory_bytes_max = std::uint64_t{1} << 62;  // of all jobs together
  std::uint32_t ended_jobs_max = 64;  // remembered for `job list` and `job get`
  std::size_t backlog_max = 65536;    // commands that wait for room in a core's queue

  DurationNs liveness_timeout = 2 * kSecond;
  DurationNs nonce_lifetime = 30 * kSecond;
  // How long a failure may wait to learn which key waits for the rank that died.
  DurationNs diagnosis_timeout = 200 * kMillisecond;
  // Between telling a job's workers that it failed and closing their lanes, so that they hear the
  // reason before they see the consequence.
  DurationNs teardown_delay = 100 * kMillisecond;
  // A job that nobody is in any more, though some ranks never came, ends after this.
  DurationNs abandoned_timeout = 30 * kSecond;
  // How long an administrator's question may wait for a core loop.
  DurationNs report_timeout = kSecond;
  // Policy wait, when the job does not say: how long a rank may be gone.
  DurationNs wait_timeout = 60 * kSecond;
  // How long a snapshot waits for its reader, and saved state for its next piece.
  DurationNs transfer_timeout = 30 * kSecond;
  // How long an administrator's drain lets jobs run on, when he does not say.
  DurationNs drain_timeout = 10 * kSecond;
};

template <typename Response>
using Answer = std::function<void(const absl::Status&, const Response&)>;

// Where a session's events go: one Attend stream.
class EventSink {
 public:
  virtual ~EventSink() = default;
  virtual void Send(const v1::SessionEvent& event) = 0;
  // Nothing follows; Control has let go of the sink. OK after a job's orderly end.
  virtual void End(const absl::Status& status) = 0;
};
using StreamId = std::uint64_t;
using LoadId = std::uint64_t;

// Where a snapshot's parts go: one ReadSnapshot stream.
class SnapshotSink {
 public:
  virtual ~SnapshotSink() = default;
  // One part; the next comes after SnapshotPartSent.
  virtual void Send(const v1::SnapshotPart& part) = 0;
  // Nothing follows; Control has let go of the sink. OK: that was all of it.
  virtual void End(const absl::Status& status) = 0;
};

// The staging slots of one lane: slot i is slot_header_bytes (of the options) and then slot_bytes.
struct LaneStaging {
  std::byte* data = nullptr;
  std::uint32_t slot_count = 0;
  std::uint32_t slot_bytes = 0;
  std::shared_ptr<const void> owner;
};

class PageTaker;  // server/control/jobs/page_taker.h

// Becomes true once; then control's doorbell is rung.
using DoneFlag = std::shared_ptr<const std::atomic<bool>>;

// Told of the memory that a job's replies are sent from, so that devices can be made to know it.
// Called with Control's lock held.
class JobMemoryListener {
 public:
  virtual ~JobMemoryListener() = default;
  // The job's from now on, until OnReleased; `owner` keeps it for longer. Whatever takes time is
  // done elsewhere: says when it is, or null if there is nothing to do.
  virtual DoneFlag OnParameters(Incarnation incarnation, std::byte* data, std::size_t bytes,
                                std::shared_ptr<const void> owner) = 0;
  // The same for what core loop `core` sends to other racks' beside parameters: partial sums.
  virtual DoneFlag OnSums(Incarnation incarnation, CoreIndex core, std::byte* data,
                          std::size_t bytes, std::shared_ptr<const void> owner) = 0;
  // Says when nothing of it is held any more, or null if nothing is.
  virtual DoneFlag OnReleased(Incarnation incarnation) = 0;
};

class Control {
 public:
  Control(const Clock& clock, Random& random, std::vector<CoreHandle> cores,
          ControlOptions options);
  ~Control();
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  // Where clients find core `core`'s lanes. Before the first Join; default: the options'.
  void SetLaneEndpoint(CoreIndex core, std::string host, std::uint16_t port);

  // How workers of this host reach the shared-memory listener. Before the first Join; without it
  // nothing is shared, and all memory is ordinary memory.
  void SetSharedMemoryEndpoint(std::string name, std::string boot_id);

  // Before the first Join. Outlives every job.
  void SetMemoryListener(JobMemoryListener& listener);
  // Likewise. Without one, pages are taken and given back by whoever calls, under the lock.
  void SetPageTaker(PageTaker& taker);

  // --- Session (proto/phub/v1/session.proto). peer_address: where the worker calls from. -------
  void GetRack(const v1::GetRackRequest& request, Answer<v1::Rack> answer);
  void Join(const v1::JoinRequest& request, std::string_view peer_address,
            Answer<v1::JoinResponse> answer);
  void Commit(const v1::CommitRequest& request, Answer<v1::CommitResponse> answer);
  void AddKeys(const v1::AddKeysRequest& request, Answer<v1::AddKeysResponse> answer);
  void OpenLanes(const v1::OpenLanesRequest& request, Answer<v1::OpenLanesResponse> answer);
  void Barrier(const v1::BarrierRequest& request, Answer<v1::BarrierResponse> answer);
  void Leave(const v1::LeaveRequest& request, Answer<v1::LeaveResponse> answer);

  // Attend: one stream per session; a newer one ends the older. A failed job's fault is sent again
  // at once, so that a client that reconnects learns it.
  absl::StatusOr<StreamId> AttachStream(std::string_view session_id,
                                        std::shared_ptr<EventSink> sink);
  // Answers through the stream, if the session has one.
  absl::Status Heartbeat(std::string_view session_id, std::uint64_t sequence);
  // The stream broke or was closed; ignored if it is no longer the session's.
  void DetachStream(std::string_view session_id, StreamId stream);

  void GetVersions(const v1::GetVersionsRequest& request, Answer<v1::GetVersionsResponse> answer);

  // LoadState: what the first message of the call says, then every message (the first one, too),
  // then the end of the client's side, which is answered. A load that failed says why at its next
  // part.
  absl::StatusOr<LoadId> BeginLoad(const v1::LoadStateRequest& first);
  absl::Status LoadPart(LoadId load, const v1::LoadStateRequest& part);
  void FinishLoad(LoadId load, Answer<v1::LoadStateResponse> answer);
  void CancelLoad(LoadId load);  // ignored if it is over
  // After each part of a load into a job that spans racks: what is to be sent to the daemons of
  // other racks, by rack, as parts of a LoadState of theirs. FinishLoad only once they have all
  // taken theirs to the end.
  std::map<std::uint32_t, v1::LoadStateRequest> PartsForRacks(LoadId load);
  void GetLoadedState(const v1::GetLoadedStateRequest& request, Answer<v1::LoadedState> answer);

  // --- Lanes. A listener asks before it welcomes, then hands the connection over. --------------
  // Uses up the nonce. Versions are the listener's to check. `process`: who asks, on a lane in
  // shared memory. `encrypted`: it came through TLS.
  wire::LaneRefusal AdmitLane(const wire::LaneHello& hello,
                              std::optional<PeerProcess> process = std::nullopt,
                              bool encrypted = false);
  // The nonce of the lane that the hello asks for, if one is good now; the hello's own is not
  // looked at, and none is used up.
  std::optional<wire::Nonce> FindNonce(const wire::LaneHello& hello) const;
  // After AdmitLane said kNone. Destroys the connection if the lane has no place any more (the job
  // ended meanwhile). Otherwise keeps it until the core loop reports kLaneClosed.
  void AttachLane(const wire::LaneHello& hello, std::unique_ptr<transport::Connection> connection,
                  std::uint8_t transport_index, std::string_view transport_name,
                  std::string_view peer_address);

  // Of a lane in shared memory that AdmitLane has let in: what it receives into and shares.
  absl::StatusOr<transport::LaneMemory> SharedLaneMemory(const wire::LaneHello& hello);
  // Of a lane that AdmitLane has let in.
  absl::StatusOr<LaneStaging> StagingOf(const wire::LaneHello& hello);
  // A batch's memory for the rank that asks. Uses up the nonce.
  wire::LaneRefusal AdmitBatch(const wire::SharedBatchRequest& request, PeerProcess process,
                               transport::BatchMemory& memory);

  // --- Other racks (proto/phub/v1/peer.proto). ------------------------------------------------
  // Before the first Join or envelope. Outlives every job.
  void SetPeerNetwork(PeerNetwork& network);
  // An envelope with `rack` and `messages` to be filled in.
  v1::PeerEnvelope MakeEnvelope(RackIndex to) const;
  // FAILED_PRECONDITION says in what the sender does not fit together with this daemon; counts it.
  absl::Status CheckEnvelope(const v1::PeerEnvelope& envelope);
  void OnEnvelope(const v1::PeerEnvelope& envelope, Answer<v1::PeerReceipt> answer);
  void OnReceipt(RackIndex from, const v1::PeerReceipt& receipt);
  // That rack's daemon takes nothing from this one, and said why.
  void OnPeerRefusal(RackIndex from, std::string_view why);
  // Of DialLane: whether the lane is still of use, and what came of it.
  bool LacksPeerLane(const wire::LaneHello& hello, RackIndex to) const;
  void AttachPeerLane(const wire::LaneHello& hello, RackIndex to,
                      std::unique_ptr<transport::Connection> connection,
                      std::uint8_t transport_index, std::string description);
  void PeerLaneFailed(const wire::LaneHello& hello, RackIndex to, const absl::Status& why);

  // Of racks whose topology is measured. Rack 0 needs a surveyor, before the first Join or
  // envelope; it outlives every job. See rack_survey.h.
  void SetSurveyor(Surveyor& surveyor);
  void OnSurvey(const absl::StatusOr<MeasuredTopology>& surveyed);
  // An operator says what new jobs are planned for. FAILED_PRECONDITION: it is configured, or this
  // is not rack 0's daemon. INVALID_ARGUMENT: it is no topology that probes of these racks find.
  absl::Status ApplyTopology(std::string_view text, std::int64_t unix_ns);
  TopologyState DescribeTopology() const;

  // --- Admin (proto/phub/v1/admin.proto). ------------------------------------------------------
  void GetServer(const v1::GetServerRequest& request, Answer<v1::ServerInfo> answer);
  void ListJobs(const v1::ListJobsRequest& request, Answer<v1::ListJobsResponse> answer);
  void GetJob(const v1::GetJobRequest& request, Answer<v1::JobInfo> answer);
  void ListStalls(const v1::ListStallsRequest& request, Answer<v1::ListStallsResponse> answer);
  void GetStats(const v1::GetStatsRequest& request, Answer<v1::GetStatsResponse> answer);
  // The daemon in numbers, for the metrics port.
  MetricsSample Sample() const;
  void DrainServer(const v1::DrainServerRequest& request, Answer<v1::ServerInfo> answer);
  void UndrainServer(const v1::UndrainServerRequest& request, Answer<v1::ServerInfo> answer);
  void EvictJob(const v1::EvictJobRequest& request, Answer<v1::JobInfo> answer);
  void GetJobVersions(const v1::GetJobVersionsRequest& request,
                      Answer<v1::GetVersionsResponse> answer);
  void BeginSnapshot(const v1::BeginSnapshotRequest& request, Answer<v1::Snapshot> answer);
  // Whom to pass a call on to that names a rack; nobody: it is for this daemon.
  absl::StatusOr<std::optional<RackIndex>> RackToAsk(const v1::RackChoice& choice) const;
  // Parts go to the sink, one at a time, until its End. On an error the sink is not used.
  absl::Status ReadSnapshot(const v1::ReadSnapshotRequest& request,
                            std::shared_ptr<SnapshotSink> sink);
  // The reader took its part, and may get the next one; or it is gone. Ignored if the sink is not
  // the snapshot's reader any more.
  void SnapshotPartSent(std::string_view snapshot_id, const SnapshotSink* sink);
  void CancelSnapshot(std::string_view snapshot_id, const SnapshotSink* sink);
  void ReportSavedState(const v1::ReportSavedStateRequest& request,
                        Answer<v1::ReportSavedStateResponse> answer);
  // The iteration of a snapshot that may be reported now.
  absl::StatusOr<std::uint64_t> IterationReadOut(const v1::ReportSavedStateRequest& request) const;

  // --- Tenants. Who may call is decided before (server/control/rpc/access.h).
  // ---------------------- Adds it, or changes its quota and whether it is suspended, from now on;
  // weight and bandwidth of jobs that run, too. The default tenant is there from the start.
  void SetTenant(const Tenant& tenant);
  // FAILED_PRECONDITION names the jobs that it still has. OK if it is not there.
  absl::Status RemoveTenant(const std::string& name);
  Usage UsageOf(const std::string& tenant) const;
  std::uint64_t PushedBytesOf(const std::string& tenant) const;  // ever, to this daemon
  std::uint64_t MemoryLimitOf(const std::string& tenant) const;  // bytes; 0: it is not there
  // Whose session or snapshot it is; nothing if it is not known.
  std::optional<std::string> TenantOfSession(std::string_view session_id) const;
  std::optional<std::string> TenantOfSnapshot(std::string_view snapshot_id) const;
  // Of calls that were refused before they came here.
  void Count(ControlCounter counter, std::uint64_t value = 1);

  // --- Time and the core loops. ----------------------------------------------------------------
  // Takes the core loops' events and acknowledgements, runs the timers. Call it when a core loop
  // pushed an event or executed a command, and at NextDeadline().
  void Poll();
  // When Poll wants to be called next at the latest; INT64_MAX if nothing is pending. To be asked
  // after every call: a Poll that comes much later was late itself, and lets others off.
  TimeNs NextDeadline();

  // --- Ending. ---------------------------------------------------------------------------------
  // The daemon stops: no new jobs from now on; sessions are told. What still runs after `grace` is
  // failed by name. There is no way back.
  void Drain(DurationNs grace);
  // How long an administrator's drain lets jobs run on, when he does not say, from now on.
  void SetDrainTimeout(DurationNs timeout);
  // Draining, and no job is left, in any core loop.
  bool Drained() const;

  // Reserved by all jobs. 0 once every job has ended.
  std::uint64_t memory_bytes() const;
  std::size_t job_count() const;  // running or being torn down

  struct State;  // server/control/state.h, for Control's own parts only

 private:
  std::unique_ptr<State> state_;
};

}  // namespace phub::server
