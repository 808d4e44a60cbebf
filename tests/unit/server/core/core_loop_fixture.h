// The core loop with a scripted transport. The test acts as the workers and as control.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <memory>
#include <vector>

#include "server/core/core_loop.h"
#include "server/core/job_shard.h"
#include "tests/unit/server/core/scripted_transport.h"

namespace phub::server {

using transport::ConnectionId;
using transport::TransportError;

inline constexpr std::uint32_t kElements = 64;
inline constexpr DurationNs kLivenessTimeout = 2 * kSecond;

class FakeClock final : public Clock {
 public:
  TimeNs Now() const override { return now += step; }
  mutable TimeNs now = 1;
  DurationNs step = 0;  // passes with every reading
};

inline std::vector<float> Filled(float value) { return std::vector<float>(kElements, value); }

// Checks the whole loop after every run, as the simulation does.
class CheckedLoop : public CoreLoop {
 public:
  using CoreLoop::CoreLoop;
  bool RunOnce() {
    const bool worked = CoreLoop::RunOnce();
    CheckInvariants();
    return worked;
  }
};

class CoreLoopTest : public ::testing::Test {
 protected:
  // 0: no keep-alives.
  explicit CoreLoopTest(DurationNs liveness_timeout = 0) : liveness_timeout_(liveness_timeout) {}

  void Start(std::uint32_t ranks, std::uint32_t slots, Optimizer optimizer = Optimizer::kNone,
             Reduction reduction = Reduction::kSum, std::uint32_t chunks = 4) {
    config_.incarnation = Incarnation{77};
    config_.membership_epoch = MembershipEpoch{1};
    config_.world_size = ranks;
    config_.chunk_bytes = kElements * sizeof(float);
    config_.slots_per_lane = slots;
    shard_ = MakeJobShard(config_);
    OnShard();
    key_.reduction = reduction;
    key_.optimizer = optimizer;
    key_.hyper_parameters = {.learning_rate = 0.5, .momentum = 0.9};
    for (std::uint32_t i = 0; i < chunks; ++i) key_.chunks.push_back({kElements, i * kElements});
    std::size_t bytes = 0;
    for (const KeyShardSpec::ChunkSpec& chunk : key_.chunks)
      bytes += std::size_t{chunk.element_count} * numeric::ElementBytes(key_.parameter_type);
    for (std::size_t version = 0; version < config_.versions(); ++version) {
      parameters_[version].resize(bytes);
      key_.parameters[version] = parameters_[version].data();
    }
    batch_ = MakeKeyBatch(config_, {&key_, 1});
    Order({.kind = Command::Kind::kAddJob, .shard = shard_.get()});
    Order({.kind = Command::Kind::kAddKeys, .shard = shard_.get(), .batch = batch_.get()});
    for (std::uint32_t rank = 0; rank < ranks; ++rank) Attach(rank);
  }
  // The shard was made, and the loop does not have it yet.
  virtual void OnShard() {}
  void Order(const Command& command) {
    ASSERT_TRUE(loop_.queues().commands.TryPush(command));
    ++ordered_;
    loop_.RunOnce();
    ASSERT_EQ(loop_.counters().commands_done.load(), ordered_);
  }
  void Attach(std::uint32_t rank) {
    staging_[rank].resize(StagingBytesPerLane(config_));
    Order({.kind = Command::Kind::kAttachLane,
           .owner = Rank{rank},
           .shard = shard_.get(),
           .connection = &endpoint_,
           .staging = staging_[rank].data()});
    lanes_[rank] = transport_.last_adopted();
  }
  wire::MessageHeader Gradient(std::uint32_t chunk, std::uint64_t iteration, std::uint32_t slot) {
    wire::MessageHeader header;
    header.kind = wire::MessageKind::kGradient;
    header.incarnation = config_.incarnation;
    header.membership_epoch = config_.membership_epoch;
    header.chunk = ChunkIndex{chunk};
    header.iteration = Iteration{iteration};
    header.slot = SlotIndex{slot};
    header.hyper_version = HyperVersion{1};
    return header;
  }
  void Push(std::uint32_t rank, std::uint32_t chunk, std::uint64_t iteration, std::uint32_t slot,
            float value) {
    transport_.Deliver(lanes_[rank], Gradient(chunk, iteration, slot), Filled(value));
    loop_.RunOnce();
  }
  std::vector<ScriptedTransport::Posted> Posted(wire::MessageKind kind) {
    std::vector<ScriptedTransport::Posted> chosen;
    for (auto& posted : transport_.TakePosted()) {
      if (posted.header.kind == kind) chosen.push_back(posted);
    }
    return chosen;
  }
  std::vector<ScriptedTransport::Posted> Replies() {
    return Posted(wire::MessageKind::kParameters);
  }
  // The next event of that kind, or kNone.
  Event Next(Event::Kind kind) {
    loop_.RunOnce();
    loop_.RunOnce();
    Event event;
    while (loop_.queues().events.TryPop(event)) {
      if (event.kind == kind) return event;
    }
    return {};
  }
  FaultCode FaultOf() { return Next(Event::Kind::kFault).code; }
  std::uint64_t Count(CoreCounter counter) { return loop_.counters().Get(counter); }

  const DurationNs liveness_timeout_;
  FakeClock clock_;
  ScriptedTransport transport_;
  std::array<transport::Transport*, 1> transports_{&transport_};
  CheckedLoop loop_{CoreIndex{0}, clock_, transports_, liveness_timeout_};
  ShardConfig config_;
  KeyShardSpec key_;  // tests may set types before Start
  std::array<std::vector<std::byte>, 2> parameters_;
  std::map<std::uint32_t, std::vector<std::byte>> staging_;
  std::unique_ptr<JobShard> shard_;
  std::unique_ptr<KeyBatch> batch_;
  ScriptedTransport::Endpoint endpoint_;
  std::map<std::uint32_t, ConnectionId> lanes_;
  std::uint64_t ordered_ = 0;
};

}  // namespace phub::server
