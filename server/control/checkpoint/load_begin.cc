// Begins a checkpoint load: maps the images and checks which keys the load names. Another thread
// does that if there are many keys.
#include <utility>

#include "server/control/checkpoint/deal.h"
#include "server/control/checkpoint/images.h"
#include "server/control/checkpoint/loads.h"
#include "server/control/on_control.h"

namespace phub::server {

absl::StatusOr<LoadId> Loads::BeginLoad(v1::LoadStateRequest first) {
  PHUB_ON_CONTROL();
  const absl::StatusOr<Seating> seat = FindLoader(first);
  if (!seat.ok()) return seat.status();
  Job& job = *seat->job;
  if (absl::Status status = CheckNoGroups(job); !status.ok())
    return context_.Refuse(ControlCounter::loads_refused, status);
  if (!pending_calls_.KeysAcknowledged(job, job.batches.size())) {
    return context_.Refuse(
        ControlCounter::loads_refused,
        absl::AbortedError(
            fmt::format("keys of job {} are being added or removed; retry loading the checkpoint",
                        job.name())));
  }
  if (first.refusal_code() != 0) return RefuseLoad(job, seat->rank, first);
  const bool is_own = !first.session_id().empty();
  if (!IsNewestLoad(job, is_own ? job.checkpoints->newest_load + 1 : first.number())) {
    return context_.Refuse(ControlCounter::loads_refused, Over());
  }
  if (job.checkpoints->arrival) FailArrival(job, Over());
  auto arrival = std::make_unique<CheckpointArrival>();
  arrival->id = ++loads_begun_;
  arrival->rank = seat->rank;
  arrival->session_id = first.session_id();
  arrival->deadline = kNever;
  arrival->state = std::make_unique<DeliveredCheckpoint>();
  const LoadId id = arrival->id;
  job.checkpoints->arrival = std::move(arrival);
  MapArrival(job, std::move(first));
  // Without another thread, it may have failed already.
  const CheckpointArrival* const now = job.checkpoints->arrival.get();
  if (now != nullptr && now->id == id && !now->failure.ok()) return now->failure;
  return id;
}

// Another thread maps the images and checks which keys the load names, in an arrival of its own.
void Loads::MapArrival(Job& job, v1::LoadStateRequest first) {
  struct Draft {
    ChunkSource source;
    KeyTable keys;
    std::string job;
    std::vector<std::shared_ptr<CheckpointImage>> images;
    CheckpointArrival arrival;
    absl::Status status;
    bool spans_racks = false;
    std::uint32_t racks_to_deal = 0;  // 0: this daemon loads only its own chunks
    std::uint64_t number = 0;         // the load's, for the other racks
  };
  const auto draft = std::make_shared<Draft>();
  draft->source = SourceOf(job);
  draft->keys = job.keys;
  draft->job = job.name();
  draft->spans_racks = job.rack_run != nullptr;
  if (draft->spans_racks && !first.session_id().empty())
    draft->racks_to_deal = context_.options.racks_with_ranks();
  draft->number = job.checkpoints->newest_load;
  draft->arrival.state = std::make_unique<DeliveredCheckpoint>();
  v1::LoadedState& description = *draft->arrival.state->description;
  description.set_iteration(first.iteration());
  description.mutable_keys()->Swap(first.mutable_keys());
  v1::SavedState& source = *description.mutable_source();
  source = SaveAt(first.iteration(), first.source().directory(), first.source().host());
  source.set_loaded(true);
  const auto work = [draft, self = RackIndex{context_.options.rack_index}] {
    draft->images = MapImages(draft->source);
    if (draft->images.empty()) return;
    CheckpointArrival& arrival = draft->arrival;
    arrival.state->images.of_cores = draft->images;
    PrepareParts(draft->source, draft->keys.size(), arrival);
    const KeyInfos& named = arrival.state->description->keys();
    draft->status =
        NameKeys(draft->job, draft->keys,
                 std::span(named.data(), static_cast<std::size_t>(named.size())), arrival);
    if (!draft->status.ok() || !draft->spans_racks) return;
    const std::vector<ChunkRef> chunks = ChunksOf(draft->source);
    CountReductionsElsewhere(chunks, draft->keys.size(), arrival);
    if (draft->racks_to_deal == 0) return;
    DealOut(draft->racks_to_deal, self, chunks, *arrival.state->description, arrival);
    for (auto& [rack, part] : arrival.for_racks) part.set_number(draft->number);
  };
  const auto enter = [this, &job, draft,
                      id = job.checkpoints->arrival->id](const absl::Status& covered) {
    CheckpointArrival* const arrival = job.checkpoints->arrival.get();
    if (!job.running() || arrival == nullptr || arrival->id != id || arrival->state == nullptr) {
      (void)host_memory_.FreeLater(draft);
      return;
    }
    if (!covered.ok()) {
      (void)host_memory_.FreeLater(draft);
      return FailArrival(job, context_.Refuse(ControlCounter::loads_refused, covered));
    }
    EnterArrival(job, std::move(draft->arrival), std::move(draft->images), draft->status);
  };
  RunLongOn(context_, job, work,
            [this, &job, draft, enter] { CoverImages(context_, job, draft->images, enter); });
}

// The images are mapped and the keys are named: charges the images, and gets their pages.
void Loads::EnterArrival(Job& job, CheckpointArrival draft,
                         std::vector<std::shared_ptr<CheckpointImage>> mapped,
                         const absl::Status& named) {
  CheckpointArrival& arrival = *job.checkpoints->arrival;
  arrival.state->description = std::move(draft.state->description);
  arrival.state->first_iterations = std::move(draft.state->first_iterations);
  arrival.named = std::move(draft.named);
  arrival.parts = std::move(draft.parts);
  arrival.first_parts = std::move(draft.first_parts);
  arrival.elements_left = draft.elements_left;
  arrival.dealt = std::move(draft.dealt);
  arrival.for_racks = std::move(draft.for_racks);
  auto images = AdmitImages(context_, host_memory_, job, std::move(mapped));
  if (!images.ok()) {
    return FailArrival(job, context_.Refuse(ControlCounter::loads_refused, images.status()));
  }
  arrival.state->images = *std::move(images);
  arrival.mapped = true;
  if (!named.ok()) return FailArrival(job, named);
  context_.counters.Add(ControlCounter::loads_begun);
  NotePages(job);
}

}  // namespace phub::server
