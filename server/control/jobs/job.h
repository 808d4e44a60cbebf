// What control knows of one run of a job: its options, members, keys, the shards it lent to the
// core loops, and the calls that wait for an answer. Data with invariants; the rules are in the
// classes of the rooms around it. Owned by the JobTable; under control's lock.
//
// Life: kRunning -> kFailed or kEnded (no call is pending from here on) -> kEndJob sent to every
// core loop -> released (every core loop said kJobEnded: shards, batches and memory are gone) ->
// remembered for a while, so that late calls and administrators learn what became of it.
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
#include "server/control/jobs/batch_parameters.h"
#include "server/control/jobs/granted_nonce.h"
#include "server/control/jobs/job_exchange.h"
#include "server/control/jobs/lent_memory.h"
#include "server/control/jobs/memory_listener.h"
#include "server/control/jobs/prefaulter.h"
#include "server/control/jobs/rank_memory.h"
#include "server/core/job_shard.h"
#include "server/metrics/sample.h"
#include "server/placement/placement.h"
#include "server/tenant/ledger.h"

namespace phub::server {

inline constexpr TimeNs kNever = std::numeric_limits<TimeNs>::max();

// The options a job runs under, defaults filled in.
struct JobSettings {
  std::uint32_t world_size = 1;
  std::uint32_t chunk_bytes = 0;
  std::uint32_t staging_bytes_per_lane = 0;
  LossPolicy on_loss = LossPolicy::kFail;
  DurationNs wait_timeout = 0;  // kWait: how long a rank may be gone
  bool restart = false;         // kWait: a new process may take a rank over
  Screening screening = Screening::kReport;
  bool apply_iteration = false;
  double clip_norm = 0.0;  // apply_iteration; 0: gradients are not clipped
  bool skip_nonfinite = false;
  std::vector<std::uint32_t> daemon_cores;  // core loops of each daemon of the rack
  // Jobs that span racks; else empty and 0. world_size is then of this rack, as ranks count from 0
  // here.
  std::string plan;                // as the ranks asked for it
  std::uint32_t racks = 0;         // how many
  std::uint32_t rank_base = 0;     // this rack's first rank in the job
  std::uint32_t ranks_of_job = 0;  // of all racks
};

// The place of one rank's lane to one core loop.
struct LanePlace {
  GrantedNonce nonce;
  std::unique_ptr<transport::Connection> connection;  // from AttachLane until kLaneClosed
  // Lanes that a newer one replaced (policy wait), until the core loop has closed them.
  std::vector<std::unique_ptr<transport::Connection>> replaced;
  std::shared_ptr<const LentMemory> staging;  // slots_per_lane * chunk_bytes, for the next lane
  // What lanes that are not closed yet receive into: a rank that started anew has other memory.
  std::vector<std::pair<const transport::Connection*, std::shared_ptr<const LentMemory>>>
      staging_in_use;
  std::string description;  // "tcp 10.0.0.5:40112", of the last lane
  std::string loss;         // why the last lane closed; empty if none ever did
  bool lost = false;  // policy wait: it closed under a rank that has not left, none came since
};

struct Member {
  // kReserved: joined here, and not yet sure of its place in the whole rack (Commit).
  // kLost: policy wait; it may come back until awaited_until.
  enum class State : std::uint8_t { kAwaited, kReserved, kLive, kLost, kLeft, kDead };
  State state = State::kAwaited;
  std::string host;
  std::uint32_t pid = 0;
  std::string address;
  std::string session_id;
  TimeNs last_heard = 0;       // 0: never
  std::uint32_t forgiven = 0;  // lapses of control's own since then; see Liveness::ForgiveSilence
  std::shared_ptr<EventSink> sink;  // null: no stream
  StreamId stream = 0;
  bool stream_broke = false;  // it had a stream, and has none now
  bool committed = false;     // its place stood once: losing it is the job's business
  bool silent = false;        // policy wait: not heard of for liveness_timeout
  TimeNs lost_since = 0;      // kLost
  TimeNs awaited_until = 0;   // kLost
  std::string absence;        // kLost: what is known of it
  std::uint32_t restarts = 0;
  // Sessions of processes that this seat was taken from, oldest first; the newest are remembered.
  std::vector<std::string> former_sessions;
  std::uint32_t next_batch = 0;
  std::map<std::uint64_t, Answer<v1::BarrierResponse>> barriers;  // waits in these, by number
  std::vector<LanePlace> lanes;                                   // [core]
  RankMemory memory;                                              // what it shares with this daemon

  // Has a place in the job now, whether or not it is heard of.
  bool present() const { return state == State::kLive || state == State::kLost; }
};
const char* ToString(Member::State state);

// A batch of keys: the first rank to send it decided.
struct BatchRecord {
  Rank first{};
  std::uint32_t first_key = 0;
  std::vector<v1::KeySpec> keys;
  std::vector<Ticket> tickets;  // [core]; empty until it is handed out
  v1::AddKeysResponse placements;
  std::vector<std::shared_ptr<KeyBatch>> parts;  // [core]; freed when the job is released
  ParameterLayout layout;
  BatchParameters parameters;   // what the parts point into
  PagesFlag pages;              // of all that; null: taken
  std::vector<DoneFlag> known;  // to devices
};

// A call that is answered once the core loops have acknowledged.
struct PendingCall {
  std::vector<Ticket> tickets;  // [core]
  std::function<void()> succeed;
  std::function<void(const absl::Status&)> fail;
  // So many batches of keys must be there; of jobs that span racks, in every rack.
  bool awaits_racks = false;
  std::uint32_t batches = 0;
  std::vector<DoneFlag> done = {};  // these, too, are waited for
  PagesFlag pages = {};             // and these; null: taken
};

// A question to every core loop about a job's stalls. The reports stay until all are answered, as
// core loops write into them.
struct StallQuery {
  std::vector<std::unique_ptr<StallReport>> reports;  // [core]
  std::vector<bool> answered;                         // [core]
  std::size_t answered_count = 0;
  TimeNs deadline = 0;
  std::function<void(StallQuery&)> done;  // once: complete or out of time; then empty
  bool complete() const { return answered_count == reports.size(); }
};

// A rank that is lost, while control still asks which key waits for it.
struct Diagnosis {
  enum class Cause : std::uint8_t { kSilent, kLaneLost, kAwaitedInVain };
  Cause cause{};
  Rank rank{};
  CoreIndex core{};  // kLaneLost: whose lane
  std::string loss;  // kLaneLost: how
  TimeNs deadline = 0;
  TimeNs stream_grace = 0;  // kLaneLost: until then its heartbeat stream may turn out broken too
  bool reported = false;    // the stall query is over
  std::string key;
  std::uint64_t iteration = 0;
};

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
  std::vector<Member> members;  // [rank]

  std::vector<v1::KeySpec> keys;  // [key index]; gone after the release
  std::size_t key_count = 0;      // stays
  std::set<std::string> key_names;
  std::vector<BatchRecord> batches;
  std::size_t batches_handed_out = 0;       // the first of them: core loops have them, or soon will
  OwnBins own_bins;                         // this daemon's core loops among the rack's
  std::vector<PlacementBin> bins;           // of the rack, in the order that settles ties
  std::vector<std::uint32_t> chunk_counts;  // [bin]
  std::uint64_t parameter_bytes = 0;
  std::uint64_t barriers_done = 0;  // numbers below are complete
  std::uint64_t memory_bytes = 0;   // reserved; kept for the record after the release

  std::vector<std::unique_ptr<JobShard>> shards;  // [core]
  std::vector<Ticket> add_job_tickets;            // [core]
  std::list<PendingCall> pending;
  std::list<StallQuery> queries;
  std::shared_ptr<JobCheckpoints> checkpoints;   // made with the job
  std::vector<std::function<void()>> on_closed;  // called once, when its memory was given back
  std::optional<Diagnosis> diagnosis;
  TimeNs nobody_since = 0;  // no live member since; 0: there is one

  // Jobs that span racks; else null.
  std::shared_ptr<RackRun> rack_run;
  std::shared_ptr<JobExchange> exchange;

  std::string nonfinite_first;  // "rank 2 (node5), key fc1, iteration 412": the first such sum
  WorkTotals totals;            // of a job that was released
  v1::Fault fault;              // kFailed
  TimeNs ended_at = 0;          // left kRunning
  TimeNs end_commands_at = 0;   // left kRunning: when kEndJob goes out
  bool end_commands_sent = false;
  std::size_t cores_ended = 0;
  std::vector<DoneFlag> let_go;  // released: nobody holds memory of its any more once all are set

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

// The rank's process was heard of.
void NoteHeard(Member& member, TimeNs now);

// "rank 2 (node5, pid 4711)"; "rank 2" before it joined.
std::string DescribeRank(const Job& job, Rank rank);
// "rank 2 (node5)"
std::string DescribeRankBriefly(const Job& job, Rank rank);
// A key's name, "key number 7" for one that is not there.
std::string DescribeKey(const Job& job, KeyIndex key);

}  // namespace phub::server
