// SaveCheckpoint and LoadCheckpoint: the job's side of client/checkpoint.
//
// LoadCheckpoint is collective:
// 1. Rank 0 sends the checkpoint to the daemons. If it cannot, it sends them the error instead.
// 2. Barrier.
// 3. Every rank asks the anchor for the result. On success it sets the hyper-parameters and runs a
//    kLoad round on every key, which installs the loaded state. On failure all ranks return rank
//    0's error, after a second barrier, so that rank 0 does not send another checkpoint before
//    every rank has received the error.
#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "client/checkpoint/checkpoint.h"
#include "client/checkpoint/version_pages.h"
#include "client/session/fork.h"
#include "client/session/job_impl.h"
#include "client/session/optimizers.h"
#include "common/base/log.h"
#include "common/base/printable.h"
#include "common/rpc/outage.h"

namespace phub::client {
namespace {

Status ToStatus(const absl::Status& status) {
  // The codes of phub and Abseil are the same numbers.
  return Status(static_cast<StatusCode>(status.code()), std::string(status.message()));
}

// "iteration 40 in /data/digits on host node5". Also for checkpoints of other ranks and phubctl.
std::string Words(const v1::SavedState& state) {
  constexpr std::size_t kDirectoryBytesMax = 1024;
  constexpr std::size_t kHostBytesMax = 255;
  std::string words = fmt::format("iteration {} ", state.iteration());
  words += state.directory().empty() ? std::string("that rank 0 loaded")
                                     : "in " + Printable(state.directory(), kDirectoryBytesMax);
  if (!state.host().empty()) words += " on host " + Printable(state.host(), kHostBytesMax);
  return words;
}

}  // namespace

struct JobImpl::CheckpointAccess {
  std::vector<CheckpointStubs> stubs;
  std::vector<CheckpointDaemon> daemons;
  TransferOptions options;
};

JobImpl::CheckpointAccess JobImpl::AccessCheckpoint(const char* call, bool lasts) const {
  CheckpointAccess access;
  access.options.lasts = lasts;
  for (const std::unique_ptr<DaemonLink>& link : calls_.links()) {
    access.stubs.push_back(settings_.connector->MakeCheckpointStubs(link->endpoint));
    access.daemons.push_back({.endpoint = link->endpoint.ToString(),
                              .admin = access.stubs.back().admin.get(),
                              .session = access.stubs.back().session.get(),
                              .session_id = link->joined.session_id()});
  }
  access.options.call_timeout = calls_.timeout();
  access.options.outage_timeout = -1;  // a dead daemon ends the job
  access.options.progress = [this](const TransferProgress&) { return status().ok(); };
  access.options.waiting = [this, call](const absl::Status& error, DurationNs waited) {
    LogWarning("event=call_waits job={} rank={} call={} waited_s={:.1f} error=\"{}\"", name(),
               rank(), call, static_cast<double>(waited) / kSecond, std::string(error.message()));
  };
  return access;
}

Result<std::uint64_t> JobImpl::SaveCheckpoint(const std::string& directory,
                                              CheckpointOptions options) {
  if (Status verdict = status(); !verdict.ok()) return verdict;
  const CheckpointAccess access = AccessCheckpoint("SaveCheckpoint", options.lasts);
  const TimeNs begun_at = clock_.Now();
  const absl::StatusOr<SavedCheckpoint> saved =
      client::SaveCheckpoint(access.daemons,
                             {.tenant = settings_.tenant,
                              .job = name(),
                              .incarnation = calls_.links().front()->joined.incarnation(),
                              .directory = directory},
                             access.options);
  if (saved.ok()) {
    if (!saved->told.ok())
      LogWarning("event=saved_state_not_told job={} rank={} iteration={} error=\"{}\"", name(),
                 rank(), saved->iteration, std::string(saved->told.message()));
    if (options.lasts) NoteSavedState(WhereSaved(saved->iteration, directory), begun_at);
    return saved->iteration;
  }
  if (Status verdict = status(); !verdict.ok()) return verdict;
  return ToStatus(saved.status());
}

void JobImpl::OnSavedState(const v1::SavedState& state) {
  NoteSavedState(state, clock_.Now() - std::max<DurationNs>(state.age_ns(), 0));
}

// Each daemon of the rack reports the same checkpoint, so a late report may be older than the known
// one.
void JobImpl::NoteSavedState(const v1::SavedState& state, TimeNs at) {
  const std::lock_guard lock(mutex_);
  if (at < saved_state_at_) return;
  saved_state_ = Words(state);
  saved_state_at_ = at;
}

// A job's state is lost with its daemon. The user can restart the job from this checkpoint.
Status JobImpl::WithCheckpoint(Status verdict) const {
  if (saved_state_.empty()) return verdict;
  return Status(verdict.code(),
                fmt::format("{}; the latest checkpoint that rank {} knows of is {}",
                            verdict.message(), rank(), saved_state_),
                verdict.subject());
}

// ---- Loading -----------------------------------------------------------------------------------

Result<std::uint64_t> JobImpl::LoadCheckpoint(const std::string& directory,
                                              CheckpointOptions options) {
  const std::lock_guard calls(calls_mutex_);
  if (Status verdict = status(); !verdict.ok()) return verdict;
  // A process that took over a rank already has the current values of its keys.
  if (resumed()) return iteration();
  for (const std::shared_ptr<KeyImpl>& key : Keys())
    if (!key->Idle() && !key->definition.collective)
      return Status(StatusCode::kFailedPrecondition,
                    fmt::format("LoadCheckpoint: key {} of job {} has a round in flight on rank "
                                "{}; wait for its handle first",
                                key->definition.name, name(), rank()));
  if (rank() == 0) {
    const Status brought = SendCheckpoint(directory, options.lasts);
    if (!brought.ok())
      if (Status told = RefuseLoad(brought); !told.ok()) return told;
  }
  if (Status met = barriers_.Wait(); !met.ok()) return met;
  std::optional<v1::LoadedState> loaded;
  const Status fetched = FetchLoaded(loaded);
  if (!fetched.ok()) {
    if (Status verdict = status(); !verdict.ok()) return verdict;
    if (Status met = barriers_.Wait(); !met.ok()) return met;
    return fetched;
  }
  if (Status placed = PutInPlace(*loaded); !placed.ok()) return placed;
  if (!options.lasts) return loaded->iteration();
  v1::SavedState source = loaded->source();
  source.set_iteration(loaded->iteration());  // older daemons report nothing else
  NoteSavedState(rank() == 0 ? WhereSaved(loaded->iteration(), directory) : source, clock_.Now());
  return loaded->iteration();
}

Status JobImpl::SendCheckpoint(const std::string& directory, bool lasts) {
  std::vector<LoadKey> keys;
  for (const std::unique_ptr<KeyBatch>& batch : batches_)
    for (const KeyPlan& plan : batch->keys) {
      LoadKey& key = keys.emplace_back();
      key.spec = rack_batches_.specs()[plan.layout.key.value];
      for (const ChunkPlace& chunk : plan.layout.chunks)
        key.chunks.push_back({.daemon = LinkOfLane(calls_.links(), chunk.lane).position,
                              .element_offset = chunk.element_offset,
                              .element_count = chunk.element_count});
    }
  const CheckpointAccess access = AccessCheckpoint("LoadCheckpoint", lasts);
  return ToStatus(client::LoadCheckpoint(access.daemons, keys, directory, access.options).status());
}

// Every daemon discards the received state; the anchor keeps the error for the other ranks.
Status JobImpl::RefuseLoad(const Status& why) {
  const auto answers = calls_.Each<v1::LoadStateResponse>(
      "LoadState", calls_.All(), [&](DaemonLink& link, auto done) {
        v1::LoadStateRequest request;
        request.set_session_id(link.joined.session_id());
        // UNAVAILABLE would mean that the daemon is too busy.
        const StatusCode code =
            why.code() == StatusCode::kUnavailable ? StatusCode::kInternal : why.code();
        request.set_refusal_code(static_cast<int>(code));
        request.set_refusal(why.message());
        link.channel->Call<rpc::LoadState>(request, calls_.timeout(), std::move(done));
      });
  for (std::size_t i = 0; i < answers.size(); ++i) {
    if (answers[i].ok()) continue;
    // The other ranks would never receive the error, so the job must end.
    const Status status =
        calls_.StatusOf(*this, "LoadState", *calls_.links()[i], answers[i].status());
    Fail(status);
    return status;
  }
  return Status();
}

// An error without a verdict is rank 0's error.
Status JobImpl::FetchLoaded(std::optional<v1::LoadedState>& loaded) {
  DaemonLink* const anchor = calls_.links().front().get();
  v1::GetLoadedStateRequest request;
  request.set_session_id(anchor->joined.session_id());
  request.set_page_size(kKeysPerPage);
  v1::LoadedState pages;
  absl::Status fetched;
  do {
    request.set_first(pages.next());
    auto answers = calls_.Each<v1::LoadedState>(
        "GetLoadedState", {&anchor, 1}, [&](DaemonLink& link, auto done) {
          link.channel->Call<rpc::GetLoadedState>(request, calls_.timeout(), std::move(done));
        });
    fetched = answers.front().status();
    if (fetched.ok()) fetched = AddPage(*answers.front(), pages);
  } while (fetched.ok() && pages.next() != 0);
  if (fetched.ok()) {
    loaded = std::move(pages);
    return Status();
  }
  const bool begun = pages.next() != 0;  // the state was loaded
  if (!begun && !rpc::IsOutage(fetched)) return ToStatus(fetched);
  // This rank does not know whether, or which, state was loaded, but other ranks continue.
  const Status status = calls_.StatusOf(*this, "GetLoadedState", *anchor, fetched);
  Fail(status);
  return status;
}

Status JobImpl::PutInPlace(const v1::LoadedState& loaded) {
  std::vector<std::shared_ptr<KeyImpl>> keys = Keys();
  std::vector<const v1::KeyStateInfo*> infos(keys.size(), nullptr);
  for (const v1::KeyStateInfo& info : loaded.keys())
    if (info.key_index() < infos.size()) infos[info.key_index()] = &info;
  std::erase_if(keys, [](const auto& key) { return key->definition.collective; });
  const auto info_of = [&](const auto& key) { return infos[key->index.value]; };
  Status status;
  if (!std::ranges::all_of(keys, info_of))
    status = Status(StatusCode::kInternal,
                    fmt::format("daemon {} loaded state for only some keys of job {}",
                                calls_.links().front()->endpoint.ToString(), name()));
  std::vector<std::uint64_t> tickets;
  for (std::size_t i = 0; i < keys.size() && status.ok(); ++i) {
    const v1::KeyStateInfo& info = *info_of(keys[i]);
    Result<std::uint64_t> ticket = keys[i]->StartLoad(loaded.iteration(), info.reductions(),
                                                      FromProto(info.hyper_parameters()));
    status = ticket.status();
    if (ticket.ok()) tickets.push_back(*ticket);
  }
  // Other ranks install the state but this one does not, so the job must end.
  if (!status.ok()) Fail(status);
  for (std::size_t i = 0; i < tickets.size(); ++i)
    if (Status complete = keys[i]->Wait(tickets[i], std::nullopt); !complete.ok() && status.ok())
      status = complete;
  return status;
}

}  // namespace phub::client

namespace phub {

Result<std::uint64_t> Job::SaveCheckpoint(std::string_view directory, CheckpointOptions options) {
  if (client::InForkedChild()) return client::ForkedStatus();
  return impl_->SaveCheckpoint(std::string(directory), options);
}
Result<std::uint64_t> Job::LoadCheckpoint(std::string_view directory, CheckpointOptions options) {
  if (client::InForkedChild()) return client::ForkedStatus();
  return impl_->LoadCheckpoint(std::string(directory), options);
}

}  // namespace phub
