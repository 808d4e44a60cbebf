// Core loops of several racks, and groups of their ranks whose keys have priority classes, in
// virtual time. The loops and their exchange are product code; the links between racks have a
// finite rate (rack_links.h). Each rack has one rank, whose lane is infinitely fast.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/core/core_loop.h"
#include "server/core/exchange/shard_exchange.h"
#include "server/core/job_shard.h"
#include "server/core/members.h"
#include "tests/sim/rack_links.h"

namespace phub::sim {

struct RackGroupOptions {
  std::vector<std::uint32_t> racks;  // two or more, ascending
  std::uint8_t level = 0;
  std::uint32_t chunks = 16;
  std::uint32_t rounds = UINT32_MAX;
  DurationNs pause = 0;  // between a rank's rounds
  DurationNs late = 0;   // the last rack's rank begins each round so much later
  std::string planner = "sharded-star";
  // For which the plan is made (common/plan/generators.h); empty: one switch. The racks' links are
  // always those of one switch.
  std::string topology = {};
};

struct RackClusterOptions {
  std::uint32_t racks = 2;
  std::uint32_t chunk_bytes = 128 * 1024;
  LinkOptions links = {};
};

// A group as all racks see it, and what its ranks do: they push all chunks of a round, and the next
// round once every chunk is answered. Each sum is checked.
class RackGroup {
 public:
  RackGroup(const RackGroupOptions& options, std::uint32_t number)
      : options_(options), number_(number) {}

  const RackGroupOptions& options() const { return options_; }
  std::uint64_t bytes() const { return bytes_; }
  // How long the ranks' complete rounds took.
  const std::vector<DurationNs>& times() const { return times_; }
  DurationNs MeanTime() const;
  bool over() const { return ended_ == options_.racks.size(); }

 private:
  friend class RackCluster;
  struct Part {  // in one rack
    std::shared_ptr<const server::exchange::RackPlan> plan;
    std::unique_ptr<server::Members> members;
    std::unique_ptr<server::KeyBatch> keys;
    std::unique_ptr<server::exchange::ExchangeBatch> exchange;
    std::vector<std::byte> parameters;
    std::uint32_t first_chunk = 0;
    std::uint64_t round = 0;
    std::uint32_t unanswered = 0;
    TimeNs begun_at = 0;
  };
  float Pushed(std::uint32_t rack, std::uint64_t round, std::uint32_t chunk) const {
    return static_cast<float>((number_ * 31 + rack * 7 + round * 13 + chunk) % 1009);
  }
  float SumOf(std::uint64_t round, std::uint32_t chunk) const;

  const RackGroupOptions options_;
  const std::uint32_t number_;
  std::uint64_t bytes_ = 0;
  std::vector<Part> parts_;  // [rack], empty in others
  std::vector<DurationNs> times_;
  std::size_t ended_ = 0;  // racks that have completed all rounds
};

class RackCluster {
 public:
  RackCluster(const RackClusterOptions& options, const std::vector<RackGroupOptions>& groups);
  ~RackCluster();

  // Runs until all groups with a limited number of rounds are over, or until that time. False: it
  // was not over by then.
  bool RunUntil(TimeNs end);
  RackGroup& group(std::size_t index) { return *groups_[index]; }
  RackLinks& links() { return links_; }
  std::uint64_t Count(server::CoreCounter counter) const;  // over all racks
  // The time in which the links can move the group's payload: a chunk's sum passes every rack's
  // link once in each direction, except (of its own) the home's.
  DurationNs LimitOf(const RackGroup& group) const;

 private:
  struct Rack {
    std::array<transport::Transport*, 1> transports{};
    std::unique_ptr<server::CoreLoop> loop;
    server::ShardConfig config;
    std::unique_ptr<server::exchange::ShardExchange> exchange;
    std::unique_ptr<server::JobShard> shard;
    std::vector<std::byte> staging;
    std::vector<RackTransport::Endpoint> endpoints;
    std::uint32_t chunk_count = 0;
    TimeNs wakes_at = 0;  // the newest timer that is scheduled
  };
  void StartRack(std::uint32_t rack);
  void AddGroup(RackGroup& group, std::uint32_t first_number);
  void Order(Rack& rack, const server::Command& command);
  void BeginRound(RackGroup& group, std::uint32_t rack);
  void OnReply(std::uint32_t rack, const wire::MessageHeader& header,
               std::span<const std::byte> payload);
  void RunLoops();

  const RackClusterOptions options_;
  RackLinks links_;
  std::vector<Rack> racks_;
  std::vector<std::unique_ptr<RackGroup>> groups_;
  std::uint64_t runs_ = 0;
};

}  // namespace phub::sim
