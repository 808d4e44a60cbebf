// bench-rack-loop: one core loop of one rack's daemon exchanges gradients along a plan. The core
// loop and everything it calls are the daemon's own. The program acts as the rank's workers, as the
// other racks and as control. bench/run cache runs it under valgrind's cachegrind.
//
// In each round, chunks pass in windows, as staging allows. In each window the others are as far
// apart as they can be: first all partial sums of children arrive, then each rank's gradients, one
// rank after another, then the results. One slot of each lane stays free, since full lanes make the
// daemon fold gradients early.
//
// It prints one JSON object: bytes of all rounds as the daemon counted them, and the formula's
// bytes (common/plan/memory.h).
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "bench/cache/wire_transport.h"
#include "bench/rank/build_info.h"
#include "common/base/check.h"
#include "common/base/mapped_memory.h"
#include "common/plan/generators.h"
#include "common/plan/memory.h"
#include "common/plan/planners/planner.h"
#include "server/core/core_loop.h"
#include "server/core/exchange/landing_entry.h"
#include "server/core/exchange/shard_exchange.h"

namespace phub::server {
namespace {

using bench::WireTransport;
using exchange::EntryKind;
using transport::ConnectionId;

struct LoopArguments {
  std::string topology = "switch:4";
  std::string planner = "sharded-star";
  std::string optimizer = "none";
  std::uint32_t rack = 0;
  std::uint32_t ranks = 4;  // of this rack
  std::uint32_t chunk_bytes = 128 << 10;
  std::uint64_t staging_bytes = 1 << 20;  // per lane
  std::uint64_t bytes = 64 << 20;         // gradients of one rank
  std::uint32_t rounds = 2;
};

class StillClock final : public Clock {
 public:
  TimeNs Now() const override { return 1; }
};

class RackLoop {
 public:
  RackLoop(const LoopArguments& arguments, exchange::RackPlan plan, Optimizer optimizer)
      : arguments_(arguments), endpoints_(plan.rack_count + arguments.ranks) {
    config_.incarnation = Incarnation{1};
    config_.membership_epoch = MembershipEpoch{1};
    config_.world_size = config_.ranks_per_rack = arguments.ranks;
    config_.ranks_of_job = plan.rack_count * arguments.ranks;
    config_.rank_base = arguments.rack * arguments.ranks;
    config_.chunk_bytes = arguments.chunk_bytes;
    config_.slots_per_lane =
        static_cast<std::uint32_t>(arguments.staging_bytes / arguments.chunk_bytes);
    PHUB_CHECK(config_.slots_per_lane > 1, "staging_bytes must have room for two chunks");
    exchange_ = exchange::MakeShardExchange(std::move(plan), config_.ranks_of_job);
    shard_ = MakeJobShard(config_);
    PHUB_CHECK(exchange_ != nullptr && shard_ != nullptr, "out of memory");
    shard_->exchange = exchange_.get();
    key_.optimizer = optimizer;
    key_.hyper_parameters = {.learning_rate = 0.5, .momentum = 0.9};
    AddJob();
  }

  void Run();

  // As the daemon counted them, of all rounds.
  std::uint64_t UplinkBytes() const {
    return Count(CoreCounter::peer_bytes_sent) + Count(CoreCounter::partial_bytes) +
           Count(CoreCounter::result_bytes);
  }
  std::uint64_t MemoryBytes() const {
    return Count(CoreCounter::exchange_memory_read_bytes) +
           Count(CoreCounter::exchange_memory_written_bytes);
  }

 private:
  std::uint32_t ChunkCount() const { return exchange_->chunk_count; }
  std::uint64_t Count(CoreCounter counter) const { return loop_.counters().Get(counter); }
  const exchange::RackTree& TreeOf(std::uint32_t chunk) const {
    return *exchange_->chunks()[chunk]->tree;
  }

  void AddJob();
  void Order(const Command& command);
  void Drain();
  wire::MessageHeader Header(std::uint64_t round, std::uint32_t chunk, std::uint32_t slot) const;
  void RunWindow(std::uint64_t round, std::uint32_t first, std::uint32_t end);

  const LoopArguments arguments_;
  StillClock clock_;
  WireTransport transport_;
  std::array<transport::Transport*, 1> transports_{&transport_};
  CoreLoop loop_{CoreIndex{0}, clock_, transports_};
  ShardConfig config_;
  KeyShardSpec key_;
  MappedMemory parameters_;
  std::vector<MappedMemory> staging_;
  std::vector<WireTransport::Endpoint> endpoints_;
  std::unique_ptr<exchange::ShardExchange> exchange_;
  std::unique_ptr<exchange::ExchangeBatch> exchange_batch_;
  std::unique_ptr<JobShard> shard_;
  std::unique_ptr<KeyBatch> batch_;
  std::vector<ConnectionId> ranks_;
  std::map<std::uint32_t, ConnectionId> peers_;
  std::uint64_t orders_ = 0;
};

MappedMemory Pages(std::size_t bytes) {
  MappedMemory memory = MappedMemory::Allocate(bytes, MappedMemory::Backing::kPrefault);
  PHUB_CHECK(memory, "out of memory");
  return memory;
}

void RackLoop::AddJob() {
  const std::uint32_t elements = arguments_.chunk_bytes / sizeof(float);
  for (std::uint64_t at = 0; at < arguments_.bytes; at += arguments_.chunk_bytes) {
    key_.chunks.push_back({elements, at / sizeof(float)});
  }
  parameters_ = Pages(key_.chunks.size() * arguments_.chunk_bytes);
  key_.parameters = {parameters_.data(), nullptr};
  batch_ = MakeKeyBatch(config_, {&key_, 1});
  exchange::TreeChooser chooser(exchange_->plan, CoreIndex{0});
  exchange_batch_ = exchange::MakeExchangeBatch(*exchange_, {&key_, 1}, chooser);
  PHUB_CHECK(batch_ != nullptr && exchange_batch_ != nullptr, "out of memory");
  exchange::AddExchange(*exchange_, *exchange_batch_, *batch_);
  Order({.kind = Command::Kind::kAddJob, .shard = shard_.get()});
  std::size_t lane = 0;
  for (std::uint32_t rack = 0; rack < exchange_->plan.rack_count; ++rack) {
    if (rack == arguments_.rack) continue;
    Order({.kind = Command::Kind::kAttachLane,
           .owner = RackIndex{rack},
           .shard = shard_.get(),
           .connection = &endpoints_[lane++]});
    peers_[rack] = transport_.last_adopted();
  }
  Order({.kind = Command::Kind::kAddKeys, .shard = shard_.get(), .batch = batch_.get()});
  for (std::uint32_t rank = 0; rank < arguments_.ranks; ++rank) {
    staging_.push_back(Pages(StagingBytesPerLane(config_)));
    Order({.kind = Command::Kind::kAttachLane,
           .owner = Rank{rank},
           .shard = shard_.get(),
           .connection = &endpoints_[lane++],
           .staging = staging_.back().data()});
    ranks_.push_back(transport_.last_adopted());
  }
}

void RackLoop::Order(const Command& command) {
  PHUB_CHECK(loop_.queues().commands.TryPush(command));
  loop_.RunOnce();
  PHUB_CHECK(loop_.counters().commands_done.load() == ++orders_);
}

void RackLoop::Drain() {
  while (transport_.HasInput()) loop_.RunOnce();
  loop_.RunOnce();
}

wire::MessageHeader RackLoop::Header(std::uint64_t round, std::uint32_t chunk,
                                     std::uint32_t slot) const {
  wire::MessageHeader header;
  header.kind = wire::MessageKind::kGradient;
  header.incarnation = config_.incarnation;
  header.membership_epoch = config_.membership_epoch;
  header.chunk = ChunkIndex{chunk};
  header.iteration = Iteration{round};
  header.slot = SlotIndex{slot};
  header.hyper_version = HyperVersion{1};
  header.payload_bytes = arguments_.chunk_bytes;
  return header;
}

void RackLoop::RunWindow(std::uint64_t round, std::uint32_t first, std::uint32_t end) {
  for (const auto& [rack, connection] : peers_) {
    for (std::uint32_t chunk = first; chunk < end; ++chunk) {
      for (const exchange::ReduceChild& child : TreeOf(chunk).reduce_children) {
        if (child.rack.value != rack) continue;
        const std::uint32_t entry = EntryOf(chunk, EntryKind::kPartial);
        wire::MessageHeader header = Header(round, chunk, entry);
        header.reply_address = SharedAddress{exchange::HashOf(key_.hyper_parameters)};
        transport_.Deliver(connection, header);
      }
    }
  }
  for (const ConnectionId rank : ranks_) {
    for (std::uint32_t chunk = first; chunk < end; ++chunk) {
      transport_.Deliver(rank, Header(round, chunk, chunk - first));
    }
  }
  Drain();
  for (std::uint32_t chunk = first; chunk < end; ++chunk) {
    if (!TreeOf(chunk).gather_parent) continue;
    const std::uint32_t entry = EntryOf(chunk, EntryKind::kParameters);
    wire::MessageHeader header = Header(round, chunk, entry);
    header.kind = wire::MessageKind::kParameters;
    transport_.Deliver(peers_[TreeOf(chunk).gather_parent->value], header);
  }
  Drain();
}

void RackLoop::Run() {
  const std::uint32_t window = config_.slots_per_lane - 1;
  for (std::uint64_t round = 1; round <= arguments_.rounds; ++round) {
    for (std::uint32_t first = 0; first < ChunkCount(); first += window) {
      RunWindow(round, first, std::min(ChunkCount(), first + window));
    }
  }
  Event event;
  while (loop_.queues().events.TryPop(event)) {
    PHUB_CHECK(event.kind != Event::Kind::kFault, "fault={}", static_cast<int>(event.code));
  }
  for (std::uint32_t chunk = 0; chunk < ChunkCount(); ++chunk) {
    PHUB_CHECK(shard_->chunks()[chunk]->applied == Iteration{arguments_.rounds}, "chunk={}", chunk);
  }
}

void Run(const LoopArguments& arguments) {
  const auto topology = plan::Generate(arguments.topology);
  PHUB_CHECK(topology.ok(), "{}", topology.status().ToString());
  const plan::Planner* const planner = plan::FindPlanner(arguments.planner);
  PHUB_CHECK(planner != nullptr, "planner={}", arguments.planner);
  const auto forest = plan::MakePlan(*planner, *topology, {});
  PHUB_CHECK(forest.ok(), "{}", forest.status().ToString());
  auto racks = exchange::MakeRackPlan(*topology, *forest, RackIndex{arguments.rack});
  PHUB_CHECK(racks.ok(), "{}", racks.status().ToString());
  const bool updates = arguments.optimizer == "momentum";
  RackLoop loop(arguments, *std::move(racks), updates ? Optimizer::kMomentum : Optimizer::kNone);
  loop.Run();
  const plan::MemoryOptions options = {
      .elements = static_cast<double>(arguments.bytes) / sizeof(float),
      .ranks = arguments.ranks,
      .updates = updates,
      .states = updates ? 1u : 0u};
  const plan::DaemonMemory formula = plan::MemoryOf(*topology, *forest, options)[arguments.rack];
  fmt::print(R"({{"uplink_bytes":{},"memory_bytes":{},"formula_uplink_bytes":{:.0f},)"
             R"("formula_memory_bytes":{:.0f},"formula_touched_bytes":{:.0f}}})"
             "\n",
             loop.UplinkBytes(), loop.MemoryBytes(), formula.uplink() * arguments.rounds,
             formula.all().all() * arguments.rounds, formula.touched * arguments.rounds);
}

}  // namespace
}  // namespace phub::server

int main(int argument_count, char** arguments) {
  if (argument_count == 2 && std::string_view(arguments[1]) == "--build-info") {
    return phub::bench::PrintBuildInfo();
  }
  phub::server::LoopArguments parsed;
  CLI::App app("One core loop of a rack's daemon exchanges gradients along a plan.");
  app.add_option("--topology", parsed.topology, "Short name of a topology")->capture_default_str();
  app.add_option("--planner", parsed.planner)->capture_default_str();
  app.add_option("--optimizer", parsed.optimizer)
      ->check(CLI::IsMember({"none", "momentum"}))
      ->capture_default_str();
  app.add_option("--rack", parsed.rack, "This daemon's rack")->capture_default_str();
  app.add_option("--ranks", parsed.ranks, "Ranks of each rack")->capture_default_str();
  app.add_option("--chunk-bytes", parsed.chunk_bytes)->capture_default_str();
  app.add_option("--staging-bytes", parsed.staging_bytes, "Per lane")->capture_default_str();
  app.add_option("--bytes", parsed.bytes, "Gradients of a rank; whole chunks")
      ->capture_default_str();
  app.add_option("--rounds", parsed.rounds)->capture_default_str();
  CLI11_PARSE(app, argument_count, arguments);
  phub::server::Run(parsed);
  return 0;
}
