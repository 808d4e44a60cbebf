// Sends a snapshot's tensors to its reader part by part, as fast as the reader accepts them.
#include <algorithm>
#include <bit>
#include <cstring>

#include "common/base/check.h"
#include "server/control/checkpoint/deal.h"
#include "server/control/checkpoint/snapshots.h"
#include "server/control/on_control.h"
#include "server/control/text.h"

namespace phub::server {
namespace {

static_assert(std::endian::native == std::endian::little, "pieces carry little-endian elements");

constexpr std::uint64_t kPartBytesMax = 1 << 20;  // a piece has at most as many bytes

}  // namespace

Job* Snapshots::FindSnapshot(std::string_view snapshot_id) const {
  PHUB_ON_CONTROL();
  for (const auto& job : jobs_.jobs()) {
    if (job->checkpoints->snapshot != nullptr && job->checkpoints->snapshot->id == snapshot_id)
      return job.get();
  }
  return nullptr;
}

absl::Status Snapshots::ReadSnapshot(const v1::ReadSnapshotRequest& request,
                                     std::shared_ptr<SnapshotSink> sink) {
  PHUB_ON_CONTROL();
  Job* const job = FindSnapshot(request.snapshot_id());
  if (job == nullptr || !job->running() ||
      job->checkpoints->snapshot->state != SnapshotRun::State::kTaking) {
    return absl::NotFoundError(
        "there is no such snapshot: it was already read or released, or its job has ended");
  }
  if (absl::Status status = CheckSpansRacks(*job, request.has_rack()); !status.ok()) return status;
  SnapshotRun& run = *job->checkpoints->snapshot;
  if (run.reader != nullptr) {
    return absl::FailedPreconditionError(
        fmt::format("another client is already reading the snapshot of job {}", job->name()));
  }
  run.reader = std::move(sink);
  if (request.give_back()) {
    DropSnapshot(*job, absl::CancelledError("released without being read"));
    return absl::OkStatus();
  }
  run.reader_waits = true;
  run.keys_in_parts = request.keys_in_parts();
  AdvanceSnapshot(*job, context_.clock.Now());
  return absl::OkStatus();
}

// Adds the next keys. They are few enough for one turn of control. All keys at once were described
// by another thread.
void Snapshots::FillKeys(SnapshotRun& run, v1::SnapshotPart& part) const {
  if (!run.keys_in_parts) {
    part.mutable_keys()->Swap(&run.contents->described);
    run.key_next = run.contents->keys.size();
    return;
  }
  for (std::size_t i = 0; i < context_.options.turn.keys && !run.keys_sent(); ++i, ++run.key_next)
    *part.add_keys() = DescribeAtTarget(*run.contents, static_cast<std::uint32_t>(run.key_next));
  context_.turns.Add(static_cast<std::size_t>(part.keys_size()));
  part.set_more_keys(!run.keys_sent());
}

// Adds the next pieces. Returns the number of bytes.
std::uint64_t Snapshots::FillPieces(const Job& job, SnapshotRun& run,
                                    v1::SnapshotPart& part) const {
  std::uint64_t room = kPartBytesMax;
  const auto pieces_max = static_cast<int>(context_.options.turn.pieces);
  while (part.pieces_size() < pieces_max && run.chunk_next < run.contents->chunks.size()) {
    const ChunkRef& place = run.contents->chunks[run.chunk_next];
    const Chunk& chunk = *place.chunk;
    const auto& copy = run.images.of_cores[place.core.value]->chunks[place.index];
    PHUB_CHECK(copy.ready.load(std::memory_order_acquire), "job={} core={} chunk={}", job.name(),
               place.core.value, place.index);
    const std::vector<TensorView> tensors = TensorsOf(*chunk.key, copy);
    const TensorView& tensor = tensors[run.tensor_next];
    const std::uint64_t left = chunk.element_count - run.element_next;
    const std::uint64_t count = std::min(left, room / tensor.element_bytes);
    if (count == 0) break;
    v1::StatePiece& piece = *part.add_pieces();
    piece.set_key_index(chunk.key->key.value);
    piece.set_tensor(tensor.tensor);
    piece.set_element_offset(chunk.element_offset + run.element_next);
    piece.set_elements(tensor.data + std::size_t{run.element_next} * tensor.element_bytes,
                       count * tensor.element_bytes);
    room -= count * tensor.element_bytes;
    run.element_next += static_cast<std::uint32_t>(count);
    if (run.element_next < chunk.element_count) continue;
    run.element_next = 0;
    if (++run.tensor_next < tensors.size()) continue;
    run.tensor_next = 0;
    ++run.chunk_next;
  }
  context_.turns.Add(static_cast<std::size_t>(part.pieces_size()));
  return kPartBytesMax - room;
}

// Fills and sends one part, or ends the snapshot after the last part.
void Snapshots::SendSnapshotPart(Job& job) {
  SnapshotRun& run = *job.checkpoints->snapshot;
  v1::SnapshotPart part;
  if (!run.keys_sent()) {
    FillKeys(run, part);
  } else {
    context_.counters.Add(ControlCounter::snapshot_bytes, FillPieces(job, run, part));
  }
  if (part.keys().empty() && part.pieces().empty()) {
    context_.counters.Add(ControlCounter::snapshots_read);
    NoteReadOut(job);
    return DropSnapshot(job, absl::OkStatus());
  }
  run.reader_waits = false;
  run.deadline = context_.clock.Now() + context_.options.transfer_timeout;
  run.reader->Send(std::move(part));
}

void Snapshots::SnapshotPartSent(std::string_view snapshot_id, const SnapshotSink* sink) {
  PHUB_ON_CONTROL();
  Job* const job = FindSnapshot(snapshot_id);
  if (job == nullptr || !job->running() || job->checkpoints->snapshot->reader.get() != sink ||
      job->checkpoints->snapshot->state != SnapshotRun::State::kTaking) {
    return;
  }
  job->checkpoints->snapshot->reader_waits = true;
  SendSnapshotPart(*job);
}

void Snapshots::CancelSnapshot(std::string_view snapshot_id, const SnapshotSink* sink) {
  PHUB_ON_CONTROL();
  Job* const job = FindSnapshot(snapshot_id);
  if (job == nullptr || job->checkpoints->snapshot->reader.get() != sink) return;
  job->checkpoints->snapshot->reader.reset();
  if (!job->running() || job->checkpoints->snapshot->over()) return;
  context_.counters.Add(ControlCounter::snapshots_abandoned);
  DropSnapshot(*job, absl::CancelledError("the reader disconnected"));
}

}  // namespace phub::server
