// What a core loop is made of. Its functions are spread by concern: core_loop.cc is the data path,
// core_lanes.cc lanes, faults and events, core_commands.cc what control orders,
// core_exchange.cc jobs that span racks, core_iteration.cc jobs with apply=iteration.
// Everything belongs to the loop's thread, but the queues' other ends and the counters' readers.
#pragma once

#include <array>
#include <vector>

#include "server/core/aggregate/aggregate.h"
#include "server/core/core_loop.h"
#include "server/core/exchange/exchange.h"
#include "server/core/ingest/ingest.h"
#include "server/core/job_shard.h"
#include "server/core/lane_table.h"
#include "server/core/reply/reply.h"
#include "server/core/schedule/fair_queue.h"

namespace phub::server {

inline constexpr std::size_t kTransportsMax = 8;
inline constexpr std::size_t kCompletionsPerPoll = 64;  // bounds the work of one RunOnce
inline constexpr std::size_t kCommandsPerRun = 64;
inline constexpr std::size_t kShardsMax = 1024;
// One run reports at most two events per completion (a fault and a closed lane) and per command,
// and of each shard that a snapshot is whole, that a sum was not finite and that it has ended.
inline constexpr std::size_t kOutboxMax =
    2 * (kCompletionsPerPoll * kTransportsMax + kCommandsPerRun) + 3 * kShardsMax;

struct CoreLoop::State {
  State(CoreIndex core_index, const Clock& the_clock,
        std::span<transport::Transport* const> the_transports)
      : core(core_index),
        clock(the_clock),
        transports(the_transports.begin(), the_transports.end()),
        replies(transports, counters),
        exchanges(transports, counters) {
    PHUB_CHECK(!transports.empty() && transports.size() <= kTransportsMax);
    shards.reserve(kShardsMax);
    outbox.reserve(kOutboxMax);
    lane_tables.resize(transports.size());
  }

  // The run, in order.
  void BeginRun();
  bool FlushEvents();
  bool ExecuteCommands();
  bool PollAll();
  void UpdateHolds();
  bool PollTransport(std::uint8_t transport_index);
  bool FinishRounds();
  bool FlushBacklogs();
  bool AdvanceSnapshots();
  void TellIdle();

  // Data path.
  void OnReceived(JobShard& shard, Rank rank, const transport::ReceivedMessage& message);
  void OnAnswerable(JobShard& shard, Rank rank, const ingest::Verdict& verdict,
                    const transport::ReceivedMessage& message);
  void TakeIn(JobShard& shard, std::uint64_t bytes);
  void OnAsked(JobShard& shard, Rank rank, Chunk& chunk, Iteration version, wire::MessageKind kind);
  void Refuse(JobShard& shard, Rank rank, const ingest::Verdict& verdict,
              const wire::MessageHeader& header);
  void OnGradient(JobShard& shard, Rank rank, Chunk& chunk,
                  const transport::ReceivedMessage& message);
  void RelieveFullLanes(JobShard& shard, Rank rank, Chunk& chunk);
  void CountRound(JobShard& shard, Rank last, const Chunk& chunk);
  void FinishOrQueue(JobShard& shard, Chunk& chunk);
  void Credit(JobShard& shard, const aggregate::FreedSlot& slot);
  void FinishRound(JobShard& shard, Chunk& chunk);
  void ApplyAndComplete(JobShard& shard, Chunk& chunk, const simd::Terms& terms);
  void CompleteRound(JobShard& shard, Chunk& chunk, bool skipped = false);
  void OnDuplicate(JobShard& shard, Rank rank, Chunk& chunk, const wire::MessageHeader& header);

  // Jobs with apply=iteration (core_iteration.cc).
  void SumRound(JobShard& shard, Chunk& chunk);
  void FaultDeparted(JobShard& shard, const Chunk& chunk, Rank rank);
  void OnDecision(JobShard& shard, Rank rank, const wire::MessageHeader& header);
  void ApplySummed(JobShard& shard, Chunk& chunk);

  // Other racks (core_exchange.cc).
  void OnLocalSum(JobShard& shard, Chunk& chunk);
  void OnPeerMessage(JobShard& shard, RackIndex rack, const transport::ReceivedMessage& message);
  void OnExchanged(JobShard& shard, RackIndex rack, const exchange::Verdict& verdict);
  void ApplyTotal(JobShard& shard, Chunk& chunk);
  void TakeResult(JobShard& shard, Chunk& chunk);
  void AttachPeer(const Command& command);
  void OnPeerClosed(const LaneTable::Place& place, const transport::Completion& completion);
  void ClosePeers(JobShard& shard);

  // Lanes.
  void OnClosed(std::uint8_t transport_index, const transport::Completion& completion);
  void LoseLane(JobShard& shard, Rank rank);
  void CountRefusal(FaultCode code);
  void Fault(Event event);
  void TellNonFinite(JobShard& shard);
  void Emit(const Event& event);

  // Commands.
  void Execute(const Command& command);
  void AddJob(JobShard& shard);
  void AddKeys(JobShard& shard, KeyBatch& batch);
  void AttachLane(const Command& command);
  transport::ConnectionId Adopt(const Command& command, bool wanted,
                                std::span<const transport::LandingSlot> landing);
  void OnRankLeft(JobShard& shard, Rank rank);
  void ReportStalls(JobShard& shard, StallReport& report);
  void ReportVersions(JobShard& shard, VersionReport& report, Rank asking);
  void TakeSnapshot(JobShard& shard, StateImage& image);
  void DropSnapshot(JobShard& shard);
  void ReportSnapshot(JobShard& shard);
  void EndJob(JobShard& shard);
  void RetireEndedShards();

  const CoreIndex core;
  const Clock& clock;
  const std::vector<transport::Transport*> transports;
  CoreQueues queues;
  CoreCounters counters;
  reply::ReplyStage replies;
  exchange::ExchangeStage exchanges;
  schedule::FairQueue fair;
  TimeNs now = 0;                      // when this run began
  bool busy = false;                   // the run before this one had work
  std::vector<JobShard*> shards;       // never grows beyond kShardsMax
  std::vector<LaneTable> lane_tables;  // per transport: connection -> (shard, rank)
  std::vector<Event> outbox;           // events of this run that found the queue full
  bool some_shard_ends = false;
  std::array<transport::Completion, kCompletionsPerPoll> completions;
  std::size_t held_count = 0;       // jobs whose lanes are not read for now
  std::size_t snapshot_count = 0;   // shards of which one is being taken
  aggregate::TermList term_list{};  // scratch: 8 KiB that need not be on the stack
  aggregate::FreedSlots freed{};    // scratch
};

}  // namespace phub::server
