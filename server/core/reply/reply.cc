#include "server/core/reply/reply.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "common/base/check.h"
#include "server/core/count_work.h"
#include "server/core/on_core_loop.h"
#include "server/core/reply/bits.h"
#include "server/core/reply/window.h"

namespace phub::server::reply {
ReplyStage::ReplyStage(std::span<transport::Transport* const> transports, CoreCounters& counters)
    : transports_(transports), counters_(counters), connections_{}, own_replies_{} {}

namespace {

Rank RankOfJob(const JobShard& shard, std::uint32_t rank) {
  return Rank{shard.config.rank_base + rank};
}

// Whether the rank will receive what the round makes that its gradient is of.
bool ReceivesRoundOf(const wire::MessageHeader& header, const Chunk& chunk, Rank rank_of_job) {
  if (chunk.is_pooled())
    return header.operation != wire::RoundOperation::kPoolMove || header.root != rank_of_job;
  return chunk.RepliesWithPayloadTo(rank_of_job);
}

}  // namespace

std::byte* ReplyStage::OwnReply(const Lane& lane, SharedAddress address,
                                std::uint32_t bytes) const {
  if (address == SharedAddress{}) return nullptr;
  return transports_[lane.transport_index]->Resolve(lane.connection, address, bytes);
}

bool ReplyStage::NoteReplyAddress(const JobShard& shard, Chunk& chunk, Rank rank,
                                  const wire::MessageHeader& header) {
  PHUB_ON_CORE_LOOP();
  SharedAddress address = header.reply_address;
  if (!ReceivesRoundOf(header, chunk, RankOfJob(shard, rank.value))) address = {};
  chunk.reply_address[chunk.IndexOf(rank)] = address;
  if (address == SharedAddress{}) return true;
  const Lane& lane = shard.lanes[rank.value];
  // The gradient of a pooled key states the type and the size of its reply.
  const std::uint32_t bytes = chunk.is_pooled() ? chunk.PoolBytes(header) : chunk.reply_bytes();
  const ElementType type = chunk.is_pooled() ? header.type : chunk.key->parameter_type;
  if (!transports_[lane.transport_index]->CanPlace(lane.connection, address, bytes)) return false;
  // If the device writes the memory (then OwnReply is null), alignment does not matter here.
  const std::byte* const memory = OwnReply(lane, address, bytes);
  const std::uint32_t alignment = numeric::ElementBytes(type);
  return reinterpret_cast<std::uintptr_t>(memory) % alignment == 0;
}

std::span<std::byte* const> ReplyStage::OwnReplies(const JobShard& shard, const Chunk& chunk) {
  PHUB_ON_CORE_LOOP();
  std::size_t count = 0;
  own_replies_overwrite_ = false;
  for (std::uint32_t member = 0; member < chunk.member_count; ++member) {
    const SharedAddress address = chunk.reply_address[member];
    if (address == SharedAddress{} || !Test(chunk.wants_reply, member)) continue;
    const Lane& lane = shard.lanes[chunk.RankOf(member).value];
    std::byte* const memory = OwnReply(lane, address, chunk.next_reply_bytes());
    if (memory == nullptr) continue;
    own_replies_[count++] = memory;
    own_replies_overwrite_ |= memory == chunk.staged_data[member];
  }
  counters_.Add(CoreCounter::replies_in_pass, count);
  return {own_replies_.data(), count};
}

void ReplyStage::Defer(JobShard& shard, Lane& lane, const Chunk& chunk, Iteration version) {
  std::uint64_t* const bits = version == chunk.applied ? lane.pending_reply : lane.pending_previous;
  if (TestAndSet(bits, chunk.index.value)) return;
  NotePending(lane, chunk.key->level);
  ++shard.reply_backlog;
  counters_.Add(CoreCounter::replies_deferred);
}

bool ReplyStage::PostReply(JobShard& shard, const Chunk& chunk, Iteration version,
                           const std::byte* payload, std::uint8_t transport_index,
                           std::span<const transport::ConnectionId> connections,
                           SharedAddress reply_address) {
  transport::SendRequest request;
  request.header = HeaderFor(shard, wire::MessageKind::kParameters);
  request.header.iteration = version;
  request.header.chunk = chunk.index;
  request.header.slot = SlotIndex{chunk.index.value};  // a worker's landing table has one per chunk
  request.header.key = chunk.key->key;
  request.header.type = chunk.reply_type();
  const std::uint32_t bytes = payload == nullptr ? 0 : chunk.reply_bytes();
  request.header.payload_bytes = bytes;
  request.header.reply_address = reply_address;
  request.payload = {payload, bytes};
  request.connections = connections;
  request.notify_sent = true;
  if (transports_[transport_index]->Post({&request, 1}) == 0) return false;
  counters_.Add(CoreCounter::replies, connections.size());
  counters_.Add(CoreCounter::reply_bytes, connections.size() * bytes);
  CountReplies(shard, chunk, connections.size() * bytes);
  if (payload == chunk.Parameters(version)) {  // not in the rank's own memory
    shard.CountMemory(MemoryWork::kSending, {.read = connections.size() * bytes});
  }
  return true;
}

// Posts to one lane whose window has room; the payload is in the rank's own memory if it named
// some.
bool ReplyStage::PostTo(JobShard& shard, const Chunk& chunk, Rank rank, Iteration version) {
  Lane& lane = shard.lanes[rank.value];
  SharedAddress address = chunk.reply_address[chunk.IndexOf(rank)];
  // The rank may have named it with another push, whose round is shorter than the applied one.
  if (chunk.is_pooled() && address != SharedAddress{} &&
      !transports_[lane.transport_index]->CanPlace(lane.connection, address, chunk.reply_bytes())) {
    address = {};
  }
  const std::byte* payload = OwnReply(lane, address, chunk.reply_bytes());
  if (payload == nullptr && chunk.RepliesWithPayloadTo(RankOfJob(shard, rank.value))) {
    payload = chunk.Parameters(version);
  }
  if (!PostReply(shard, chunk, version, payload, lane.transport_index, {&lane.connection, 1},
                 address)) {
    return false;
  }
  NotePosted(lane, chunk.key->level);
  DropCredit(shard, lane, chunk.index);
  return true;
}

void ReplyStage::SendToRank(JobShard& shard, Chunk& chunk, Rank rank, Iteration version) {
  Lane& lane = shard.lanes[rank.value];
  if (HasWindow(shard, lane, chunk.key->level) && PostTo(shard, chunk, rank, version)) return;
  Defer(shard, lane, chunk, version);
}

// Posts one request for all lanes of one transport whose window has room and whose ranks named no
// memory. Ranks that named memory get a request each, as does the only receiver of a chunk, or the
// only one that receives nothing. If a window is full, the chunk's bit is set.
void ReplyStage::SendToGroup(JobShard& shard, Chunk& chunk, std::uint8_t transport_index) {
  std::array<std::uint32_t, kRanksMax> ranks;
  std::size_t count = 0;
  const bool has_receiver = chunk.receiver != kEveryRank;
  for (std::uint32_t member = 0; member < chunk.member_count; ++member) {
    const std::uint32_t rank = chunk.RankOf(member).value;
    Lane& lane = shard.lanes[rank];
    if (lane.state != Lane::State::kOpen || lane.transport_index != transport_index) continue;
    if (!TestAndClear(chunk.wants_reply, member)) continue;
    const bool is_alone = chunk.RepliesWithPayloadTo(RankOfJob(shard, rank)) == has_receiver;
    if (is_alone || chunk.reply_address[member] != SharedAddress{}) {
      SendToRank(shard, chunk, Rank{rank}, chunk.applied);
    } else if (!HasWindow(shard, lane, chunk.key->level)) {
      Defer(shard, lane, chunk, chunk.applied);
    } else {
      ranks[count] = rank;
      connections_[count++] = lane.connection;
    }
  }
  if (count == 0) return;
  const std::byte* const payload = has_receiver ? nullptr : chunk.Parameters(chunk.applied);
  const bool posted = PostReply(shard, chunk, chunk.applied, payload, transport_index,
                                {connections_.data(), count}, {});
  for (std::size_t i = 0; i < count; ++i) {
    Lane& lane = shard.lanes[ranks[i]];
    if (posted) {
      NotePosted(lane, chunk.key->level);
      DropCredit(shard, lane, chunk.index);
    } else {
      Defer(shard, lane, chunk, chunk.applied);
    }
  }
}

void ReplyStage::Answer(JobShard& shard, Chunk& chunk) {
  PHUB_ON_CORE_LOOP();
  for (std::size_t i = 0; i < transports_.size(); ++i) {
    SendToGroup(shard, chunk, static_cast<std::uint8_t>(i));
  }
}

void ReplyStage::KeepVersions(JobShard& shard, const Chunk& chunk) {
  PHUB_ON_CORE_LOOP();
  if (!shard.config.restart || shard.reply_backlog == 0) return;
  for (Lane& lane : shard.lanes) {
    if (lane.replies_pending == 0 || !TestAndClear(lane.pending_reply, chunk.index.value)) continue;
    if (!TestAndSet(lane.pending_previous, chunk.index.value)) continue;
    // A reply with the version before that waited, too; it is not kept.
    NoteNotPending(lane, chunk.key->level);
    --shard.reply_backlog;
  }
}

void ReplyStage::AnswerOne(JobShard& shard, Chunk& chunk, Rank rank, Iteration version) {
  PHUB_ON_CORE_LOOP();
  Lane& lane = shard.lanes[rank.value];
  PHUB_CHECK(lane.state == Lane::State::kOpen, "rank={}", rank.value);
  if (std::byte* own =
          OwnReply(lane, chunk.reply_address[chunk.IndexOf(rank)], chunk.reply_bytes())) {
    std::memcpy(own, chunk.Parameters(version), chunk.reply_bytes());
  }
  if (shard.turn.throttled()) return Defer(shard, lane, chunk, version);
  SendToRank(shard, chunk, rank, version);
}

bool ReplyStage::PostCredit(JobShard& shard, const Lane& lane, ChunkIndex chunk, SlotIndex slot) {
  transport::SendRequest request;
  request.header = HeaderFor(shard, wire::MessageKind::kCredit);
  request.header.chunk = chunk;
  request.header.slot = slot;
  request.connections = {&lane.connection, 1};
  if (transports_[lane.transport_index]->Post({&request, 1}) == 0) return false;
  counters_.Add(CoreCounter::credits);
  return true;
}

bool ReplyStage::Credit(JobShard& shard, Rank rank, ChunkIndex chunk, SlotIndex slot) {
  PHUB_ON_CORE_LOOP();
  Lane& lane = shard.lanes[rank.value];
  if (lane.state != Lane::State::kOpen) return true;  // a new lane starts with all slots free
  const bool may_post = lane.credits_waiting.empty() && !shard.turn.throttled();
  if (may_post && PostCredit(shard, lane, chunk, slot)) return true;
  if (lane.credits_waiting.size() == lane.slot_chunk.size()) return false;
  lane.credits_waiting.push_back({chunk, slot});
  ++shard.reply_backlog;
  return true;
}

// A reply also credits the chunk's slot. A credit that still waits would arrive after the reply,
// when the slot may already hold the chunk's next gradient.
void ReplyStage::DropCredit(JobShard& shard, Lane& lane, ChunkIndex chunk) {
  shard.reply_backlog -= static_cast<std::uint32_t>(
      std::erase_if(lane.credits_waiting,
                    [&](const Lane::WaitingCredit& credit) { return credit.chunk == chunk; }));
}

void ReplyStage::OnSent(JobShard& shard, Rank rank) {
  PHUB_ON_CORE_LOOP();
  Lane& lane = shard.lanes[rank.value];
  PHUB_CHECK(lane.replies_posted > 0, "rank={}", rank.value);
  --lane.replies_posted;
  if (lane.replies_draining > 0) --lane.replies_draining;  // a lane reports them in order
}

bool ReplyStage::FlushCredits(JobShard& shard, Lane& lane) {
  std::size_t posted = 0;
  while (posted < lane.credits_waiting.size() &&
         PostCredit(shard, lane, lane.credits_waiting[posted].chunk,
                    lane.credits_waiting[posted].slot)) {
    ++posted;
  }
  lane.credits_waiting.erase(lane.credits_waiting.begin(),
                             lane.credits_waiting.begin() + static_cast<std::ptrdiff_t>(posted));
  shard.reply_backlog -= static_cast<std::uint32_t>(posted);
  return posted > 0;
}

bool ReplyStage::FlushReplies(JobShard& shard, Rank rank) {
  const Lane& lane = shard.lanes[rank.value];
  bool posted_any = false;
  if (IsLowestDue(lane)) posted_any = FlushLevel(shard, rank, LowestWaiting(lane));
  for (std::size_t level = kPriorityLevels; level-- > 0;) {
    if (lane.replies_pending_at[level] > 0) posted_any |= FlushLevel(shard, rank, level);
  }
  return posted_any;
}

bool ReplyStage::FlushLevel(JobShard& shard, Rank rank, std::size_t level) {
  Lane& lane = shard.lanes[rank.value];
  const std::uint32_t words = WordsOfChunks(shard);
  bool posted_any = false;
  for (std::uint32_t visited = 0; visited <= words; ++visited) {
    if (lane.pending_cursor >= words) lane.pending_cursor = 0;
    for (std::uint64_t* const bits : {lane.pending_reply, lane.pending_previous}) {
      std::uint64_t& word = bits[lane.pending_cursor];
      for (std::uint64_t left = word; left != 0; left &= left - 1) {
        const auto bit = static_cast<std::uint32_t>(std::countr_zero(left));
        const Chunk& chunk = *shard.chunks()[lane.pending_cursor * kWordBits + bit];
        if (chunk.key->level != level) continue;
        if (lane.replies_pending_at[level] == 0 || !HasWindow(shard, lane, level))
          return posted_any;
        const std::uint64_t behind = bits == lane.pending_previous ? 1 : 0;
        if (!PostTo(shard, chunk, rank, Iteration{chunk.applied.value - behind})) return posted_any;
        word &= ~(std::uint64_t{1} << bit);
        NoteNotPending(lane, level);
        --shard.reply_backlog;
        posted_any = true;
      }
    }
    if (lane.replies_pending_at[level] == 0) break;
    ++lane.pending_cursor;
  }
  return posted_any;
}

bool ReplyStage::Flush(JobShard& shard) {
  PHUB_ON_CORE_LOOP();
  if (shard.reply_backlog == 0 || shard.turn.throttled()) return false;
  bool posted = false;
  for (std::uint32_t rank = 0; rank < shard.config.world_size; ++rank) {
    Lane& lane = shard.lanes[rank];
    if (lane.state != Lane::State::kOpen) continue;
    if (!lane.credits_waiting.empty()) posted |= FlushCredits(shard, lane);
    if (lane.summed_pending > 0) posted |= FlushSummed(shard, lane);
    if (lane.replies_pending > 0) posted |= FlushReplies(shard, Rank{rank});
  }
  return posted;
}

void ReplyStage::Forget(JobShard& shard, Rank rank) {
  PHUB_ON_CORE_LOOP();
  Lane& lane = shard.lanes[rank.value];
  shard.reply_backlog -= lane.replies_pending;
  shard.reply_backlog -= static_cast<std::uint32_t>(lane.credits_waiting.size());
  shard.reply_backlog -= lane.summed_pending;
  lane.credits_waiting.clear();
  lane.replies_posted = 0;
  lane.replies_draining = 0;
  if (lane.summed_pending > 0) {
    std::fill_n(lane.pending_summed, WordsOfChunks(shard), std::uint64_t{0});
    lane.summed_pending = 0;
  }
  if (lane.replies_pending > 0) {
    const std::uint32_t words = WordsOfChunks(shard);
    std::fill_n(lane.pending_reply, words, std::uint64_t{0});
    std::fill_n(lane.pending_previous, words, std::uint64_t{0});
    lane.replies_pending = 0;
    lane.replies_pending_at = {};
  }
  lane.replies_ahead = 0;
  for (std::uint32_t i = 0; i < shard.chunk_count; ++i) {
    Chunk& chunk = *shard.chunks()[i];
    const std::uint32_t member = chunk.IndexOf(rank);
    if (member == kNoMember) continue;
    TestAndClear(chunk.wants_reply, member);
    chunk.reply_address[member] = {};
  }
}

}  // namespace phub::server::reply
