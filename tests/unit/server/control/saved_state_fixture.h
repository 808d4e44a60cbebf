// Control with core loops that keep chunks: keys are linked into shards, versions reported, and
// snapshots taken with the core loop's own rules (server/state). Tests move the chunks on.
#pragma once

#include <cstring>

#include "server/state/shard_state.h"
#include "tests/unit/server/control/control_fixture.h"

namespace phub::server {

struct RecordingSnapshotSink final : SnapshotSink {
  void Send(const v1::SnapshotPart& part) override { parts.push_back(part); }
  void End(const absl::Status& status) override { end = status; }
  std::vector<v1::SnapshotPart> parts;
  std::optional<absl::Status> end;
};

class SavedStateTest : public ControlTest {
 protected:
  // Two ranks, two keys of 600 and 300 elements: chunks of 256 on both core loops.
  void SetUp() override {
    control();
    for (const auto& core : cores) {
      core->execute_more = [this, core = core.get()](const Command& command) {
        Execute(*core, command);
      };
    }
    sessions = EnterAll(2);
    AddKeysOfAll(sessions, {Key("a", 600), Key("b", 300)});
    used_before = control().memory_bytes();
  }

  JobShard& Shard(const FakeCore& core) const {
    return *core.Executed(Command::Kind::kAddJob)[0].shard;
  }
  // Every chunk's next round: its parameters and momentum are its iteration and place from now on.
  void Train(std::uint64_t rounds = 1) {
    for (std::uint64_t i = 0; i < rounds; ++i) {
      for (const auto& core : cores) {
        JobShard& shard = Shard(*core);
        for (std::uint32_t c = 0; c < shard.chunk_count; ++c) TrainChunk(shard, *shard.chunks()[c]);
        ReportIfWhole(*core);
      }
    }
    Settle();
  }
  static float ValueOf(std::uint64_t reductions, std::uint64_t element) {
    return static_cast<float>(reductions * 1000 + element);
  }

  v1::BeginSnapshotRequest TargetsAt(std::uint64_t reductions) const {
    v1::BeginSnapshotRequest request;
    request.set_job("digits");
    for (std::uint32_t key = 0; key < 2; ++key) {
      request.add_targets()->set_key_index(key);
      request.mutable_targets(static_cast<int>(key))->set_reductions(reductions);
    }
    return request;
  }
  std::string BeginAt(std::uint64_t reductions) {
    const auto begun = BeginSnapshot(TargetsAt(reductions));
    Settle();
    EXPECT_TRUE(begun->ok()) << begun->message();
    snapshot = begun->response;
    return snapshot.snapshot_id();
  }
  std::shared_ptr<RecordingSnapshotSink> Read(const std::string& id,
                                              absl::Status* status = nullptr) {
    auto sink = std::make_shared<RecordingSnapshotSink>();
    v1::ReadSnapshotRequest request;
    request.set_snapshot_id(id);
    const absl::Status given = control().ReadSnapshot(request, sink);
    if (status != nullptr) *status = given;
    return sink;
  }
  void ReadToEnd(const std::string& id, RecordingSnapshotSink& sink) {
    for (int i = 0; i < 1000 && !sink.end; ++i) {
      control().SnapshotPartSent(id, &sink);
      Settle();
    }
  }

  std::vector<std::string> sessions;
  v1::Snapshot snapshot;
  std::uint64_t used_before = 0;
  bool silent_on_versions = false;

 private:
  static void TrainChunk(JobShard& shard, Chunk& chunk) {
    state::BeforeRound(shard, chunk);
    ++chunk.reductions;
    chunk.applied = Iteration{chunk.applied.value + 1};
    for (std::uint32_t i = 0; i < chunk.element_count; ++i) {
      const float value = ValueOf(chunk.reductions, chunk.element_offset + i);
      const float momentum = -value;
      std::memcpy(chunk.Parameters(chunk.applied) + i * sizeof(float), &value, sizeof(float));
      std::memcpy(chunk.state[0] + i * sizeof(float), &momentum, sizeof(float));
    }
    state::AfterRound(shard, chunk);
  }
  void ReportIfWhole(FakeCore& core) {
    JobShard& shard = Shard(core);
    if (!state::Whole(shard)) return;
    core.Emit({.kind = Event::Kind::kSnapshotTaken, .shard = &shard, .image = shard.snapshot});
    shard.snapshot = nullptr;
  }
  void Execute(FakeCore& core, const Command& command) {
    JobShard& shard = *command.shard;
    switch (command.kind) {
      case Command::Kind::kAddKeys:
        for (KeyState& key : command.batch->keys) shard.keys()[shard.key_count++] = &key;
        for (Chunk& chunk : command.batch->chunks) {
          chunk.index = ChunkIndex{shard.chunk_count};
          shard.chunks()[shard.chunk_count++] = &chunk;
        }
        return;
      case Command::Kind::kReportVersions: return Report(core, shard, *command.versions);
      case Command::Kind::kTakeSnapshot:
        if (!state::Begin(shard, *command.image)) {
          return core.Emit(
              {.kind = Event::Kind::kSnapshotTaken, .shard = &shard, .image = command.image});
        }
        while (state::Advance(shard)) {
        }
        return ReportIfWhole(core);
      case Command::Kind::kDropSnapshot: shard.snapshot = nullptr; return;
      case Command::Kind::kBringState: shard.brought = command.image; return;
      default: return;
    }
  }
  void Report(FakeCore& core, JobShard& shard, VersionReport& report) {
    if (silent_on_versions) return;
    for (std::uint32_t i = 0; i < shard.chunk_count; ++i) {
      const Chunk& chunk = *shard.chunks()[i];
      VersionReport::Entry& entry = report.keys[chunk.key->key.value];
      const bool first = entry.chunk_count++ == 0;
      if (first || chunk.applied < entry.applied_min) entry.applied_min = chunk.applied;
      entry.applied_max = std::max(entry.applied_max, chunk.applied);
      entry.reductions_min =
          first ? chunk.reductions : std::min(entry.reductions_min, chunk.reductions);
      entry.reductions_max = std::max(entry.reductions_max, chunk.reductions);
      entry.hyper_parameters = chunk.key->first_values;
    }
    core.Emit({.kind = Event::Kind::kVersionsReported, .shard = &shard, .versions = &report});
  }
};

}  // namespace phub::server
