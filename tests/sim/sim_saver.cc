#include "tests/sim/sim_saver.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "client/checkpoint/boundary.h"
#include "client/checkpoint/version_pages.h"

namespace phub::sim {
namespace {

constexpr std::uint32_t kAttemptsMax = 16;
constexpr DurationNs kPause = 20 * kMillisecond;

}  // namespace

// One daemon's ReadSnapshot. Never calls Control back directly, but schedules events.
class SimSaver::Sink final : public server::SnapshotSink,
                             public std::enable_shared_from_this<Sink> {
 public:
  Sink(SimSaver& saver, std::size_t position) : saver_(saver), position_(position) {}
  void Send(v1::SnapshotPart part) override {
    saver_.After(saver_.Delay(),
                 [self = shared_from_this(), part] { self->saver_.OnPart(self->position_, part); });
  }
  void End(const absl::Status& status) override {
    saver_.After(saver_.Delay(), [self = shared_from_this(), status] {
      self->saver_.OnEnd(self->position_, status);
    });
  }

 private:
  SimSaver& saver_;
  const std::size_t position_;
};

SimSaver::SimSaver(SimNetwork& network, std::span<const std::unique_ptr<SimDaemon>> daemons,
                   SeededRandom& random, const JobScript& script,
                   std::function<std::string(std::size_t)> session_at)
    : network_(network),
      daemons_(daemons),
      random_(random),
      script_(script),
      session_at_(std::move(session_at)),
      parts_(daemons.size()) {}

SimSaver::~SimSaver() { *alive_ = false; }

void SimSaver::After(DurationNs delay, std::function<void()> what) {
  network_.Schedule(network_.clock().Now() + delay, [alive = alive_, what = std::move(what)] {
    if (*alive) what();
  });
}

void SimSaver::Start() {
  Again();
  List("");
}

const std::string& SimSaver::mistake() const {
  for (const auto& loader : loaders_) {
    if (!loader->mistake().empty()) return loader->mistake();
  }
  return mistake_;
}

std::uint64_t SimSaver::loads_checked() const {
  return static_cast<std::uint64_t>(
      std::ranges::count_if(loaders_, [](const auto& loader) { return loader->checked(); }));
}

void SimSaver::List(const std::string& token) {
  v1::ListJobsRequest request;
  request.set_page_size(4);
  request.set_page_token(token);
  daemons_.front()->CallControl([this, request, alive = alive_](server::Control& control) {
    if (!*alive) return;
    control.admin().ListJobs(
        request, [this, alive](const absl::Status& status, const v1::ListJobsResponse& page) {
          if (!*alive) return;
          if (!status.ok()) mistake_ = std::string(status.message());
          for (const v1::JobInfo& job : page.jobs()) {
            if (job.workers().empty()) mistake_ = "listed without ranks: " + job.name();
          }
          const std::string next = page.next_page_token();
          if (next.empty()) return;
          ++pages_listed_;
          After(Delay(), [this, next] { List(next); });
        });
  });
}

// The job may not exist yet or any more. So requests that fail are repeated a bounded number of
// times.
void SimSaver::Again() {
  if (++attempt_ > kAttemptsMax) return;
  for (Part& part : parts_) {
    part.snapshot.Clear();
    part.sink = nullptr;
    part.keys.clear();
    part.pieces.clear();
  }
  After(kPause, [this] { Ask(); });
}

void SimSaver::Ask() {
  left_ = daemons_.size();
  const auto failed = std::make_shared<bool>(false);
  const auto page_size = static_cast<std::uint32_t>(random_.Below(4));  // 0: no pages
  for (std::size_t i = 0; i < daemons_.size(); ++i) {
    if (!daemons_[i]->alive()) return;
    parts_[i].versions.Clear();
    AskPage(i, page_size, failed);
  }
}

void SimSaver::AskPage(std::size_t i, std::uint32_t page_size,
                       const std::shared_ptr<bool>& failed) {
  if (!daemons_[i]->alive()) return;
  v1::GetJobVersionsRequest request;
  request.set_job(script_.name);
  request.set_first_key(parts_[i].versions.next_key());
  request.set_page_size(page_size);
  const auto answer = [this, i, page_size, failed, alive = alive_](
                          absl::Status status, const v1::GetVersionsResponse& page) {
    if (!*alive) return;
    if (status.ok()) status = client::AddPage(page, parts_[i].versions);
    if (!status.ok()) *failed = true;
    if (status.ok() && page.next_key() != 0) {
      ++version_pages_;
      return After(Delay(), [this, i, page_size, failed] { AskPage(i, page_size, failed); });
    }
    if (--left_ > 0) return;
    After(Delay(), [this, failed] { *failed ? Again() : Begin(); });
  };
  daemons_[i]->Turn(
      [&](server::Control& control) { control.versions().GetJobVersions(request, answer); });
}

void SimSaver::Begin() {
  std::vector<v1::GetVersionsResponse> versions;
  for (const Part& part : parts_) versions.push_back(part.versions);
  const std::uint64_t margin = attempt_ == 1 ? 0 : 1 + random_.Below(2);
  const auto boundary = client::ChooseBoundary(versions, before_, margin);
  before_ = std::move(versions);
  if (!boundary.ok() || boundary->targets.size() < script_.keys.size()) return Again();
  targets_ = boundary->targets;
  BeginAt(0, 0);
}

void SimSaver::BeginAt(std::size_t position, std::uint64_t incarnation) {
  if (position == daemons_.size()) return Read();
  if (!daemons_[position]->alive()) return;
  v1::BeginSnapshotRequest request;
  request.set_job(script_.name);
  request.set_incarnation(incarnation);
  for (std::size_t key = 0; key < targets_.size(); ++key) {
    v1::SnapshotTarget& target = *request.add_targets();
    target.set_key_index(static_cast<std::uint32_t>(key));
    target.set_reductions(targets_[key]);
  }
  request.set_without_keys(random_.Chance(2, 3));
  const auto answer = [this, position, alive = alive_](const absl::Status& status,
                                                       const v1::Snapshot& snapshot) {
    if (!*alive) return;
    After(Delay(), [this, position, status, snapshot] {
      if (status.ok()) {
        parts_[position].snapshot = snapshot;
        return BeginAt(position + 1, snapshot.incarnation());
      }
      missed_ += absl::IsAborted(status);
      GiveBack();
    });
  };
  daemons_[position]->Turn(
      [&](server::Control& control) { control.snapshots().BeginSnapshot(request, answer); });
}

// No one will read the snapshots that were begun, so this opens and abandons them.
void SimSaver::GiveBack() {
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const std::string id = parts_[i].snapshot.snapshot_id();
    if (id.empty() || !daemons_[i]->alive()) continue;
    daemons_[i]->Turn([&](server::Control& control) {
      if (parts_[i].sink == nullptr) {
        parts_[i].sink = std::make_shared<Sink>(*this, i);
        v1::ReadSnapshotRequest request;
        request.set_snapshot_id(id);
        if (!control.snapshots().ReadSnapshot(request, parts_[i].sink).ok()) return;
      }
      control.snapshots().CancelSnapshot(id, parts_[i].sink.get());
    });
  }
  left_ = 0;  // ignores what is still in flight
  Again();
}

void SimSaver::Read() {
  left_ = daemons_.size();
  if (random_.Chance(1, 8)) {
    ++cancelled_;
    return GiveBack();
  }
  for (std::size_t i = 0; i < daemons_.size(); ++i) {
    parts_[i].sink = std::make_shared<Sink>(*this, i);
    v1::ReadSnapshotRequest request;
    request.set_snapshot_id(parts_[i].snapshot.snapshot_id());
    request.set_keys_in_parts(random_.Chance(2, 3));
    if (!daemons_[i]->alive()) return;
    const absl::Status status = daemons_[i]->Turn([&](server::Control& control) {
      return control.snapshots().ReadSnapshot(request, parts_[i].sink);
    });
    if (!status.ok()) return GiveBack();  // the job has ended meanwhile
  }
}

void SimSaver::OnPart(std::size_t position, const v1::SnapshotPart& part) {
  Part& mine = parts_[position];
  if (mine.sink == nullptr || left_ == 0) return;
  for (const v1::SnapshotKey& key : part.keys()) {
    if (key.reductions() != targets_[key.key_index()]) {
      mistake_ = fmt::format("snapshot of {}: key {} after {} reductions, not {}", script_.name,
                             key.key_index(), key.reductions(), targets_[key.key_index()]);
    }
  }
  mine.keys.insert(mine.keys.end(), part.keys().begin(), part.keys().end());
  mine.pieces.insert(mine.pieces.end(), part.pieces().begin(), part.pieces().end());
  if (!daemons_[position]->alive()) return;
  daemons_[position]->Turn([&](server::Control& control) {
    control.snapshots().SnapshotPartSent(mine.snapshot.snapshot_id(), mine.sink.get());
  });
}

void SimSaver::OnEnd(std::size_t position, const absl::Status& status) {
  if (parts_[position].sink == nullptr || left_ == 0) return;
  if (!status.ok()) {
    missed_ += absl::IsAborted(status);
    return GiveBack();
  }
  if (--left_ == 0) Check();
}

void SimSaver::Check() {
  std::vector<std::uint64_t> elements(script_.keys.size(), 0);
  for (const Part& part : parts_) {
    for (const v1::StatePiece& piece : part.pieces) {
      if (piece.tensor() == v1::STATE_TENSOR_PARAMETERS) {
        elements[piece.key_index()] += piece.elements().size() / sizeof(float);
      }
      CheckPiece(piece);
    }
  }
  for (std::size_t i = 0; i < script_.keys.size(); ++i) {
    const std::uint32_t saved = script_.keys[i].collective ? 0 : script_.keys[i].element_count;
    if (elements[i] == saved) continue;
    mistake_ = fmt::format("snapshot of {}: {} of {} elements of {}", script_.name, elements[i],
                           saved, script_.keys[i].name);
  }
  for (const Part& part : parts_) {
    if (part.keys.size() == script_.keys.size()) continue;
    mistake_ = fmt::format("snapshot of {}: {} of {} keys", script_.name, part.keys.size(),
                           script_.keys.size());
  }
  ++taken_;
  LoadBack();
}

// Each daemon of rank 0's rack gets its own chunks, and those of its plane.
void SimSaver::LoadBack() {
  const std::size_t per_rack = parts_.size() / script_.racks;
  for (std::size_t i = 0; i < per_rack; ++i) {
    const Part& part = parts_[i];
    SimLoader::Checkpoint checkpoint{session_at_(i), {}, part.pieces, {}};
    for (std::size_t other = i + per_rack; other < parts_.size(); other += per_rack) {
      const auto& pieces = parts_[other].pieces;
      checkpoint.pieces.insert(checkpoint.pieces.end(), pieces.begin(), pieces.end());
    }
    for (std::size_t other = i; script_.racks > 1 && other < parts_.size(); other += per_rack)
      checkpoint.plane.push_back(daemons_[other].get());
    if (checkpoint.session_id.empty() || part.pieces.empty()) continue;
    for (const v1::SnapshotKey& key : part.keys) {
      if (key.spec().collective()) continue;
      v1::KeyStateInfo& info = checkpoint.keys.emplace_back();
      info.set_key_index(key.key_index());
      info.set_reductions(key.reductions());
      *info.mutable_hyper_parameters() = key.hyper_parameters();
    }
    loaders_.push_back(
        std::make_shared<SimLoader>(network_, *daemons_[i], random_, std::move(checkpoint)));
    loaders_.back()->Start();
  }
}

// A broadcast may be in flight at the same time as the reductions: a chunk is saved before or after
// it.
void SimSaver::CheckPiece(const v1::StatePiece& piece) {
  const KeyScript& key = script_.keys[piece.key_index()];
  const bool parameters = piece.tensor() == v1::STATE_TENSOR_PARAMETERS;
  // Before the first reduction, the optimizer's state is undefined.
  if (!parameters && targets_[piece.key_index()] == 0) return;
  const std::size_t array = piece.tensor() == v1::STATE_TENSOR_OPTIMIZER_1 ? 1 : 0;
  std::uint64_t reductions = 0;
  for (std::size_t version = 0; version < key.expected.size(); ++version) {
    if (version > 0) {
      const RoundScript& round = key.rounds[version - 1];
      reductions += wire::IsIteration(round.operation) && !round.skipped ? 1 : 0;
    }
    if (reductions != targets_[piece.key_index()]) continue;
    const std::vector<float>& expected =
        parameters ? key.expected[version] : key.expected_states[version][array];
    if (piece.element_offset() + piece.elements().size() / sizeof(float) <= expected.size() &&
        std::memcmp(expected.data() + piece.element_offset(), piece.elements().data(),
                    piece.elements().size()) == 0) {
      return;
    }
  }
  mistake_ = fmt::format("snapshot of {} {} tensor {} from element {}: not after {} reductions",
                         script_.name, key.name, static_cast<int>(piece.tensor()),
                         piece.element_offset(), targets_[piece.key_index()]);
}

}  // namespace phub::sim
