// The core loop in a job that spans racks. The test acts as its workers and as the other racks.
#pragma once

#include <map>
#include <memory>

#include "common/plan/generators.h"
#include "common/plan/planners/planner.h"
#include "server/core/exchange/shard_exchange.h"
#include "tests/unit/server/core/core_loop_fixture.h"

namespace phub::server {

inline constexpr std::uint32_t kRanks = 2;  // in this rack

// Rack `self` of three. There is one tree per rack; chunk c uses tree c.
class CoreLoopRacks : public CoreLoopTest {
 protected:
  explicit CoreLoopRacks(DurationNs liveness_timeout = 0) : CoreLoopTest(liveness_timeout) {}
  void StartRack(std::uint32_t self, const char* planner = "sharded-star",
                 std::uint32_t chunks = 3) {
    StartOver("switch:3", self, planner, chunks);
  }
  // Starts daemon 3, the aggregator between the three racks: it sums what two of them send to the
  // third.
  void StartAggregator() { StartOver("switch:3,aggregate", 3, "in-switch", 3); }
  void StartOver(const char* topology_name, std::uint32_t self, const char* planner,
                 std::uint32_t chunks) {
    const auto topology = plan::Generate(topology_name);
    ASSERT_TRUE(topology.ok());
    const auto forest = plan::MakePlan(*plan::FindPlanner(planner), *topology, {});
    ASSERT_TRUE(forest.ok()) << forest.status();
    auto plan = exchange::MakeRackPlan(*topology, *forest, RackIndex{self}, /*aggregators=*/true);
    ASSERT_TRUE(plan.ok()) << plan.status();
    const bool aggregates = plan->aggregates;
    const std::uint32_t rack_count = plan->rack_count;
    config_.rank_base = aggregates ? 0 : self * kRanks;
    config_.ranks_of_job = 3 * kRanks;
    config_.ranks_per_rack = kRanks;
    config_.incarnation = Incarnation{77};
    config_.membership_epoch = MembershipEpoch{1};
    config_.world_size = aggregates ? 0 : kRanks;
    config_.chunk_bytes = chunk_elements_ * static_cast<std::uint32_t>(sizeof(float));
    config_.slots_per_lane = slots_per_lane_;
    exchange_ = exchange::MakeShardExchange(*std::move(plan), config_.ranks_of_job);
    ASSERT_NE(exchange_, nullptr);
    shard_ = MakeJobShard(config_);
    shard_->exchange = exchange_.get();
    key_.reduction = Reduction::kMean;
    key_.optimizer = Optimizer::kSgd;
    key_.hyper_parameters = {.learning_rate = 0.5};
    for (std::uint32_t i = 0; i < chunks; ++i)
      key_.chunks.push_back({chunk_elements_, std::uint64_t{i} * chunk_elements_});
    for (std::size_t version = 0; version < config_.versions(); ++version) {
      parameters_[version].resize(std::size_t{chunks} * config_.chunk_bytes);
      key_.parameters[version] = parameters_[version].data();
    }
    batch_ = MakeKeyBatch(config_, {&key_, 1});
    exchange::TreeChooser chooser(exchange_->plan, CoreIndex{0});
    exchange_batch_ = exchange::MakeExchangeBatch(*exchange_, {&key_, 1}, chooser);
    ASSERT_NE(exchange_batch_, nullptr);
    exchange::AddExchange(*exchange_, *exchange_batch_, *batch_);
    Order({.kind = Command::Kind::kAddJob, .shard = shard_.get()});
    for (std::uint32_t rack = 0; rack < rack_count; ++rack) {
      if (rack == self) continue;
      peer_endpoints_[rack].SetVersion(peer_version_);
      Order({.kind = Command::Kind::kAttachLane,
             .owner = RackIndex{rack},
             .shard = shard_.get(),
             .connection = &peer_endpoints_[rack]});
      peers_[rack] = transport_.last_adopted();
    }
    Order({.kind = Command::Kind::kAddKeys, .shard = shard_.get(), .batch = batch_.get()});
    for (std::uint32_t rank = 0; rank < config_.world_size; ++rank) Attach(rank);
  }
  std::uint32_t HomeOf(std::uint32_t chunk) const {
    return exchange_->chunks()[chunk]->tree->home.value;
  }
  std::uint32_t ChunkWithHome(std::uint32_t home) const {
    std::uint32_t chunk = 0;
    while (HomeOf(chunk) != home) ++chunk;
    return chunk;
  }
  // A header from another rack's core loop; `kind` 0: a partial sum, 1: new parameters.
  wire::MessageHeader FromPeer(std::uint32_t chunk, std::uint64_t iteration, std::uint32_t kind) {
    wire::MessageHeader header = Gradient(chunk, iteration, 2 * chunk + kind);
    if (kind == 1) {
      header.kind = wire::MessageKind::kParameters;
      return header;
    }
    header.reply_address = SharedAddress{hash_};
    return header;
  }
  bool IsOpen(std::uint32_t rack, std::uint32_t slot) const {
    return exchange_->peers[rack].landing[slot].data != nullptr;
  }
  // Learns the hash of the records from a partial sum that the loop itself sends.
  void LearnHash() {
    const std::uint32_t chunk = ChunkWithHome((exchange_->plan.self.value + 1) % 3);
    Push(0, chunk, 1, 0, 1);
    Push(1, chunk, 1, 0, 1);
    for (const auto& posted : Posted(wire::MessageKind::kGradient)) {
      hash_ = posted.header.reply_address.value;
    }
    ASSERT_NE(hash_, 0u);
  }

  std::unique_ptr<exchange::ShardExchange> exchange_;
  std::unique_ptr<exchange::ExchangeBatch> exchange_batch_;
  std::map<std::uint32_t, ConnectionId> peers_;  // by rack
  std::map<std::uint32_t, ScriptedTransport::Endpoint> peer_endpoints_;
  std::uint8_t peer_version_ = wire::kLaneVersionMin;
  std::uint64_t hash_ = 0;
  std::uint32_t slots_per_lane_ = 16;
  std::uint32_t chunk_elements_ = kElements;
};

}  // namespace phub::server
