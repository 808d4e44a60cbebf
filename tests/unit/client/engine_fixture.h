// An engine with fake lanes. The test acts as the daemon.
#pragma once

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/engine.h"
#include "client/layout.h"
#include "common/base/clock.h"
#include "tests/unit/client/fake_transport.h"

namespace phub::client {

// Stands still unless the test sets it.
class StillClock final : public Clock {
 public:
  TimeNs Now() const override { return now; }
  TimeNs now = 0;
};

class RecordingLanes final : public EngineListener {
 public:
  void OnLaneClosed(const LaneClosed& closed) override { closed_lanes.push_back(closed); }
  void OnStopped() override { ++stopped; }
  std::vector<LaneClosed> closed_lanes;
  int stopped = 0;
};

class RecordingRounds final : public RoundListener {
 public:
  void OnRoundComplete(std::uint64_t ticket, Iteration iteration, bool skipped) override {
    last_skipped = skipped;
    last_ticket = ticket;
    last_iteration = iteration;
    ++complete_count;
  }
  void OnSent(bool all) override { sent.push_back(all); }
  void OnCancelAnswered(std::uint64_t ticket, bool withdrawn) override {
    cancels.emplace_back(ticket, withdrawn);
  }
  void OnRemoved() override { ++removed_count; }
  int removed_count = 0;
  std::uint64_t last_ticket = 0;
  Iteration last_iteration{};
  bool last_skipped = false;
  int complete_count = 0;
  std::vector<bool> sent;
  std::vector<std::pair<std::uint64_t, bool>> cancels;
};

inline std::span<const std::byte> Bytes(const std::vector<float>& values) {
  return std::as_bytes(std::span(values));
}

// A test's view of one key: its memory, and what the engine reported.
struct TestKey {
  KeyIndex index{};
  std::vector<float> gradients;
  std::vector<float> parameters;
  RecordingRounds rounds;
  std::uint64_t ticket = 0;
};

class EngineTest : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kChunkBytes = 256;  // 64 elements
  static constexpr std::uint32_t kChunkElements = kChunkBytes / sizeof(float);

  void Start(std::uint32_t lane_count, std::uint32_t slots, bool restart = false) {
    config_ = {.incarnation = Incarnation{77},
               .membership_epoch = MembershipEpoch{3},
               .slots_per_lane = slots,
               .yielding_slots = yielding_slots_,
               .lane_count = lane_count,
               .apply_iteration = apply_iteration_,
               .clip_norm = iteration_.clip_norm,
               .skip_nonfinite = iteration_.skip_nonfinite,
               .report_sent = report_sent_,
               .restart = restart};
    layout_ = std::make_unique<LaneLayout>(kChunkBytes, lane_count);
    engine_ = std::make_unique<Engine>(config_, clock_, transports_, lanes_);
    for (std::uint32_t l = 0; l < lane_count; ++l) Attach(l);
  }
  void Attach(std::uint32_t lane, std::uint8_t transport_index = 0) {
    Command command{
        .kind = Command::Kind::kAttachLane, .transport_index = transport_index, .lane = lane};
    connections_.push_back(std::make_unique<FakeConnection>());
    command.connection = connections_.back().get();
    Submit(command);
  }
  // chunk_bins: the lane of each chunk; all chunks are full.
  TestKey& AddKey(const std::vector<std::uint32_t>& chunk_bins, std::int32_t priority = 0,
                  const wire::HyperParameters& values = {}, std::uint64_t first_iteration = 0,
                  bool collective = false) {
    const std::size_t elements = chunk_bins.size() * kChunkElements;
    auto key = std::make_unique<TestKey>();
    key->index = KeyIndex{static_cast<std::uint32_t>(keys_.size())};
    for (std::size_t i = 0; i < elements; ++i) {
      key->gradients.push_back(static_cast<float>(1000 * keys_.size() + i));
      key->parameters.push_back(-1.0f);
    }
    const KeyPlacementView view{.name = fmt::format("k{}", keys_.size()),
                                .key = key->index,
                                .element_count = elements,
                                .chunk_bins = chunk_bins};
    auto layouts = layout_->AddKeys({&view, 1});
    EXPECT_TRUE(layouts.ok()) << layouts.status();
    batches_.push_back(std::make_unique<KeyBatch>());
    batches_.back()->keys.push_back({.layout = layouts->front(),
                                     .first_iteration = first_iteration,
                                     .priority = priority,
                                     .collective = collective,
                                     .hyper_parameters = values,
                                     .listener = &key->rounds});
    Submit({.kind = Command::Kind::kAddKeys, .batch = batches_.back().get()});
    keys_.push_back(std::move(key));
    return *keys_.back();
  }
  void Submit(const Command& command) { ASSERT_TRUE(engine_->Submit(command)); }
  static Command PushCommand(TestKey& key) {
    return {.kind = Command::Kind::kPush,
            .key = key.index,
            .ticket = ++key.ticket,
            .gradients = std::as_bytes(std::span(key.gradients)).data(),
            .parameters = std::as_writable_bytes(std::span(key.parameters)).data()};
  }
  void Push(TestKey& key) { Submit(PushCommand(key)); }
  static Command CancelCommand(const TestKey& key) {
    return {.kind = Command::Kind::kCancel, .key = key.index, .ticket = key.ticket};
  }
  void SetHyperParameters(TestKey& key, const wire::HyperParameters& values) {
    Submit(
        {.kind = Command::Kind::kSetHyperParameters, .key = key.index, .hyper_parameters = values});
  }
  void Run() {
    while (engine_->RunOnce()) {
    }
  }
  std::vector<FakeTransport::Posted> RunAndTake() {
    Run();
    return transport_.TakePosted();
  }

  wire::MessageHeader FromDaemon(wire::MessageKind kind, std::uint32_t chunk) const {
    wire::MessageHeader header;
    header.kind = kind;
    header.incarnation = config_.incarnation;
    header.membership_epoch = config_.membership_epoch;
    header.chunk = ChunkIndex{chunk};
    return header;
  }
  wire::MessageHeader ReplyHeader(std::uint32_t chunk, std::uint64_t iteration) const {
    wire::MessageHeader header = FromDaemon(wire::MessageKind::kParameters, chunk);
    header.slot = SlotIndex{chunk};
    header.iteration = Iteration{iteration};
    header.payload_bytes = kChunkBytes;
    return header;
  }
  // A reply with a whole chunk, every element `value`.
  void Reply(std::size_t connection, std::uint32_t chunk, std::uint64_t iteration, float value) {
    const std::vector<float> payload(kChunkElements, value);
    transport_.Deliver(connection, ReplyHeader(chunk, iteration), Bytes(payload));
  }
  void Credit(std::size_t connection, std::uint32_t chunk, SlotIndex slot) {
    wire::MessageHeader header = FromDaemon(wire::MessageKind::kCredit, chunk);
    header.slot = slot;
    transport_.Deliver(connection, header, {});
  }
  static std::vector<std::uint32_t> Chunks(const std::vector<FakeTransport::Posted>& posted) {
    std::vector<std::uint32_t> chunks;
    for (const auto& one : posted)
      if (one.header.kind == wire::MessageKind::kGradient) chunks.push_back(one.header.chunk.value);
    return chunks;
  }

  // For jobs with apply=iteration; set before Start.
  struct IterationOptions {
    double clip_norm = 0.0;
    bool skip_nonfinite = false;
  };
  bool apply_iteration_ = false;
  bool report_sent_ = false;          // set before Start
  std::uint32_t yielding_slots_ = 0;  // likewise
  IterationOptions iteration_;
  StillClock clock_;
  FakeTransport transport_;
  std::vector<transport::Transport*> transports_{&transport_};
  RecordingLanes lanes_;
  EngineConfig config_;
  std::unique_ptr<LaneLayout> layout_;
  std::vector<std::unique_ptr<FakeConnection>> connections_;
  std::vector<std::unique_ptr<KeyBatch>> batches_;
  std::vector<std::unique_ptr<TestKey>> keys_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace phub::client
