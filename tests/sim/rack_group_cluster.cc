#include "tests/sim/rack_group_cluster.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <numeric>

#include "common/base/check.h"
#include "common/base/group_keys.h"
#include "common/plan/generators.h"
#include "common/plan/planners/planner.h"
#include "common/plan/subset.h"
#include "server/core/exchange/landing_entry.h"

namespace phub::sim {

using server::Command;

namespace {

// The invariants of a loop are checked once in so many runs.
constexpr std::uint64_t kRunsPerCheck = 256;
constexpr TimeNs kNever = std::numeric_limits<TimeNs>::max();

plan::Topology TopologyOf(std::uint32_t racks, const std::string& name) {
  auto topology = plan::Generate(name.empty() ? "switch:" + std::to_string(racks) : name);
  PHUB_CHECK(topology.ok() && topology->members().size() == racks, "topology={}", name);
  return *std::move(topology);
}

std::shared_ptr<const server::exchange::RackPlan> PlanOf(std::uint32_t racks,
                                                         const RackGroupOptions& group,
                                                         std::uint32_t self) {
  const plan::Topology topology = TopologyOf(racks, group.topology);
  std::vector<plan::NodeIndex> members;
  for (const std::uint32_t rack : group.racks) members.push_back(topology.members()[rack]);
  const auto forest = plan::PlanForMembers(topology, members, [&](const plan::Topology& part) {
    return plan::MakePlan(*plan::FindPlanner(group.planner), part, {});
  });
  PHUB_CHECK(forest.ok(), "planner={}", group.planner);
  auto plan = server::exchange::MakeRackPlan(topology, *forest, server::RackIndex{self});
  PHUB_CHECK(plan.ok());
  return std::make_shared<const server::exchange::RackPlan>(*std::move(plan));
}

}  // namespace

DurationNs RackGroup::MeanTime() const {
  PHUB_CHECK(!times_.empty());
  return std::accumulate(times_.begin(), times_.end(), DurationNs{0}) /
         static_cast<DurationNs>(times_.size());
}

float RackGroup::SumOf(std::uint64_t round, std::uint32_t chunk) const {
  float sum = 0;
  for (const std::uint32_t rack : options_.racks) sum += Pushed(rack, round, chunk);
  return sum;
}

RackCluster::RackCluster(const RackClusterOptions& options,
                         const std::vector<RackGroupOptions>& groups)
    : options_(options), links_(options.racks, options.links), racks_(options.racks) {
  std::uint32_t first_number = server::exchange::kGroupNumbersFirst;
  std::uint32_t chunks = 0;
  for (const RackGroupOptions& group : groups) chunks += group.chunks;
  for (std::uint32_t rack = 0; rack < options.racks; ++rack) {
    racks_[rack].config.slots_per_lane = chunks;
    StartRack(rack);
  }
  for (const RackGroupOptions& group : groups) {
    groups_.push_back(
        std::make_unique<RackGroup>(group, static_cast<std::uint32_t>(groups_.size())));
    AddGroup(*groups_.back(), first_number);
    first_number += group.chunks;
  }
}

RackCluster::~RackCluster() = default;

void RackCluster::Order(Rack& rack, const Command& command) {
  PHUB_CHECK(rack.loop->queues().commands.TryPush(command));
  rack.loop->RunOnce();
  rack.loop->CheckInvariants();
}

void RackCluster::StartRack(std::uint32_t index) {
  Rack& rack = racks_[index];
  RackTransport& transport = links_.transport(index);
  transport.SetHearer(
      [this, index](const wire::MessageHeader& header, std::span<const std::byte> payload) {
        OnReply(index, header, payload);
      });
  rack.transports = {&transport};
  rack.loop = std::make_unique<server::CoreLoop>(CoreIndex{0}, links_.clock(), rack.transports);
  rack.config.incarnation = Incarnation{1};
  rack.config.membership_epoch = MembershipEpoch{1};
  rack.config.world_size = rack.config.ranks_per_rack = 1;
  rack.config.rank_base = index;
  rack.config.ranks_of_job = options_.racks;
  rack.config.chunk_bytes = options_.chunk_bytes;
  std::vector<std::uint32_t> all(options_.racks);
  std::iota(all.begin(), all.end(), 0u);
  rack.exchange = server::exchange::MakeShardExchange(
      *PlanOf(options_.racks, {.racks = all}, index), options_.racks);
  rack.shard = server::MakeJobShard(rack.config);
  PHUB_CHECK(rack.exchange != nullptr && rack.shard != nullptr);
  rack.shard->exchange = rack.exchange.get();
  rack.staging.resize(server::StagingBytesPerLane(rack.config));
  rack.endpoints = std::vector<RackTransport::Endpoint>(options_.racks);
  Order(rack, {.kind = Command::Kind::kAddJob, .shard = rack.shard.get()});
  for (std::uint32_t other = 0; other < options_.racks; ++other) {
    if (other != index) rack.endpoints[other].other_rack = other;
    Command attach{.kind = Command::Kind::kAttachLane,
                   .shard = rack.shard.get(),
                   .connection = &rack.endpoints[other]};
    if (other == index) {
      attach.owner = Rank{0};
      attach.staging = rack.staging.data();
    } else {
      attach.owner = server::RackIndex{other};
    }
    Order(rack, attach);
  }
}

void RackCluster::AddGroup(RackGroup& group, std::uint32_t first_number) {
  const RackGroupOptions& options = group.options_;
  group.bytes_ = std::uint64_t{options.chunks} * options_.chunk_bytes;
  group.parts_.resize(options_.racks);
  std::vector<Rank> in_job;
  for (const std::uint32_t rack : options.racks) in_job.push_back(Rank{rack});
  for (const std::uint32_t index : options.racks) {
    Rack& rack = racks_[index];
    RackGroup::Part& part = group.parts_[index];
    part.plan = PlanOf(options_.racks, options, index);
    part.members = std::make_unique<server::Members>(std::array{Rank{0}}, in_job);
    part.parameters.resize(group.bytes_);
    part.first_chunk = rack.chunk_count;
    rack.chunk_count += options.chunks;
    server::KeyShardSpec key;
    key.key = KeyIndex{kGroupKeysFirst + group.number_};
    key.collective = true;
    key.level = options.level;
    key.members = part.members.get();
    key.first_chunk = part.first_chunk;
    key.parameters = {part.parameters.data(), part.parameters.data()};
    const auto elements = static_cast<std::uint32_t>(options_.chunk_bytes / sizeof(float));
    for (std::uint32_t i = 0; i < options.chunks; ++i)
      key.chunks.push_back({elements, std::uint64_t{i} * elements});
    const server::exchange::GroupPart of_group{
        .plan = part.plan,
        .rank_count = static_cast<std::uint32_t>(options.racks.size()),
        .first_number = first_number};
    server::exchange::TreeChooser chooser(*part.plan, CoreIndex{0});
    part.keys = server::MakeKeyBatch(rack.config, {&key, 1});
    part.exchange =
        server::exchange::MakeExchangeBatch(*rack.exchange, {&key, 1}, chooser, &of_group);
    PHUB_CHECK(part.keys != nullptr && part.exchange != nullptr);
    server::exchange::AddExchange(*rack.exchange, *part.exchange, *part.keys);
    Order(rack,
          {.kind = Command::Kind::kAddKeys, .shard = rack.shard.get(), .batch = part.keys.get()});
    links_.Schedule(0, [this, &group, index] { BeginRound(group, index); });
  }
}

void RackCluster::BeginRound(RackGroup& group, std::uint32_t index) {
  Rack& rack = racks_[index];
  RackGroup::Part& part = group.parts_[index];
  ++part.round;
  part.unanswered = group.options_.chunks;
  part.begun_at = links_.clock().Now();
  const std::size_t elements = options_.chunk_bytes / sizeof(float);
  for (std::uint32_t i = 0; i < group.options_.chunks; ++i) {
    wire::MessageHeader header;
    header.kind = wire::MessageKind::kGradient;
    header.incarnation = rack.config.incarnation;
    header.membership_epoch = rack.config.membership_epoch;
    header.chunk = ChunkIndex{part.first_chunk + i};
    header.iteration = Iteration{part.round};
    header.slot = SlotIndex{part.first_chunk + i};
    header.hyper_version = HyperVersion{1};
    header.payload_bytes = options_.chunk_bytes;
    auto* const slot = reinterpret_cast<float*>(
        rack.staging.data() + std::size_t{header.slot.value} * options_.chunk_bytes);
    std::fill_n(slot, elements, group.Pushed(index, part.round, i));
    links_.transport(index).Send(header);
  }
}

void RackCluster::OnReply(std::uint32_t index, const wire::MessageHeader& header,
                          std::span<const std::byte> payload) {
  if (header.kind != wire::MessageKind::kParameters) return;
  for (const auto& group : groups_) {
    RackGroup::Part& part = group->parts_[index];
    const std::uint32_t chunk = header.chunk.value - part.first_chunk;
    if (part.plan == nullptr || chunk >= group->options_.chunks) continue;
    PHUB_CHECK(header.iteration.value == part.round && payload.size() == options_.chunk_bytes);
    const float sum = group->SumOf(part.round, chunk);
    const auto* const values = reinterpret_cast<const float*>(payload.data());
    PHUB_CHECK(std::all_of(values, values + payload.size() / sizeof(float),
                           [sum](float value) { return value == sum; }),
               "group={} rack={} round={} chunk={}", group->number_, index, part.round, chunk);
    if (--part.unanswered > 0) return;
    group->times_.push_back(links_.clock().Now() - part.begun_at);
    if (part.round == group->options_.rounds) {
      ++group->ended_;
      return;
    }
    RackGroup& next = *group;
    const DurationNs late = index == next.options_.racks.back() ? next.options_.late : 0;
    links_.Schedule(links_.clock().Now() + next.options_.pause + late,
                    [this, &next, index] { BeginRound(next, index); });
    return;
  }
  PHUB_CHECK(false, "chunk={}", header.chunk.value);
}

void RackCluster::RunLoops() {
  for (std::uint32_t index = 0; index < racks_.size(); ++index) {
    server::CoreLoop& loop = *racks_[index].loop;
    while (links_.transport(index).HasWork() || loop.NextTimer() <= links_.clock().Now()) {
      loop.RunOnce();
      if (++runs_ % kRunsPerCheck == 0) loop.CheckInvariants();
    }
    const TimeNs timer = loop.NextTimer();
    if (timer != racks_[index].wakes_at && timer != kNever) links_.Schedule(timer, [] {});
    racks_[index].wakes_at = timer;
    server::Event event;
    while (loop.queues().events.TryPop(event))
      PHUB_CHECK(event.kind != server::Event::Kind::kFault, "rack={} fault={}", index,
                 server::ToString(event.code));
  }
}

bool RackCluster::RunUntil(TimeNs end) {
  const auto is_over = [](const std::unique_ptr<RackGroup>& group) {
    return group->options().rounds == UINT32_MAX || group->over();
  };
  while (!std::ranges::all_of(groups_, is_over)) {
    if (links_.clock().Now() >= end || !links_.Step()) return false;
    RunLoops();
  }
  return true;
}

std::uint64_t RackCluster::Count(server::CoreCounter counter) const {
  std::uint64_t sum = 0;
  for (const Rack& rack : racks_) sum += rack.loop->counters().Get(counter);
  return sum;
}

DurationNs RackCluster::LimitOf(const RackGroup& group) const {
  const auto racks = static_cast<double>(group.options().racks.size());
  return static_cast<DurationNs>(2 * (racks - 1) / racks * static_cast<double>(group.bytes()) *
                                 1e9 / options_.links.bytes_per_second);
}

}  // namespace phub::sim
