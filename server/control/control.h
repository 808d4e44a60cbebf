// The state machine of the control plane: the ranks, keys and lanes of each job, the liveness of
// the workers, and how jobs end. It exchanges the messages of proto/phub/v1 and sends commands to
// core loops (server/core/commands.h). It uses no threads, gRPC, locks or wall clock, so the same
// object runs behind gRPC in phubd (server/control/rpc/grpc_server.h) and inside the deterministic
// simulation.
//
// Control owns its parts, runs their timers (Poll) and passes them the events of the core loops;
// callers use the parts. Each folder is a room. Rooms from the bottom up (a room includes only its
// own headers and those of rooms below it):
//   jobs        runs of jobs, their sessions, how they end    lanes       lanes and shared memory
//   keys        keys and their placement                      ranks       joining, seats, liveness
//   checkpoint  saving and loading training state             racks       jobs that span racks
//   admin       queries of administrators, metrics, tenants
//
// Threads: one at a time. Threads that share it hold a lock (ports/control_thread.h).
// Answers: every call is answered through its callback exactly once, either before the call returns
// or from a later call to any part (mostly Poll). Callbacks and sinks must not call back into
// Control. A call that concerns the core loops is answered only after every core loop has
// acknowledged it: otherwise a gradient could arrive before its key.
//
// Core loops and memory: Control builds and owns the shards and key batches of
// server/core/job_shard.h, and frees them when every core loop has reported kJobEnded. Destroying
// Control frees them immediately, so the core loops must have stopped before.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/random.h"
#include "server/control/answers.h"
#include "server/control/control_options.h"
#include "server/control/control_turns.h"
#include "server/control/core_link.h"
#include "server/control/counters.h"

namespace phub::server {

class Admin;
class Joins;
class Barriers;
class Draining;
class HostMemory;
class JobDumps;
class JobTraces;
class KeyRemovals;
class Keys;
class Lanes;
class Liveness;
class Loads;
class LocalRack;
class Metrics;
class PeerLanes;
class PeerNetwork;
class RackMessages;
class RankMemories;
class Seats;
class Snapshots;
class StallReports;
class SumNetwork;
class SumStreams;
class Tenants;
class TopologySurvey;
class Versions;

struct Job;

class Control {
 public:
  Control(const Clock& clock, Random& random, std::vector<CoreHandle> cores,
          ControlOptions options);
  ~Control();
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  // --- Calls of workers (proto/phub/v1/session.proto).
  LocalRack& local_rack();
  Joins& joins();
  Seats& seats();
  Keys& keys();
  KeyRemovals& key_removals();
  Barriers& barriers();
  Liveness& liveness();
  Versions& versions();
  Loads& loads();

  // --- The listeners of lanes.
  Lanes& lanes();
  RankMemories& rank_memories();
  HostMemory& host_memory();
  SumStreams& sum_streams();

  // --- Other racks (proto/phub/v1/peer.proto).
  RackMessages& rack_messages();
  PeerLanes& peer_lanes();
  TopologySurvey& survey();

  // --- Administrators (proto/phub/v1/admin.proto, tenants.proto).
  Admin& admin();
  Snapshots& snapshots();
  StallReports& stall_reports();
  JobDumps& job_dumps();  // ReportDump: a call of workers
  JobTraces& job_traces();
  Metrics& metrics();
  Draining& draining();
  Tenants& tenants();

  // --- Who takes the lock, and what runs before a call reaches a part.
  ControlTurns& turns();
  ControlCounters& counters();

  // How daemons of other racks are reached; must outlive every job. Call it before the first Join.
  void SetPeerNetwork(PeerNetwork& network);
  // How aggregators that sum are reached; must outlive every job. Call it before the first Join.
  void SetSumNetwork(SumNetwork& network);
  // Sets the address where clients open lanes to a core (default: lane_host and lane_port of the
  // options). Call it before the first Join.
  void SetLaneEndpoint(CoreIndex core, std::string host, std::uint16_t port);

  // Handles the events and acknowledgements of the core loops and runs the timers. Call it when a
  // core loop pushed an event or executed a command, and at NextDeadline().
  void Poll();
  // The latest time for the next Poll; INT64_MAX if nothing is pending. Query it after every call.
  // If Poll runs much later than this, control was late itself and extends the liveness deadlines
  // of its peers.
  TimeNs NextDeadline();

  // Memory reserved by all jobs; 0 after every job has ended.
  std::uint64_t memory_bytes() const;
  std::size_t job_count() const;  // running or being torn down

  // Aborts if an invariant of docs/internals/invariants.md is broken. Poll calls it in checked
  // builds; tests call it between calls.
  void CheckInvariants() const;

 private:
  struct Parts;

  void PollJob(Job& job, TimeNs now);
  void HandleEvent(CoreIndex core, const Event& event);
  void HandleFault(Job& job, CoreIndex core, const Event& event);
  TimeNs NextTimer(const Job& job) const;
  TimeNs NoteTimers();

  std::unique_ptr<Parts> parts_;
  TimeNs polled_at_;
  TimeNs wake_at_;  // the latest time for the next Poll
};

}  // namespace phub::server
