// Saved state on its way in: gathered in images, piece by piece, each checked; brought to the core
// loops when it is whole. See saved_state.h for who holds what until when.
#include <algorithm>
#include <bit>
#include <cstring>

#include "common/base/check.h"
#include "common/base/log.h"
#include "server/control/jobs/hyper_parameters.h"
#include "server/control/state.h"
#include "server/control/text.h"

namespace phub::server {
namespace {

static_assert(std::endian::native == std::endian::little, "elements are kept as they come");

constexpr std::size_t kPieceBytesMax = 1 << 20;

const char* NameOf(v1::StateTensor tensor) {
  switch (tensor) {
    case v1::STATE_TENSOR_PARAMETERS: return "parameters";
    case v1::STATE_TENSOR_MASTERS: return "masters";
    case v1::STATE_TENSOR_OPTIMIZER_0: return "first optimizer state";
    case v1::STATE_TENSOR_OPTIMIZER_1: return "second optimizer state";
    default: return "a tensor that phub does not know";
  }
}

absl::Status Over() {
  return absl::AbortedError(
      "this load of saved state is over: a newer one took its place, or the job has ended");
}

}  // namespace

Job* Control::State::FindLoad(LoadId load) {
  for (const auto& job : jobs) {
    if (job->arrival != nullptr && job->arrival->id == load) return job.get();
  }
  return nullptr;
}

// Which keys come, and what there is of them here.
absl::Status Control::State::NameKeys(const Job& job, const v1::LoadStateRequest& first,
                                      StateArrival& arrival) {
  arrival.named.assign(job.keys.size(), false);
  std::vector<std::uint64_t> reductions(job.keys.size(), 0);
  arrival.parts.resize(job.keys.size());
  const std::vector<ChunkRef> chunks = ChunksOf(job);
  for (const ChunkRef& place : chunks) {
    const KeyState& key = *place.chunk->key;
    const auto& image = arrival.state->images[place.core.value]->chunks[place.index];
    if (!place.chunk->is_home) continue;
    arrival.parts[key.key.value].push_back(
        {place, std::vector<std::uint32_t>(TensorsOf(key, image).size(), 0)});
  }
  for (const v1::KeyStateInfo& info : first.keys()) {
    if (info.key_index() >= job.keys.size() || arrival.named[info.key_index()]) {
      return absl::InvalidArgumentError(fmt::format(
          "job {}: the saved state names key number {}, which {}", job.name(), info.key_index(),
          info.key_index() < job.keys.size() ? "it names twice" : "the job does not have"));
    }
    if (!IsFinite(info.hyper_parameters())) {
      return absl::InvalidArgumentError(
          fmt::format("job {} key {}: a hyper-parameter of the saved state is not finite",
                      job.name(), job.keys[info.key_index()].name()));
    }
    arrival.named[info.key_index()] = true;
    for (const StateArrival::Part& part : arrival.parts[info.key_index()]) {
      arrival.elements_left +=
          std::uint64_t{part.place.chunk->element_count} * part.elements_come.size();
    }
    reductions[info.key_index()] = info.reductions();
  }
  for (const ChunkRef& place : chunks) {
    const std::uint32_t key = place.chunk->key->key.value;
    if (!arrival.named[key]) continue;
    auto& image = arrival.state->images[place.core.value]->chunks[place.index];
    image.reductions = reductions[key];
    // No more than that comes of what is at home elsewhere.
    if (!place.chunk->is_home) image.ready.store(true, std::memory_order_release);
  }
  for (auto& parts : arrival.parts) {
    std::sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) {
      return a.place.chunk->element_offset < b.place.chunk->element_offset;
    });
  }
  return absl::OkStatus();
}

absl::StatusOr<LoadId> Control::State::BeginLoad(const v1::LoadStateRequest& first) {
  const absl::StatusOr<Seating> seat = FindLoader(first);
  if (!seat.ok()) return seat.status();
  Job& job = *seat->job;
  if (!KeysAcknowledged(job, job.batches.size())) {
    return Refuse(ControlCounter::loads_refused,
                  absl::AbortedError(fmt::format(
                      "keys are being added to job {}; load its state again", job.name())));
  }
  if (first.refusal_code() != 0) return RefuseLoad(job, seat->rank, first);
  const bool is_own = !first.session_id().empty();
  if (!IsNewestLoad(job, is_own ? job.newest_load + 1 : first.number())) {
    return Refuse(ControlCounter::loads_refused, Over());
  }
  if (job.arrival) FailArrival(job, Over());
  auto arrival = std::make_unique<StateArrival>();
  arrival->id = ++loads_begun;
  arrival->rank = seat->rank;
  arrival->session_id = first.session_id();
  arrival->deadline = clock.Now() + options.transfer_timeout;
  arrival->state = std::make_unique<BroughtState>();
  auto images = MakeImages(job, arrival->state->memory_bytes);
  if (!images.ok()) return Refuse(ControlCounter::loads_refused, images.status());
  arrival->state->images = *std::move(images);
  arrival->state->description.set_iteration(first.iteration());
  *arrival->state->description.mutable_keys() = first.keys();
  v1::SavedState& source = *arrival->state->description.mutable_source();
  source = SaveAt(first.iteration(), first.source().directory(), first.source().host());
  source.set_loaded(true);
  const absl::Status status = NameKeys(job, first, *arrival);
  if (status.ok() && job.rack_run != nullptr && is_own) {
    DealOut(options.racks_with_ranks(), RackIndex{options.rack_index}, ChunksOf(job),
            arrival->state->description, *arrival);
    for (auto& [rack, part] : arrival->for_racks) part.set_number(job.newest_load);
  }
  const LoadId id = arrival->id;
  job.arrival = std::move(arrival);
  if (!status.ok()) {
    FailArrival(job, status);
    return status;
  }
  counters.Add(ControlCounter::loads_begun);
  return id;
}

absl::Status Control::State::TakePiece(const Job& job, StateArrival& arrival,
                                       const v1::StatePiece& piece) {
  const auto wrong = [&](const std::string& what) {
    const std::string key = piece.key_index() < job.keys.size()
                                ? job.keys[piece.key_index()].name()
                                : fmt::format("number {}", piece.key_index());
    return absl::InvalidArgumentError(fmt::format(
        "job {} key {}: a piece of its saved state ({} from element {}, {} bytes) {}", job.name(),
        key, NameOf(piece.tensor()), piece.element_offset(), piece.elements().size(), what));
  };
  if (piece.key_index() >= arrival.named.size() || !arrival.named[piece.key_index()]) {
    return wrong("is of a key that the load does not name");
  }
  if (piece.elements().empty() || piece.elements().size() > kPieceBytesMax) {
    return wrong(fmt::format("is empty or over {} bytes", kPieceBytesMax));
  }
  std::vector<StateArrival::Part>& parts = arrival.parts[piece.key_index()];
  auto part = std::upper_bound(parts.begin(), parts.end(), piece.element_offset(),
                               [](std::uint64_t offset, const StateArrival::Part& each) {
                                 return offset < each.place.chunk->element_offset;
                               });
  if (part == parts.begin()) return wrong("is not of this daemon's chunks");
  --part;
  std::uint64_t offset = piece.element_offset();
  const char* from = piece.elements().data();
  std::size_t bytes = piece.elements().size();
  for (; bytes > 0; ++part) {
    if (part == parts.end()) return wrong("goes beyond this daemon's chunks");
    const Chunk& chunk = *part->place.chunk;
    const auto& image = arrival.state->images[part->place.core.value]->chunks[part->place.index];
    const std::vector<TensorView> tensors = TensorsOf(*chunk.key, image);
    const auto tensor = std::find_if(tensors.begin(), tensors.end(), [&](const TensorView& each) {
      return each.tensor == piece.tensor();
    });
    if (tensor == tensors.end()) return wrong("is of a tensor that the key does not have");
    if (bytes % tensor->element_bytes != 0) {
      return wrong(fmt::format("is not of whole elements of {} bytes", tensor->element_bytes));
    }
    if (offset < chunk.element_offset || offset - chunk.element_offset >= chunk.element_count) {
      return wrong("is not of this daemon's chunks");
    }
    std::uint32_t& come = part->elements_come[static_cast<std::size_t>(tensor - tensors.begin())];
    if (offset != chunk.element_offset + come) {
      return wrong(
          fmt::format("is out of order: element {} is the next", chunk.element_offset + come));
    }
    const std::size_t count =
        std::min<std::size_t>(bytes / tensor->element_bytes, chunk.element_count - come);
    std::memcpy(tensor->data + std::size_t{come} * tensor->element_bytes, from,
                count * tensor->element_bytes);
    come += static_cast<std::uint32_t>(count);
    arrival.elements_left -= count;
    offset += count;
    from += count * tensor->element_bytes;
    bytes -= count * tensor->element_bytes;
  }
  return absl::OkStatus();
}

absl::Status Control::State::LoadPart(LoadId load, const v1::LoadStateRequest& part) {
  Job* const job = FindLoad(load);
  if (job == nullptr) return Over();
  StateArrival& arrival = *job->arrival;
  if (!arrival.failure.ok()) return arrival.failure;
  if (arrival.is_refusal) return absl::OkStatus();
  absl::Status status = CheckLoader(*job, arrival.session_id);
  for (const v1::StatePiece& piece : part.pieces()) {
    if (!status.ok()) break;
    counters.Add(ControlCounter::load_bytes, piece.elements().size());
    if (arrival.dealt.empty()) {
      status = TakePiece(*job, arrival, piece);
      continue;
    }
    for (const v1::StatePiece& own : DealPiece(RackIndex{options.rack_index}, arrival, piece)) {
      if (status.ok()) status = TakePiece(*job, arrival, own);
    }
  }
  if (!status.ok()) {
    FailArrival(*job, Refuse(ControlCounter::loads_refused, status));
    return status;
  }
  arrival.deadline = clock.Now() + options.transfer_timeout;
  return absl::OkStatus();
}

void Control::State::FinishLoad(LoadId load, Answer<v1::LoadStateResponse> answer) {
  Job* const job = FindLoad(load);
  if (job == nullptr) return answer(Over(), {});
  StateArrival& arrival = *job->arrival;
  absl::Status status = arrival.failure;
  if (status.ok()) status = CheckLoader(*job, arrival.session_id);
  if (status.ok() && arrival.elements_left > 0) {
    status = absl::InvalidArgumentError(
        fmt::format("the saved state of job {} ended before it was whole: {} elements of this "
                    "daemon's chunks are missing",
                    job->name(), arrival.elements_left));
  }
  if (!status.ok()) {
    if (arrival.failure.ok()) FailArrival(*job, Refuse(ControlCounter::loads_refused, status));
    job->arrival.reset();
    return answer(status, {});
  }
  if (arrival.is_refusal) {
    job->arrival.reset();
    return answer(absl::OkStatus(), {});
  }
  BringState(*job);
  job->pending.push_back({job->brought->tickets, [answer] { answer(absl::OkStatus(), {}); },
                          [answer](const absl::Status& failed) { answer(failed, {}); }});
  AnswerAcknowledged(*job);
}

// It is whole: the core loops have it from here on, and let go of what they had before.
void Control::State::BringState(Job& job) {
  const std::unique_ptr<StateArrival> arrival = std::move(job.arrival);
  std::unique_ptr<BroughtState> state = std::move(arrival->state);
  for (std::size_t key = 0; key < arrival->parts.size(); ++key) {
    if (!arrival->named[key]) continue;
    for (const StateArrival::Part& part : arrival->parts[key]) {
      state->images[part.place.core.value]->chunks[part.place.index].ready.store(
          true, std::memory_order_release);
    }
  }
  for (std::size_t core = 0; core < links.size(); ++core) {
    state->tickets.push_back(links[core].Send({.kind = Command::Kind::kBringState,
                                               .shard = job.shards[core].get(),
                                               .image = state->images[core].get()}));
  }
  if (job.brought) {
    job.brought->tickets = state->tickets;
    job.replaced_states.push_back(std::move(job.brought));
  }
  job.brought = std::move(state);
  job.load_refusal = absl::OkStatus();
  TakeOverIterations(job, job.brought->description);
  NoteSave(job, job.brought->description.source(), clock.Now(), clock.Now());
  counters.Add(ControlCounter::loads_brought);
  const std::string by =
      arrival->session_id.empty() ? "rack" : fmt::format("rank {}", arrival->rank.value);
  LogInfo("event=state_brought tenant={} job=\"{}\" by=\"{}\" iteration={} keys={}",
          job.account.tenant, job.name(), by, job.brought->description.iteration(),
          job.brought->description.keys_size());
}

// It will not come to anything: the core loops never saw it, so its memory comes back at once. Who
// sends it learns why with the next part.
void Control::State::FailArrival(Job& job, const absl::Status& status) {
  StateArrival& arrival = *job.arrival;
  if (arrival.state == nullptr) return;
  ledger.Return(job.account, arrival.state->memory_bytes);
  job.memory_bytes -= arrival.state->memory_bytes;
  arrival.state.reset();
  arrival.parts.clear();
  arrival.failure = status;
  arrival.deadline = kNever;
}

void Control::State::CancelLoad(LoadId load) {
  Job* const job = FindLoad(load);
  if (job == nullptr) return;
  FailArrival(*job, absl::CancelledError("the worker gave up"));
  job->arrival.reset();
}

void Control::State::GetLoadedState(const v1::GetLoadedStateRequest& request,
                                    Answer<v1::LoadedState> answer) {
  const absl::StatusOr<Seating> seat = FindRunning(request.session_id());
  if (!seat.ok()) return answer(seat.status(), {});
  Job& job = *seat->job;
  if (!job.load_refusal.ok()) return answer(job.load_refusal, {});
  if (job.brought == nullptr) {
    return answer(
        absl::NotFoundError(fmt::format("no saved state was brought to job {}", job.name())), {});
  }
  job.pending.push_back(
      {job.brought->tickets,
       [answer, state = job.brought->description] { answer(absl::OkStatus(), state); },
       [answer](const absl::Status& failed) { answer(failed, {}); }});
  AnswerAcknowledged(job);
}

void Control::State::AdvanceLoad(Job& job, TimeNs now) {
  if (!job.running()) return;  // all of it is freed with the job
  std::erase_if(job.replaced_states, [&](const std::unique_ptr<BroughtState>& state) {
    if (!Acknowledged(state->tickets)) return false;
    ledger.Return(job.account, state->memory_bytes);
    job.memory_bytes -= state->memory_bytes;
    return true;
  });
  if (job.arrival && now >= job.arrival->deadline) {
    FailArrival(job, absl::DeadlineExceededError(
                         fmt::format("no more of job {}'s saved state came within {}", job.name(),
                                     FormatAge(options.transfer_timeout))));
  }
}

}  // namespace phub::server
