// A batch of keys at all daemons of the rack, and the memory that is shared for it.
#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "client/session/job_state.h"
#include "client/session/optimizers.h"
#include "common/transport/shm/shm_dial.h"

namespace phub::client {
namespace {

bool SamePlacements(const v1::AddKeysResponse& a, const v1::AddKeysResponse& b) {
  return std::equal(a.placements().begin(), a.placements().end(), b.placements().begin(),
                    b.placements().end(),
                    [](const v1::KeyPlacement& x, const v1::KeyPlacement& y) {
                      return x.key_index() == y.key_index() &&
                             std::equal(x.chunk_bins().begin(), x.chunk_bins().end(),
                                        y.chunk_bins().begin(), y.chunk_bins().end());
                    });
}

}  // namespace

const DaemonLink* JobState::SharingDaemon() const {
  const auto found = std::find_if(
      links_.begin(), links_.end(),
      [this](const std::unique_ptr<DaemonLink>& link) { return lanes_->IsShared(*link); });
  return found == links_.end() ? nullptr : found->get();
}

// With restart there are two versions, and with several daemons a key's parts lie in several
// places: neither is one stretch of memory that a reply could just announce. This rank's own then
// lie where the daemon on its host writes its part of them, so that it need not send it.
bool JobState::ReadsDaemonsParameters() const {
  return links_.size() == 1 && !settings_.options.restart;
}

const KeyResume* JobState::ResumeOf(KeyIndex key) const {
  return key.value < resume_.keys.size() ? &resume_.keys[key.value] : nullptr;
}

Status JobState::ResumeKeys(std::span<const std::shared_ptr<KeyState>> keys) {
  if (!resumed()) return Status();
  std::vector<std::pair<KeyState*, std::uint64_t>> tickets;
  Status status;
  for (const std::shared_ptr<KeyState>& key : keys) {
    const KeyResume* const resume = ResumeOf(key->index);
    if (resume == nullptr || resume->version == Iteration{}) continue;
    const Result<std::uint64_t> ticket =
        key->Resume({.version = resume->version,
                     .reductions = resume->reductions,
                     .record = resume->record,
                     .hyper_parameters = resume->record == RecordVersion{}
                                             ? key->definition.hyper_parameters
                                             : FromProto(resume->hyper_parameters)});
    if (ticket.ok()) tickets.emplace_back(key.get(), *ticket);
    if (!ticket.ok() && status.ok()) status = ticket.status();
  }
  for (const auto& [key, ticket] : tickets)
    if (Status complete = key->Wait(ticket, std::nullopt); !complete.ok() && status.ok())
      status = complete;
  return status;
}

Result<AddedBatch> JobState::AddEverywhere(v1::AddKeysRequest request,
                                           std::uint64_t shared_bytes) {
  // A process that takes a rank over says of keys that are there already when that was.
  for (int i = 0; i < request.keys_size(); ++i)
    if (const KeyResume* resume =
            ResumeOf(KeyIndex{layout_->key_count() + static_cast<std::uint32_t>(i)}))
      request.mutable_keys(i)->set_first_iteration(resume->first_iteration);
  request.set_batch(next_batch_);
  const DaemonLink* const sharing = SharingDaemon();
  auto answers =
      CallEach<v1::AddKeysResponse>(AllLinks(), [&](DaemonLink& link, auto done) {
        v1::AddKeysRequest mine = request;
        mine.set_session_id(link.joined.session_id());
        mine.set_shared_bytes(&link == sharing ? shared_bytes : 0);
        link.channel->Call<rpc::AddKeys>(mine, call_timeout_ns(), std::move(done));
      });
  const std::size_t added = static_cast<std::size_t>(
      std::count_if(answers.begin(), answers.end(), [](const auto& one) { return one.ok(); }));
  Result<AddedBatch> batch = Agree(request, shared_bytes, std::move(answers));
  if (batch.ok()) {
    ++next_batch_;
    specs_.insert(specs_.end(), request.keys().begin(), request.keys().end());
  } else if (added > 0) {
    // A daemon has the keys, this rank or another daemon has not: the job cannot go on.
    Fail(batch.status());
  }
  return batch;
}

Result<AddedBatch> JobState::Agree(const v1::AddKeysRequest& request, std::uint64_t shared_bytes,
                                   std::vector<absl::StatusOr<v1::AddKeysResponse>> answers) {
  for (std::size_t i = 0; i < answers.size(); ++i)
    if (!answers[i].ok()) return FromCall("AddKeys", *links_[i], answers[i].status());
  AddedBatch added;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    const v1::AddKeysResponse& answer = *answers[i];
    if (answer.placements_size() != request.keys_size())
      return Status(StatusCode::kInternal,
                    fmt::format("daemon {} placed {} of {} keys", links_[i]->endpoint.ToString(),
                                answer.placements_size(), request.keys_size()));
    if (!SamePlacements(*answers.front(), answer))
      return Status(
          StatusCode::kInternal,
          fmt::format("daemons {} and {} placed the keys of job {} differently; they are not of "
                      "one version, or have different lists of daemons",
                      links_.front()->endpoint.ToString(), links_[i]->endpoint.ToString(), name()));
  }
  added.response = *answers.front();
  // Only the daemon that was asked shares memory of this rank's; every one shares its parameters.
  const DaemonLink* const sharing = SharingDaemon();
  for (std::size_t i = 0; i < answers.size(); ++i) {
    const DaemonLink& link = *links_[i];
    if (answers[i]->shared_nonce().empty() || !lanes_->IsShared(link)) continue;
    BatchMemory memory;
    Status status = FetchShared(link, request.batch(), &link == sharing ? shared_bytes : 0,
                                *answers[i], memory);
    if (!status.ok()) return status;
    if (&link != sharing) continue;
    added.response = *answers[i];
    added.memory = std::move(memory);
  }
  return added;
}

Status JobState::FetchShared(const DaemonLink& link, std::uint32_t batch,
                             std::uint64_t shared_bytes, const v1::AddKeysResponse& response,
                             BatchMemory& memory) {
  wire::SharedBatchRequest request{
      .batch = batch,
      .rank = Rank{rank()},
      .incarnation = Incarnation{link.joined.incarnation()},
      .membership_epoch = MembershipEpoch{link.joined.membership_epoch()},
      .nonce = {}};
  if (response.shared_nonce().size() != request.nonce.size())
    return Status(StatusCode::kInternal,
                  fmt::format("daemon {} answered AddKeys with a nonce of {} bytes",
                              link.endpoint.ToString(), response.shared_nonce().size()));
  std::transform(response.shared_nonce().begin(), response.shared_nonce().end(),
                 request.nonce.begin(), [](char c) { return static_cast<std::byte>(c); });
  absl::StatusOr<transport::FetchedBatch> fetched = transport::FetchSharedBatch(
      link.joined.shared_memory().name(), request, call_timeout_ns());
  absl::Status status = fetched.status();
  // Before the engine learns of the keys: what lies there is to be found from the first push on.
  if (status.ok()) status = transport::AddRegions(*fetched, *link.regions);
  if (!status.ok()) return NamedCallStatus("sharing memory", link.endpoint, status);
  const auto held = std::make_shared<const transport::FetchedBatch>(*std::move(fetched));
  const std::size_t own_bytes = held->worker == nullptr ? 0 : held->worker->bytes();
  if (own_bytes < shared_bytes)
    return Status(StatusCode::kInternal,
                  fmt::format("daemon {} shares {} bytes with this rank, {} were asked for",
                              link.endpoint.ToString(), own_bytes, shared_bytes));
  if (shared_bytes > 0) memory.own = {held->worker->data(), shared_bytes};
  if (held->parameters != nullptr && ReadsDaemonsParameters())
    memory.parameters = {held->parameters->data(), held->parameters->bytes()};
  memory.owner = held;
  return Status();
}

}  // namespace phub::client
