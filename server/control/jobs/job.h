// The state of one run of a job: its options, members, keys, the shards that it lends to the core
// loops, and the calls that wait for an answer. Data; the classes in the folders of control hold
// the rules. Owned by the JobTable; under control's lock.
//
// Life of a run:
//   kRunning
//   kFailed or kEnded  no call is pending from here on
//   ending             kEndJob was sent to every core loop
//   released           every core loop has reported kJobEnded; shards, batches and memory are freed
//   remembered         kept for a while, so that late calls and administrators learn how it ended
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/control/answers.h"
#include "server/control/context.h"
#include "server/control/core_link.h"
#include "server/control/jobs/batch_record.h"
#include "server/control/jobs/granted_nonce.h"
#include "server/control/jobs/group.h"
#include "server/control/jobs/job_exchange.h"
#include "server/control/jobs/job_sums.h"
#include "server/control/jobs/key_table.h"
#include "server/control/jobs/lent_memory.h"
#include "server/control/jobs/memory_listener.h"
#include "server/control/jobs/prefaulter.h"
#include "server/control/jobs/rank_memory.h"
#include "server/core/job_shard.h"
#include "server/core/key_removal.h"
#include "server/metrics/sample.h"
#include "server/placement/placement.h"
#include "server/tenant/ledger.h"

namespace phub::server {

inline constexpr TimeNs kNever = std::numeric_limits<TimeNs>::max();

// The options of a job, with defaults filled in.
struct JobSettings {
  std::uint32_t world_size = 1;
  std::uint32_t chunk_bytes = 0;
  std::uint32_t staging_bytes_per_lane = 0;
  LossPolicy on_loss = LossPolicy::kFail;
  DurationNs wait_timeout = 0;  // kWait: how long a rank may be lost
  bool restart = false;         // kWait: a new process may take over a rank
  DurationNs join_timeout = 0;  // how long ranks may take to join; 0: no limit
  Screening screening = Screening::kReport;
  bool apply_iteration = false;
  double clip_norm = 0.0;  // apply_iteration; 0: gradients are not clipped
  bool skip_nonfinite = false;
  std::uint32_t sum_block = 0;              // sum=fixed: elements of a block; 0: sum=float
  std::vector<std::uint32_t> daemon_cores;  // core loops of each daemon of the rack
  // Only for jobs that span racks, otherwise empty and 0. In such a job world_size counts the ranks
  // of this rack, and control numbers them from 0.
  std::string plan;                // as the ranks requested it
  std::uint32_t racks = 0;         // the number of racks
  std::uint32_t rank_base = 0;     // the first rank of this rack in the job
  std::uint32_t ranks_of_job = 0;  // the number of ranks in all racks
};

// The state of one rank's lane to one core loop.
struct LanePlace {
  GrantedNonce nonce;
  std::unique_ptr<transport::Connection> connection;  // from AttachLane until kLaneClosed
  // Policy wait: older lanes that were replaced, until the core loop has closed them.
  std::vector<std::unique_ptr<transport::Connection>> replaced;
  std::shared_ptr<const LentMemory> staging;  // slots_per_lane * chunk_bytes, for the next lane
  // The staging memory of each lane that is not closed yet. A restarted rank has new memory.
  std::vector<std::pair<const transport::Connection*, std::shared_ptr<const LentMemory>>>
      staging_in_use;
  std::string description;  // the last lane: "tcp 10.0.0.5:40112"
  std::string loss;         // why the last lane closed; empty if none ever did
  bool lost = false;        // policy wait: the lane closed, and the rank has not opened a new one
};

// A rank waits in a barrier.
struct PendingBarrier {
  Answer<v1::BarrierResponse> answer;
  TimeNs since = 0;
};

struct Member {
  // kReserved: joined this daemon, but has not committed its place in the whole rack yet.
  // kLost: policy wait; the rank may return until awaited_until.
  enum class State : std::uint8_t { kAwaited, kReserved, kLive, kLost, kLeft, kDead };
  State state = State::kAwaited;
  std::string host;
  std::uint32_t pid = 0;
  std::string address;
  std::string session_id;
  TimeNs last_heard = 0;            // 0: never
  std::uint32_t forgiven = 0;       // extensions since then; see Liveness::ForgiveSilence
  std::shared_ptr<EventSink> sink;  // null: no stream
  StreamId stream = 0;
  TimeNs stream_ended_at = 0;  // its last stream; 0: it has one, or never had one
  bool committed = false;      // it has committed its place, so losing it affects the job
  bool silent = false;         // policy wait: no heartbeat for liveness_timeout
  bool lanes_kept = false;     // judged by its lanes (ranks/lane_liveness.h), not by heartbeats
  bool opens_lanes = false;    // it will be: not all of its lanes have been open yet
  std::string lane_silence;    // policy wait: how its lanes are silent; empty: they are not
  TimeNs lost_since = 0;       // kLost
  TimeNs awaited_until = 0;    // kLost
  std::string absence;         // kLost: why
  std::uint32_t restarts = 0;
  // The sessions of earlier processes that lost this seat, oldest first. Only the newest are kept.
  std::vector<std::string> former_sessions;
  bool answers_dumps = false;  // its client knows DumpRequested
  std::uint32_t next_batch = 0;
  std::map<std::uint64_t, PendingBarrier> barriers;  // by number
  std::vector<LanePlace> lanes;                      // [core]
  RankMemory memory;                                 // shared with this daemon

  // Whether the rank has a place in the job, even if its process is lost.
  bool present() const { return state == State::kLive || state == State::kLost; }
};
const char* ToString(Member::State state);

// The ranks' call of RemoveKeys; the rules are in keys/key_removals.h.
struct RemovalRun {
  // kGathering: not every rank has called, or other work still uses numbers of keys.
  // kUnlinking: some core loop has not reported kKeysRemoved.
  // kFreeing: the job does not have the keys any more; their memory is being freed.
  enum class State : std::uint8_t { kGathering, kUnlinking, kFreeing };
  State state = State::kGathering;
  Rank first{};  // the rank that called first
  std::uint32_t first_batch = 0;
  std::vector<Answer<v1::RemoveKeysResponse>> answers;  // [rank]; empty: it has not called
  std::size_t called_count = 0;
  KeyRemoval removal;  // for the core loops
  std::size_t cores_left = 0;
  std::vector<std::shared_ptr<const void>> unwanted;  // memory that ranks shared
  bool names_free = false;                            // the keys' names may be used again
  DoneFlag memory_free;                               // null: it is
  std::size_t key_count = 0;
  std::uint64_t bytes = 0;              // charged to the job
  std::vector<std::uint64_t> of_ranks;  // [rank]: the part of `bytes` that the rank shared
};

// A call that is answered after the core loops have acknowledged its commands.
struct PendingCall {
  std::vector<Ticket> tickets;  // [core]
  std::function<void()> succeed;
  std::function<void(const absl::Status&)> fail;
  // The first `batches` batches of keys must be in place; in every rack if awaits_racks is set.
  bool awaits_racks = false;
  std::uint32_t batches = 0;
  std::vector<DoneFlag> done = {};  // all of them must be set, too
  PagesFlag pages = {};             // must be prefaulted, too; null: they are
  // A batch of a group, which the core loops must have, too; null: none.
  std::shared_ptr<const BatchRecord> of_group = {};
  // The first `group_batches` batches of this group must be in all its racks; null: none.
  std::shared_ptr<const Group> in_racks = {};
  std::uint32_t group_batches = 0;
};

// A query to every core loop for the stalled rounds of a job. Core loops write into the reports, so
// the reports must live until all core loops have answered.
struct StallQuery {
  std::vector<std::unique_ptr<StallReport>> reports;  // [core]
  std::vector<bool> answered;                         // [core]
  std::size_t answered_count = 0;
  TimeNs deadline = 0;
  std::function<void(StallQuery&)> done;  // called once, when complete or timed out; then empty
  bool complete() const { return answered_count == reports.size(); }
};

// A lost rank, while control still queries which key waits for it.
struct Diagnosis {
  enum class Cause : std::uint8_t { kSilent, kLaneSilent, kLaneLost, kAwaitedInVain };
  Cause cause{};
  Rank rank{};
  CoreIndex core{};  // kLaneLost, kLaneSilent: the core loop of the lane
  // kLaneLost: why. kSilent, kLaneSilent: completes "rank 2 ..."; empty: heartbeats are missing.
  std::string loss;
  TimeNs deadline = 0;
  TimeNs begun_at = 0;
  TimeNs stream_grace = 0;  // kLaneLost: until then its stream may end or return
  bool reported = false;    // the stall query is answered
  std::string key;
  std::uint64_t iteration = 0;
};

// A process that wanted to be a rank and was refused.
struct RefusedProcess {
  std::uint32_t rank = 0;  // numbered over the whole job
  std::string host;
  std::uint32_t pid = 0;
  std::string why;
};
// See ranks/arrivals.h.
struct ArrivalNotes {
  TimeNs noticed_at = 0;                  // the last notice of missing ranks; 0: none yet
  std::optional<RefusedProcess> refused;  // the last one that wanted to be a missing rank
  std::optional<RefusedProcess> twin;     // the last one that wanted to be a rank that is there
  std::vector<std::string> hints;         // in the last notice
};

struct KeyBuild;        // server/control/keys/key_build.h
struct JobCheckpoints;  // server/control/checkpoint/checkpoints.h
struct RackRun;         // server/control/racks/rack_run.h

struct Job {
  enum class State : std::uint8_t { kRunning, kFailed, kEnded };
  State state = State::kRunning;
  Account account;  // tenant, name, incarnation
  JobSettings settings;
  ShardConfig config;
  Rank created_by{};
  TimeNs created_at = 0;
  std::uint64_t number = 0;     // in the order of creation, from 1
  ArrivalNotes arrivals;        // ranks that have not joined
  TimeNs late_look_at = 0;      // see LateRounds; 0: it has not looked yet
  std::vector<Member> members;  // [rank]

  KeyTable keys;              // [key index]; empty after the release
  std::size_t key_count = 0;  // kept after the release
  // Used only by the build of a batch, one at a time.
  std::shared_ptr<std::set<std::string>> key_names = std::make_shared<std::set<std::string>>();
  std::shared_ptr<KeyBuild> key_build;             // the next batch is being built; else null
  std::vector<std::function<void()>> key_waiters;  // AddKeys calls that wait for key_build
  std::vector<BatchRecord> batches;
  std::size_t batches_handed_out = 0;  // the first of `batches`, which were sent to the core loops
  OwnBins own_bins;                    // this daemon's core loops among those of the rack
  std::vector<PlacementBin> bins;      // the bins of the rack, in the order that breaks ties
  // Jobs that span racks: loads of the keys of groups, which `bins` does not have because other
  // racks do not know them. [as bins]
  std::vector<std::uint64_t> group_loads;
  std::vector<NumberSpace> chunk_numbers;  // [bin]
  // Groups with keys, in the order in which they were made.
  std::vector<std::shared_ptr<Group>> groups;
  std::uint64_t groups_made = 0;
  NumberSpace group_key_numbers;          // from kGroupKeysFirst on
  const KeyRemoval* unlinking = nullptr;  // the core loops execute it; one at a time
  std::uint64_t parameter_bytes = 0;
  std::uint32_t removals_done = 0;      // calls of RemoveKeys that succeeded, on every rank
  std::shared_ptr<RemovalRun> removal;  // the call in progress; null: none
  std::uint64_t barriers_done = 0;      // barriers with lower numbers are complete
  std::uint64_t memory_bytes = 0;       // reserved; kept after the release

  std::vector<std::unique_ptr<JobShard>> shards;  // [core]
  std::vector<Ticket> add_job_tickets;            // [core]
  std::vector<JobSums> sums;                      // [core]; empty unless sum=fixed
  std::list<PendingCall> pending;
  std::list<StallQuery> queries;
  std::shared_ptr<JobCheckpoints> checkpoints;  // created with the job
  std::size_t long_work = 0;  // that other threads do; the record stays until it is done
  std::vector<std::function<void()>>
      on_closed;  // called once, when it is released and its account closed
  std::optional<Diagnosis> diagnosis;
  TimeNs nobody_since = 0;  // no member is present since then; 0: there is one

  // Only for jobs that span racks, otherwise null.
  std::shared_ptr<RackRun> rack_run;
  std::shared_ptr<JobExchange> exchange;

  std::string nonfinite_first;  // "rank 2 (node5), key fc1, iteration 412"
  WorkTotals totals;            // set at the release
  v1::Fault fault;              // kFailed
  TimeNs ended_at = 0;          // when the job left kRunning
  bool unused = false;          // kEnded: no rank ever committed its seat on this daemon
  // kFailed, and the ranks are not notified yet, since rack 0 may have recorded another fault first
  // (racks/rack_jobs.h). They are notified at announce_at or earlier.
  bool unannounced = false;
  TimeNs announce_at = 0;
  std::vector<std::function<void()>> on_announced;  // called once
  TimeNs end_commands_at = 0;                       // kFailed, kEnded: when kEndJob is sent
  bool end_commands_sent = false;
  std::size_t cores_ended = 0;
  // Memory that the parts of control gave up at the release; freed with the rest.
  std::vector<std::shared_ptr<const void>> unwanted;
  std::vector<DoneFlag> let_go;  // released: the memory is free when all are set

  const std::string& name() const { return account.job; }
  bool running() const { return state == State::kRunning; }
  bool released() const { return end_commands_sent && shards.empty(); }
};
const char* ToString(Job::State state);

// A rank's place in a job.
struct Seating {
  Job* job = nullptr;
  Rank rank{};
};

// The progress of the core loop that is furthest ahead: of iterations, or of collective keys if the
// job has no others. Null: the job has no core loops.
const RoundProgress* ProgressOf(const Job& job);

// Records that the rank's process sent a heartbeat or another call.
void NoteHeard(Member& member, TimeNs now);
// How long the rank may send neither a heartbeat nor another call. While it opens its lanes, calls
// are the only sign of life, and where all processors are busy they are late by seconds.
DurationNs PatienceWith(const Member& member, DurationNs liveness_timeout);

// "rank 2 (node5, pid 4711)"; "rank 2" before the rank joined.
std::string DescribeRank(const Job& job, Rank rank);
// "rank 2 (node5)"
std::string DescribeRankBriefly(const Job& job, Rank rank);
// Checkpoints need chunks whose numbers have no gaps.
absl::Status CheckNoGroups(const Job& job);

// Whether the job or one of its groups has the key.
bool HasKey(const Job& job, KeyIndex key);
// The members of the group that has the key; null: the key is the whole job's, or does not exist.
const Members* MembersOf(const Job& job, KeyIndex key);
// The batch of a key of the job or of one of its groups; null: the key does not exist.
const BatchRecord* FindBatchOf(const Job& job, KeyIndex key);
// The name of a key, or "number 7" if the key does not exist.
std::string DescribeKey(const Job& job, KeyIndex key);

}  // namespace phub::server
