// The control plane's state machine: who is in which job, with which keys and lanes, who is alive,
// what ends a job. It speaks the messages of proto/phub/v1 and commands core loops
// (server/core/commands.h), and nothing else: no threads, no gRPC, no locks, no wall clock, so the
// same object runs behind gRPC in phubd (server/control/rpc/grpc_server.h) and inside the
// deterministic simulation.
//
// Control itself only owns its parts, gives them their time (Poll) and hands them the core loops'
// events; callers use the parts. Rooms, each a folder, from the bottom up; a room includes its own
// headers and those of rooms below it:
//   jobs        runs of jobs, their sessions, how they end    lanes       lanes and shared memory
//   keys        keys and their placement                      ranks       joining, seats, liveness
//   checkpoint  training state out and in                     racks       jobs that span racks
//   admin       administrators' questions, metrics, tenants
//
// Threads: one at a time. Threads that share it hold a lock (ports/control_thread.h).
// Answers: every call is answered through its callback exactly once, either before the call returns
// or from a later call to any part (mostly Poll). Callbacks and sinks must not call back into
// Control. A call that concerns the core loops is answered only once every core loop has
// acknowledged it: otherwise a gradient could overtake the key that it belongs to.
//
// Core loops and memory: Control builds the shards and key batches of server/core/job_shard.h, owns
// them, and frees them when every core loop has said kJobEnded. Destroying Control frees them
// outright, so the core loops must have stopped by then.
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
#include "server/control/core_link.h"
#include "server/control/counters.h"

namespace phub::server {

class Admin;
class Joins;
class Barriers;
class Draining;
class HostMemory;
class Keys;
class Lanes;
class Liveness;
class Loads;
class LocalRack;
class Metrics;
class PeerLanes;
class RackMessages;
class RankMemories;
class Seats;
class Snapshots;
class StallReports;
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
  Barriers& barriers();
  Liveness& liveness();
  Versions& versions();
  Loads& loads();

  // --- The listeners of lanes.
  Lanes& lanes();
  RankMemories& rank_memories();
  HostMemory& host_memory();

  // --- Other racks (proto/phub/v1/peer.proto).
  RackMessages& rack_messages();
  PeerLanes& peer_lanes();
  TopologySurvey& survey();

  // --- Administrators (proto/phub/v1/admin.proto, tenants.proto).
  Admin& admin();
  Snapshots& snapshots();
  StallReports& stall_reports();
  Metrics& metrics();
  Draining& draining();
  Tenants& tenants();

  // Where clients find core `core`'s lanes. Before the first Join; default: the options'.
  void SetLaneEndpoint(CoreIndex core, std::string host, std::uint16_t port);
  // Calls that were refused before they came to a part.
  void Count(ControlCounter counter, std::uint64_t value = 1);

  // Takes the core loops' events and acknowledgements, runs the timers. Call it when a core loop
  // pushed an event or executed a command, and at NextDeadline().
  void Poll();
  // When Poll wants to be called next at the latest; INT64_MAX if nothing is pending. To be asked
  // after every call: a Poll that comes much later was late itself, and forgives others their
  // silence.
  TimeNs NextDeadline();

  // Reserved by all jobs. 0 once every job has ended.
  std::uint64_t memory_bytes() const;
  std::size_t job_count() const;  // running or being torn down

 private:
  struct Parts;

  void PollJob(Job& job, TimeNs now);
  void HandleEvent(CoreIndex core, const Event& event);
  void HandleFault(Job& job, CoreIndex core, const Event& event);
  TimeNs NextTimer(const Job& job) const;
  TimeNs NoteTimers();

  std::unique_ptr<Parts> parts_;
  TimeNs polled_at_;
  TimeNs wake_at_;  // when Poll has to run again at the latest
};

}  // namespace phub::server
