// Checks and collects a checkpoint's pieces in images and gives it to the core loops once it is
// complete. See checkpoints.h for the lifetime of images.
#include "server/control/checkpoint/loads.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "common/base/check.h"
#include "common/base/printable.h"
#include "server/control/checkpoint/deal.h"
#include "server/control/checkpoint/images.h"
#include "server/control/jobs/hyper_parameters.h"
#include "server/control/on_control.h"
#include "server/control/text.h"

namespace phub::server {
namespace {

constexpr std::size_t kSentenceBytesMax = 2048;  // far more than a daemon's fault message has

// A worker's message, to be shown to other ranks and users.
std::string Sentence(std::string_view text) { return Printable(text, kSentenceBytesMax); }

void CopyPage(const v1::LoadedState& state, int first, int last, v1::LoadedState& page) {
  page.set_iteration(state.iteration());
  *page.mutable_source() = state.source();
  for (int i = first; i < last; ++i) *page.add_keys() = state.keys(i);
  if (last < state.keys_size()) page.set_next(static_cast<std::uint32_t>(last));
}

}  // namespace

absl::Status Loads::Over() {
  return absl::AbortedError(
      "this checkpoint load is over: a newer load replaced it or the job has ended");
}

Job* Loads::FindLoad(LoadId load) const {
  for (const auto& job : jobs_.jobs()) {
    if (job->checkpoints->arrival != nullptr && job->checkpoints->arrival->id == load)
      return job.get();
  }
  return nullptr;
}

// Parts are accepted once the images have pages: copying a part must not wait for them.
void Loads::NotePages(Job& job) {
  CheckpointArrival& arrival = *job.checkpoints->arrival;
  if (arrival.accepts || arrival.state == nullptr || !arrival.mapped) return;
  const PrefaultState pages = arrival.state->images.state();
  if (pages == PrefaultState::kWaiting) return;
  if (pages == PrefaultState::kRefused) {
    return FailArrival(job, context_.Refuse(ControlCounter::loads_refused,
                                            ImagesRefused(job, arrival.state->images.bytes)));
  }
  arrival.deadline = context_.clock.Now() + context_.options.transfer_timeout;
  SetAccepts(arrival);
}

void Loads::SetAccepts(CheckpointArrival& arrival) {
  arrival.accepts = true;
  if (arrival.resume) std::exchange(arrival.resume, nullptr)();
}

bool Loads::AcceptsParts(LoadId load, std::function<void()> resume) {
  PHUB_ON_CONTROL();
  Job* const job = FindLoad(load);
  if (job == nullptr || job->checkpoints->arrival->accepts) return true;
  job->checkpoints->arrival->resume = std::move(resume);
  return false;
}

absl::Status Loads::LoadPart(LoadId load, const v1::LoadStateRequest& part) {
  PHUB_ON_CONTROL();
  int next = 0;
  absl::Status status;
  do {
    status = LoadPieces(load, part, next);
  } while (status.ok() && next < UnitsOf(part));
  return status;
}

absl::Status Loads::LoadPieces(LoadId load, const v1::LoadStateRequest& part, int& next) {
  PHUB_ON_CONTROL();
  Job* const job = FindLoad(load);
  if (job == nullptr) return Over();
  CheckpointArrival& arrival = *job->checkpoints->arrival;
  if (!arrival.failure.ok()) return arrival.failure;
  if (arrival.is_refusal) {
    next = UnitsOf(part);
    return absl::OkStatus();
  }
  PHUB_CHECK(arrival.accepts, "job={}", job->name());
  absl::Status status = CheckLoader(*job, arrival.session_id);
  // BeginLoad has the keys of the first part.
  if (next == 0 && !std::exchange(arrival.began, true)) next = part.keys_size();
  const bool names_keys = next < part.keys_size();
  const TurnBudget& budget = context_.options.turn;
  const int end = std::min(names_keys ? part.keys_size() : UnitsOf(part),
                           next + static_cast<int>(names_keys ? budget.keys : budget.pieces));
  if (status.ok() && names_keys) {
    context_.turns.Add(static_cast<std::size_t>(end - next));
    status = NameMoreKeys(*job, part, arrival, next, end);
  }
  for (; next < end && status.ok(); ++next) {
    const v1::StatePiece& piece = part.pieces(next - part.keys_size());
    context_.turns.Add(1);
    context_.counters.Add(ControlCounter::load_bytes, piece.elements().size());
    if (arrival.dealt.empty()) {
      status = TakePiece(*job, arrival, piece);
      continue;
    }
    for (const v1::StatePiece& own :
         DealPiece(RackIndex{context_.options.rack_index}, arrival, piece)) {
      if (status.ok()) status = TakePiece(*job, arrival, own);
    }
  }
  if (!status.ok()) {
    FailArrival(*job, context_.Refuse(ControlCounter::loads_refused, status));
    return status;
  }
  arrival.deadline = context_.clock.Now() + context_.options.transfer_timeout;
  return absl::OkStatus();
}

void Loads::Later(LoadId load, std::function<void()> then) {
  PHUB_ON_CONTROL();
  Job* const job = FindLoad(load);
  if (job == nullptr) return then();
  context_.turns.RunLater(job->account.tenant, std::move(then));
}

void Loads::FinishLoad(LoadId load, Answer<v1::LoadStateResponse> answer) {
  PHUB_ON_CONTROL();
  Job* const job = FindLoad(load);
  if (job == nullptr) return answer(Over(), {});
  CheckpointArrival& arrival = *job->checkpoints->arrival;
  absl::Status status = arrival.failure;
  if (status.ok()) status = CheckLoader(*job, arrival.session_id);
  if (status.ok() && arrival.elements_left > 0) {
    status = absl::InvalidArgumentError(fmt::format(
        "the checkpoint for job {} is incomplete: {} elements of this daemon's chunks are missing",
        job->name(), arrival.elements_left));
  }
  if (!status.ok()) {
    if (arrival.failure.ok())
      FailArrival(*job, context_.Refuse(ControlCounter::loads_refused, status));
    job->checkpoints->arrival.reset();
    return answer(status, {});
  }
  if (arrival.is_refusal) {
    job->checkpoints->arrival.reset();
    return answer(absl::OkStatus(), {});
  }
  SendCheckpoint(*job);
  job->pending.push_back({job->checkpoints->loaded->tickets,
                          [answer] { answer(absl::OkStatus(), {}); },
                          [answer](const absl::Status& failed) { answer(failed, {}); }});
  pending_calls_.AnswerAcknowledged(*job);
}

// The checkpoint is complete: gives it to the core loops, which release the previous one.
void Loads::SendCheckpoint(Job& job) {
  const std::unique_ptr<CheckpointArrival> arrival = std::move(job.checkpoints->arrival);
  std::unique_ptr<DeliveredCheckpoint> state = std::move(arrival->state);
  for (std::size_t core = 0; core < context_.cores.size(); ++core) {
    state->tickets.push_back(
        context_.cores[core].Send({.kind = Command::Kind::kLoadCheckpoint,
                                   .shard = job.shards[core].get(),
                                   .image = state->images.of_cores[core].get()}));
  }
  if (job.checkpoints->loaded) {
    job.checkpoints->loaded->tickets = state->tickets;
    job.checkpoints->replaced.push_back(std::move(job.checkpoints->loaded));
  }
  job.checkpoints->loaded = std::move(state);
  job.checkpoints->load_refusal = absl::OkStatus();
  SwapIterations(job, *job.checkpoints->loaded);
  NoteSave(context_, job, job.checkpoints->loaded->description->source(), context_.clock.Now(),
           context_.clock.Now());
  context_.counters.Add(ControlCounter::loads_brought);
  const std::string by =
      arrival->session_id.empty() ? "rack" : fmt::format("rank {}", arrival->rank.value);
  context_.log.Info("event=state_brought tenant={} job=\"{}\" by=\"{}\" iteration={} keys={}",
                    job.account.tenant, job.name(), by,
                    job.checkpoints->loaded->description->iteration(),
                    job.checkpoints->loaded->description->keys_size());
}

// The load failed. The core loops never saw its memory, which is therefore freed at once. The
// client gets the reason in answer to its next part.
void Loads::FailArrival(Job& job, const absl::Status& status) {
  CheckpointArrival& arrival = *job.checkpoints->arrival;
  if (arrival.state == nullptr) return;
  FreeImages(context_, host_memory_, job, std::move(arrival.state->images));
  (void)host_memory_.FreeLater(std::move(arrival.state->description));
  arrival.state.reset();
  arrival.parts.clear();
  arrival.failure = status;
  arrival.deadline = kNever;
  SetAccepts(arrival);  // the next part gets the reason
}

void Loads::CancelLoad(LoadId load) {
  PHUB_ON_CONTROL();
  Job* const job = FindLoad(load);
  if (job == nullptr) return;
  FailArrival(*job, absl::CancelledError("the client cancelled the load"));
  job->checkpoints->arrival.reset();
}

void Loads::GetLoadedState(const v1::GetLoadedStateRequest& request,
                           Answer<v1::LoadedState> answer) {
  PHUB_ON_CONTROL();
  const absl::StatusOr<Seating> seat = sessions_.FindRunning(request.session_id());
  if (!seat.ok()) return answer(seat.status(), {});
  Job& job = *seat->job;
  if (!job.checkpoints->load_refusal.ok()) return answer(job.checkpoints->load_refusal, {});
  if (job.checkpoints->loaded == nullptr) {
    return answer(
        absl::NotFoundError(fmt::format("no checkpoint was loaded into job {}", job.name())), {});
  }
  // Without a page's size: all keys.
  const int size = job.checkpoints->loaded->description->keys_size();
  const int first = static_cast<int>(std::min<std::int64_t>(request.first(), size));
  const std::size_t keys_max =
      request.page_size() == 0
          ? SIZE_MAX
          : std::min<std::size_t>(request.page_size(), context_.options.turn.keys);
  const int last =
      first + static_cast<int>(std::min(keys_max, static_cast<std::size_t>(size - first)));
  job.pending.push_back({job.checkpoints->loaded->tickets,
                         [this, answer, tenant = job.account.tenant,
                          state = job.checkpoints->loaded->description, first, last] {
                           const auto page = std::make_shared<v1::LoadedState>();
                           context_.turns.RunLong(
                               static_cast<std::size_t>(last - first), tenant,
                               [page, state, first, last] { CopyPage(*state, first, last, *page); },
                               [page, answer] { answer(absl::OkStatus(), std::move(*page)); });
                         },
                         [answer](const absl::Status& failed) { answer(failed, {}); }});
  pending_calls_.AnswerAcknowledged(job);
}

void Loads::AdvanceLoad(Job& job, TimeNs now) {
  PHUB_ON_CONTROL();
  if (!job.running()) return;  // everything is freed with the job
  std::erase_if(job.checkpoints->replaced, [&](const std::unique_ptr<DeliveredCheckpoint>& state) {
    if (!context_.cores.Acknowledged(state->tickets)) return false;
    FreeImages(context_, host_memory_, job, std::move(state->images));
    (void)host_memory_.FreeLater(std::move(state->description));
    return true;
  });
  if (job.checkpoints->arrival) NotePages(job);
  if (job.checkpoints->arrival && now >= job.checkpoints->arrival->deadline) {
    FailArrival(job, absl::DeadlineExceededError(fmt::format(
                         "loading a checkpoint into job {} timed out: no data arrived within {}",
                         job.name(), FormatAge(context_.options.transfer_timeout))));
  }
}

void Loads::DropLoaded(Job& job, int code, const std::string& why) {
  PHUB_ON_CONTROL();
  const bool known = code > 0 && code <= static_cast<int>(absl::StatusCode::kUnauthenticated);
  job.checkpoints->load_refusal = absl::Status(
      known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown, Sentence(why));
  context_.counters.Add(ControlCounter::loads_refused);
  if (job.checkpoints->arrival) FailArrival(job, job.checkpoints->load_refusal);
  if (job.checkpoints->loaded) {  // the core loops must release it
    SwapIterations(job, *job.checkpoints->loaded);
    job.checkpoints->loaded->tickets.clear();
    for (std::size_t core = 0; core < context_.cores.size(); ++core) {
      job.checkpoints->loaded->tickets.push_back(context_.cores[core].Send(
          {.kind = Command::Kind::kLoadCheckpoint, .shard = job.shards[core].get()}));
    }
    job.checkpoints->replaced.push_back(std::move(job.checkpoints->loaded));
  }
}

// Messages to other racks are ordered: they receive the refusal before this rank's next barrier.
LoadId Loads::RefuseLoad(Job& job, Rank rank, const v1::LoadStateRequest& refusal) {
  DropLoaded(job, refusal.refusal_code(), refusal.refusal());
  if (job.rack_run != nullptr) {
    peer_racks_.TellOfRefusedLoad(job, ++job.checkpoints->newest_load, refusal.refusal_code(),
                                  Sentence(refusal.refusal()));
  }
  auto arrival = std::make_unique<CheckpointArrival>();
  arrival->id = ++loads_begun_;
  arrival->rank = rank;
  arrival->session_id = refusal.session_id();
  arrival->deadline = context_.clock.Now() + context_.options.transfer_timeout;
  arrival->is_refusal = true;
  arrival->accepts = true;
  job.checkpoints->arrival = std::move(arrival);
  return job.checkpoints->arrival->id;
}

// The keys continue with the iteration numbers of the checkpoint. If it is dropped, they get their
// own back.
void Loads::SwapIterations(Job& job, DeliveredCheckpoint& checkpoint) {
  std::vector<std::uint64_t>& iterations = job.keys.first_iterations();
  for (auto& [key, iteration] : checkpoint.first_iterations) std::swap(iterations[key], iteration);
}

absl::StatusOr<Seating> Loads::FindLoader(const v1::LoadStateRequest& first) {
  if (first.incarnation() == 0) return sessions_.FindRunning(first.session_id());
  Job* const job = jobs_.FindIncarnation(Incarnation{first.incarnation()});
  if (job == nullptr || job->rack_run == nullptr || !first.session_id().empty()) {
    return absl::NotFoundError(
        fmt::format("{} has no running job with incarnation {} that spans racks",
                    context_.options.racks.empty()
                        ? std::string("this daemon")
                        : context_.options.DescribeRack(RackIndex{context_.options.rack_index}),
                    FormatIncarnation(Incarnation{first.incarnation()})));
  }
  if (absl::Status status = CheckLoader(*job, ""); !status.ok()) return status;
  return Seating{job, Rank::Max()};
}

absl::Status Loads::CheckLoader(const Job& job, const std::string& session_id) {
  if (!session_id.empty()) return sessions_.FindRunning(session_id).status();
  if (job.running()) return absl::OkStatus();
  return absl::AbortedError(job.fault.message().empty()
                                ? fmt::format("job {} has ended", job.name())
                                : job.fault.message());
}

std::map<std::uint32_t, v1::LoadStateRequest> Loads::PartsForRacks(LoadId load) {
  PHUB_ON_CONTROL();
  Job* const job = FindLoad(load);
  if (job == nullptr) return {};
  std::map<std::uint32_t, v1::LoadStateRequest> parts =
      std::exchange(job->checkpoints->arrival->for_racks, {});
  for (auto& [rack, part] : parts) part.set_incarnation(job->account.incarnation.value);
  return parts;
}

void Loads::OnOver(Job& job, const absl::Status& why) {
  if (job.checkpoints->arrival) FailArrival(job, why);
}

bool Loads::RefersToKeys(const Job& job) const { return job.checkpoints->arrival != nullptr; }

void Loads::OnTakenOver(Job& job, Rank rank, const absl::Status& why) {
  if (job.checkpoints->arrival && job.checkpoints->arrival->rank == rank) FailArrival(job, why);
}

}  // namespace phub::server
