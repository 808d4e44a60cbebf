// Control with core loops that keep chunks: they link keys into shards, report versions, and take
// snapshots with the core loop's own rules (server/core/checkpoint). Tests advance the chunks.
#pragma once

#include <cstring>

#include "server/core/checkpoint/shard_checkpoint.h"
#include "server/core/on_core_loop.h"
#include "tests/unit/server/control/control_fixture.h"

namespace phub::server {

struct RecordingSnapshotSink final : SnapshotSink {
  void Send(v1::SnapshotPart part) override { parts.push_back(std::move(part)); }
  void End(const absl::Status& status) override { end = status; }
  std::vector<v1::SnapshotPart> parts;
  std::optional<absl::Status> end;
};

// A core loop's work with keys, versions, snapshots and loads, on FakeCore's thread.
class KeepingCore {
 public:
  explicit KeepingCore(FakeCore& core) : core_(core) {
    core.execute_more = [this](const Command& command) { Execute(command); };
  }

  // Completes the next round of every chunk: parameters and momentum then encode its iteration and
  // place.
  void Train() {
    if (shard_ == nullptr) return;
    const OnCoreLoop on_core_loop;  // the thread that acts as the core loop
    for (std::uint32_t c = 0; c < shard_->chunk_count; ++c) TrainChunk(*shard_->chunks()[c]);
    ReportIfWhole();
  }
  JobShard& shard() const { return *shard_; }
  static float ValueOf(std::uint64_t reductions, std::uint64_t element) {
    return static_cast<float>(reductions * 1000 + element);
  }
  bool silent_on_versions = false;

 private:
  void TrainChunk(Chunk& chunk) {
    checkpoint::BeforeRound(*shard_, chunk);
    ++chunk.reductions;
    chunk.applied = Iteration{chunk.applied.value + 1};
    for (std::uint32_t i = 0; i < chunk.element_count; ++i) {
      const float value = ValueOf(chunk.reductions, chunk.element_offset + i);
      const float momentum = -value;
      std::memcpy(chunk.Parameters(chunk.applied) + i * sizeof(float), &value, sizeof(float));
      std::memcpy(chunk.state[0] + i * sizeof(float), &momentum, sizeof(float));
    }
    checkpoint::AfterRound(*shard_, chunk);
  }
  void ReportIfWhole() {
    if (!checkpoint::Whole(*shard_)) return;
    core_.Emit({.kind = Event::Kind::kSnapshotTaken, .shard = shard_, .image = shard_->snapshot});
    shard_->snapshot = nullptr;
  }
  void Execute(const Command& command) {
    const OnCoreLoop on_core_loop;
    switch (command.kind) {
      case Command::Kind::kAddJob: shard_ = command.shard; return;
      case Command::Kind::kAddKeys:
        for (ShardKey& key : command.batch->keys) shard_->keys()[shard_->key_count++] = &key;
        for (Chunk& chunk : command.batch->chunks) {
          chunk.index = ChunkIndex{shard_->chunk_count};
          shard_->chunks()[shard_->chunk_count++] = &chunk;
        }
        return;
      case Command::Kind::kReportVersions: return Report(*command.versions);
      case Command::Kind::kTakeSnapshot:
        if (!checkpoint::Begin(*shard_, *command.image)) {
          return core_.Emit(
              {.kind = Event::Kind::kSnapshotTaken, .shard = shard_, .image = command.image});
        }
        while (checkpoint::Advance(*shard_)) {
        }
        return ReportIfWhole();
      case Command::Kind::kDropSnapshot: shard_->snapshot = nullptr; return;
      case Command::Kind::kLoadCheckpoint: shard_->loaded = command.image; return;
      case Command::Kind::kEndJob: shard_ = nullptr; return;
      default: return;
    }
  }
  void Report(VersionReport& report) {
    if (silent_on_versions) return;
    for (std::uint32_t i = 0; i < shard_->chunk_count; ++i) {
      const Chunk& chunk = *shard_->chunks()[i];
      const std::uint32_t place = chunk.key->key.value - report.first.value;
      if (!chunk.is_home || place >= report.keys.size()) continue;
      VersionReport::Entry& entry = report.keys[place];
      const bool first = entry.chunk_count++ == 0;
      if (first || chunk.applied < entry.applied_min) entry.applied_min = chunk.applied;
      entry.applied_max = std::max(entry.applied_max, chunk.applied);
      entry.reductions_min =
          first ? chunk.reductions : std::min(entry.reductions_min, chunk.reductions);
      entry.reductions_max = std::max(entry.reductions_max, chunk.reductions);
      entry.hyper_parameters = chunk.key->first_values;
    }
    core_.Emit({.kind = Event::Kind::kVersionsReported, .shard = shard_, .versions = &report});
  }

  FakeCore& core_;
  JobShard* shard_ = nullptr;
};

class CheckpointTest : public ControlTest {
 protected:
  // Two ranks, two keys of 600 and 300 elements: chunks of 256 on both core loops.
  void SetUp() override {
    control();
    for (const auto& core : cores) keeping.push_back(std::make_unique<KeepingCore>(*core));
    sessions = EnterAll(2);
    AddKeysOfAll(sessions, {Key("a", 600), Key("b", 300)});
    used_before = control().memory_bytes();
  }

  JobShard& Shard(const FakeCore& core) const {
    return *core.Executed(Command::Kind::kAddJob)[0].shard;
  }
  void Train(std::uint64_t rounds = 1) {
    for (std::uint64_t i = 0; i < rounds; ++i) {
      for (const auto& core : keeping) core->Train();
    }
    Settle();
  }
  static float ValueOf(std::uint64_t reductions, std::uint64_t element) {
    return KeepingCore::ValueOf(reductions, element);
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
    const absl::Status given = control().snapshots().ReadSnapshot(request, sink);
    if (status != nullptr) *status = given;
    return sink;
  }
  void ReadToEnd(const std::string& id, RecordingSnapshotSink& sink) {
    for (int i = 0; i < 1000 && !sink.end; ++i) {
      control().snapshots().SnapshotPartSent(id, &sink);
      Settle();
    }
  }

  std::vector<std::string> sessions;
  v1::Snapshot snapshot;
  std::uint64_t used_before = 0;
  std::vector<std::unique_ptr<KeepingCore>> keeping;  // by core
};

}  // namespace phub::server
