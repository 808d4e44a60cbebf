// Exhaustive search over small cases: in every order of pushes and message arrivals, every round
// must complete with the bits of the serial sum. Drives the aggregate stage itself. A worker is
// modelled by its push order and its W slots, or by memory shared with the daemon, where gradients
// hold no slot. Credits and replies arrive at once, since a late one is equivalent to a rank that
// is scheduled later.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/core/aggregate/aggregate.h"
#include "server/core/on_core_loop.h"
#include "server/core/optimize/optimize.h"

namespace phub::server {
namespace {

using Order = std::vector<std::uint32_t>;

// The rule under test, or a weaker one that the search must reject.
using Relieve = std::function<void(JobShard&, Rank, Chunk&, aggregate::FreedSlots&,
                                   const std::function<void(const aggregate::FreedSlot&)>&)>;

void RealRule(JobShard& shard, Rank rank, Chunk& chunk, aggregate::FreedSlots& scratch,
              const std::function<void(const aggregate::FreedSlot&)>& credit) {
  aggregate::RelieveFullLanes(shard, rank, chunk, scratch, credit);
}

// Looks only at the lane on which the gradient arrived: folds what this lane holds and can be added
// now, but not the slots of the same prefix in other lanes.
void OneLaneRule(JobShard& shard, Rank rank, Chunk&, aggregate::FreedSlots& scratch,
                 const std::function<void(const aggregate::FreedSlot&)>& credit) {
  if (!aggregate::LaneFull(shard, rank)) return;
  for (const ChunkIndex held : shard.lanes[rank.value].slot_chunk) {
    if (held == ChunkIndex::Max()) continue;
    Chunk& chunk = *shard.chunks()[held.value];
    // The next rank of the prefix is on another lane.
    if (chunk.folded_count != rank.value) continue;
    std::vector<const std::byte*> hidden;  // hides the rest of the prefix from the fold
    for (std::uint32_t other = rank.value + 1; other < shard.config.world_size; ++other) {
      hidden.push_back(std::exchange(chunk.staged_data[other], nullptr));
    }
    aggregate::Fold(shard, chunk, scratch);
    std::copy(hidden.begin(), hidden.end(), chunk.staged_data + rank.value + 1);
    for (const aggregate::FreedSlot& slot : scratch.all()) credit(slot);
  }
}

float GradientOf(std::uint32_t rank, std::uint32_t chunk) {
  // The sum of these values depends on the order of addition.
  return (rank % 2 == 0 ? 1.0e8f : -1.0e8f) + static_cast<float>(3 * rank + chunk) * 0.37f;
}

float SerialSum(std::uint32_t ranks, std::uint32_t chunk) {
  float sum = GradientOf(0, chunk);
  for (std::uint32_t rank = 1; rank < ranks; ++rank) sum += GradientOf(rank, chunk);
  return sum;
}

class Search {
 public:
  // sharing: a bit for each rank and chunk (rank * chunks + chunk) whose gradient is in shared
  // memory.
  Search(std::uint32_t ranks, std::uint32_t chunks, std::uint32_t slots, Relieve relieve,
         std::uint32_t sharing)
      : ranks_(ranks),
        chunks_(chunks),
        sharing_(sharing),
        relieve_(std::move(relieve)),
        staging_(ranks * slots * kChunkBytesMin / sizeof(float)),
        shared_(ranks * chunks),
        parameters_(chunks) {
    ShardConfig config;
    config.world_size = ranks;
    config.chunk_bytes = kChunkBytesMin;
    config.slots_per_lane = slots;
    shard_ = MakeJobShard(config);
    KeyShardSpec key;
    for (std::uint32_t i = 0; i < chunks; ++i) key.chunks.push_back({1, i});
    key.parameters[0] = reinterpret_cast<std::byte*>(parameters_.data());
    batch_ = MakeKeyBatch(config, {&key, 1});
    auto* slot_memory = reinterpret_cast<std::byte*>(staging_.data());
    for (Lane& lane : shard_->lanes) {
      for (transport::LandingSlot& slot : lane.landing) {
        slot = {slot_memory, kChunkBytesMin};
        slot_memory += kChunkBytesMin;
      }
    }
    for (std::uint32_t i = 0; i < chunks; ++i) {
      batch_->chunks[i].index = ChunkIndex{i};
      shard_->chunks()[shard_->chunk_count++] = &batch_->chunks[i];
    }
  }

  // Runs all interleavings of these push orders. Returns false if a state is stuck or sums wrongly.
  bool Holds(const std::vector<Order>& orders) {
    orders_ = &orders;
    seen_.clear();
    failed_ = false;
    pushed_.assign(ranks_, 0);
    Explore();
    return !failed_;
  }

  std::size_t states() const { return states_; }

 private:
  // The state that a step changes.
  struct Snapshot {
    std::vector<Chunk> chunks;
    std::vector<SlotIndex> staged_slots;
    std::vector<const std::byte*> staged_data;
    std::vector<float> accumulators, parameters;
    std::vector<std::vector<ChunkIndex>> slot_chunks;
    std::vector<std::uint32_t> slots_used, staged_in_place;
    std::uint32_t lanes_full = 0;
    std::vector<std::uint32_t> pushed;
  };

  Snapshot Save() const {
    Snapshot saved;
    saved.chunks = batch_->chunks;
    saved.staged_slots = batch_->staged_slots;
    saved.staged_data = batch_->staged_data;
    saved.lanes_full = shard_->lanes_full;
    saved.pushed = pushed_;
    saved.parameters = parameters_;
    for (const Chunk& chunk : batch_->chunks) saved.accumulators.push_back(*Accumulator(chunk));
    for (const Lane& lane : shard_->lanes) {
      saved.slot_chunks.push_back(lane.slot_chunk);
      saved.slots_used.push_back(lane.slots_used);
      saved.staged_in_place.push_back(lane.staged_in_place);
    }
    return saved;
  }

  void Restore(const Snapshot& saved) {
    std::copy(saved.chunks.begin(), saved.chunks.end(), batch_->chunks.begin());
    std::copy(saved.staged_slots.begin(), saved.staged_slots.end(), batch_->staged_slots.begin());
    std::copy(saved.staged_data.begin(), saved.staged_data.end(), batch_->staged_data.begin());
    std::copy(saved.parameters.begin(), saved.parameters.end(), parameters_.begin());
    for (std::size_t i = 0; i < saved.chunks.size(); ++i) {
      *Accumulator(batch_->chunks[i]) = saved.accumulators[i];
    }
    for (std::size_t i = 0; i < ranks_; ++i) {
      shard_->lanes[i].slot_chunk = saved.slot_chunks[i];
      shard_->lanes[i].slots_used = saved.slots_used[i];
      shard_->lanes[i].staged_in_place = saved.staged_in_place[i];
    }
    shard_->lanes_full = saved.lanes_full;
    pushed_ = saved.pushed;
  }

  std::string Fingerprint() const {
    std::string text;
    for (const std::uint32_t count : pushed_) text += static_cast<char>('a' + count);
    for (const Chunk& chunk : batch_->chunks) {
      text += static_cast<char>('0' + chunk.folded_count);
      text += static_cast<char>('0' + chunk.staged_count);
    }
    for (const Lane& lane : shard_->lanes) {
      for (const ChunkIndex held : lane.slot_chunk) {
        text += held == ChunkIndex::Max() ? '-' : static_cast<char>('0' + held.value);
      }
    }
    return text;
  }

  static float* Accumulator(const Chunk& chunk) {
    return reinterpret_cast<float*>(chunk.accumulator);
  }

  // Puts the worker's next gradient into a slot or shared memory. Returns false if no gradient is
  // left, or no free slot.
  bool Place(std::uint32_t rank, transport::ReceivedMessage& message) {
    if (pushed_[rank] == chunks_) return false;
    const std::uint32_t index = (*orders_)[rank][pushed_[rank]];
    float* memory = &shared_[rank * chunks_ + index];
    message.header.slot = kNoSlot;
    if ((sharing_ >> (rank * chunks_ + index) & 1) == 0) {
      const Lane& lane = shard_->lanes[rank];
      const auto free_slot =
          std::find(lane.slot_chunk.begin(), lane.slot_chunk.end(), ChunkIndex::Max());
      if (free_slot == lane.slot_chunk.end()) return false;
      message.header.slot =
          SlotIndex{static_cast<std::uint32_t>(free_slot - lane.slot_chunk.begin())};
      memory = reinterpret_cast<float*>(lane.landing[message.header.slot.value].data);
    }
    *memory = GradientOf(rank, index);
    message.payload = reinterpret_cast<const std::byte*>(memory);
    message.header.hyper_version = HyperVersion{1};
    return true;
  }

  bool Push(std::uint32_t rank) {
    transport::ReceivedMessage message;
    if (!Place(rank, message)) return false;
    const std::uint32_t index = (*orders_)[rank][pushed_[rank]++];
    Chunk& chunk = batch_->chunks[index];
    aggregate::Stage(*shard_, Rank{rank}, chunk, message, 0);
    if (chunk.arrived_count() == ranks_) {
      optimize::ApplyRound(chunk, aggregate::GatherTerms(*shard_, chunk, terms_), ranks_, {},
                           /*streams=*/false, /*work=*/nullptr);
      ++chunk.applied.value;
      aggregate::Finish(*shard_, chunk);
      if (parameters_[index] != SerialSum(ranks_, index)) failed_ = true;
    } else {
      relieve_(*shard_, Rank{rank}, chunk, freed_, [](const aggregate::FreedSlot&) {});
    }
    return true;
  }

  void Explore() {
    if (failed_ || !seen_.insert(Fingerprint()).second) return;
    ++states_;
    const Snapshot here = Save();
    bool moved = false;
    for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
      if (!Push(rank)) continue;
      moved = true;
      Explore();
      Restore(here);
    }
    const bool done = std::all_of(batch_->chunks.begin(), batch_->chunks.end(),
                                  [](const Chunk& chunk) { return chunk.applied.value == 1; });
    if (!moved && !done) failed_ = true;  // a deadlock: every rank waits for another
  }

  const std::uint32_t ranks_, chunks_, sharing_;
  const Relieve relieve_;
  std::vector<float> staging_, shared_, parameters_;
  std::unique_ptr<JobShard> shard_;
  std::unique_ptr<KeyBatch> batch_;
  const std::vector<Order>* orders_ = nullptr;
  std::vector<std::uint32_t> pushed_;  // by rank: how many chunks of its order it has pushed
  std::set<std::string> seen_;
  bool failed_ = false;
  std::size_t states_ = 0;
  const OnCoreLoop on_core_loop_;  // stages are called without a loop
  aggregate::TermList terms_{};
  aggregate::FreedSlots freed_{};
};

std::vector<Order> AllOrders(std::uint32_t chunks) {
  Order order(chunks);
  std::iota(order.begin(), order.end(), 0u);
  std::vector<Order> all;
  do all.push_back(order);
  while (std::next_permutation(order.begin(), order.end()));
  return all;
}

// Calls `visit` with every tuple of push orders, until it returns false. Rank 0's order is fixed
// without loss of generality, since chunks are interchangeable.
bool ForEveryOrder(std::uint32_t ranks, std::uint32_t chunks,
                   const std::function<bool(const std::vector<Order>&)>& visit) {
  const std::vector<Order> all = AllOrders(chunks);
  std::vector<std::size_t> choice(ranks, 0);
  for (;;) {
    std::vector<Order> orders;
    for (const std::size_t index : choice) orders.push_back(all[index]);
    if (!visit(orders)) return false;
    std::size_t rank = 1;
    while (rank < ranks && ++choice[rank] == all.size()) choice[rank++] = 0;
    if (rank >= ranks) return true;
  }
}

bool AlwaysCompletes(std::uint32_t ranks, std::uint32_t chunks, std::uint32_t slots,
                     const Relieve& rule, std::uint32_t sharing = 0) {
  Search search(ranks, chunks, slots, rule, sharing);
  const bool holds = ForEveryOrder(
      ranks, chunks, [&](const std::vector<Order>& orders) { return search.Holds(orders); });
  EXPECT_GT(search.states(), 1u);
  return holds;
}

TEST(Folding, IsLiveForEveryPushOrderAndInterleaving) {
  for (const std::uint32_t slots : {1u, 2u}) {
    for (const std::uint32_t chunks : {3u, 4u}) {
      EXPECT_TRUE(AlwaysCompletes(2, chunks, slots, RealRule))
          << "2 ranks, " << chunks << " chunks";
      EXPECT_TRUE(AlwaysCompletes(3, chunks, slots, RealRule))
          << "3 ranks, " << chunks << " chunks";
    }
  }
}

TEST(Folding, IsLiveWhereSomeRanksShareMemoryAndOthersHaveSlots) {
  constexpr std::uint32_t kChunks = 4;
  for (std::uint32_t ranks = 1; ranks < 8; ++ranks) {
    std::uint32_t sharing = 0;
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      if ((ranks >> rank & 1) != 0) sharing |= ((1u << kChunks) - 1) << (rank * kChunks);
    }
    EXPECT_TRUE(AlwaysCompletes(3, kChunks, 1, RealRule, sharing)) << "ranks " << ranks;
  }
}

// Rank 1 of four shares some gradients. It completes a prefix in place while its lane may be full.
bool CompletesWithAMixedRank(const Relieve& rule) {
  constexpr std::uint32_t kChunks = 3;
  for (std::uint32_t chunks = 1; chunks < 1u << kChunks; ++chunks) {
    if (!AlwaysCompletes(4, kChunks, 1, rule, chunks << kChunks)) return false;
  }
  return true;
}

TEST(Folding, IsLiveWhereARankSharesSomeGradientsAndHasSlotsForOthers) {
  for (std::uint32_t sharing = 1; sharing < 1u << 9; ++sharing) {
    EXPECT_TRUE(AlwaysCompletes(3, 3, 1, RealRule, sharing)) << "gradients " << sharing;
  }
  EXPECT_TRUE(CompletesWithAMixedRank(RealRule));
}

TEST(Folding, SearchCatchesAFullLaneThatHidesWhatIsStagedInPlace) {
  // When the rank's lane is full, looks only at the gradients in its slots.
  const Relieve own_slots_only = [](JobShard& shard, Rank rank, Chunk& chunk,
                                    aggregate::FreedSlots& scratch, const auto& credit) {
    if (aggregate::LaneFull(shard, rank) && chunk.staged_slot[rank.value] == kNoSlot) return;
    aggregate::RelieveFullLanes(shard, rank, chunk, scratch, credit);
  };
  EXPECT_FALSE(CompletesWithAMixedRank(own_slots_only));
}

TEST(Folding, SearchCatchesATriggerThatLooksAtOneLane) {
  EXPECT_FALSE(AlwaysCompletes(3, 3, 1, OneLaneRule));
  EXPECT_FALSE(AlwaysCompletes(3, 4, 2, OneLaneRule));
}

TEST(Folding, SearchCatchesNoFoldingAtAll) {
  const Relieve never = [](auto&&...) {};
  EXPECT_FALSE(AlwaysCompletes(2, 3, 1, never));
}

}  // namespace
}  // namespace phub::server
