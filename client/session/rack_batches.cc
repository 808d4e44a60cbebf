#include "client/session/rack_batches.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace phub::client {
namespace {

bool SamePlacements(const v1::AddKeysResponse& a, const v1::AddKeysResponse& b) {
  return std::equal(a.placements().begin(), a.placements().end(), b.placements().begin(),
                    b.placements().end(), [](const v1::KeyPlacement& x, const v1::KeyPlacement& y) {
                      return x.key_index() == y.key_index() &&
                             std::equal(x.chunk_bins().begin(), x.chunk_bins().end(),
                                        y.chunk_bins().begin(), y.chunk_bins().end());
                    });
}

}  // namespace

const DaemonLink* RackBatches::SharingDaemon() const {
  const auto found = std::find_if(
      calls_.links().begin(), calls_.links().end(),
      [this](const std::unique_ptr<DaemonLink>& link) { return lanes_->IsShared(*link); });
  return found == calls_.links().end() ? nullptr : found->get();
}

// A reply can announce parameters in place only if they are one contiguous range. With `restart`
// there are two versions, and with several daemons a key's parts are in several places. This rank
// then has private parameters in shared memory, where the daemon on its host writes its part.
bool RackBatches::ReadsDaemonsParameters() const { return calls_.links().size() == 1 && !restart_; }

Result<AddedBatch> RackBatches::Add(v1::AddKeysRequest request, std::uint64_t shared_bytes,
                                    bool& is_split) {
  request.set_batch(static_cast<std::uint32_t>(batches_.size()));
  request.set_removals(removals_);
  const Batch added_batch{.first_key = specs_.size(), .regions_before = CountRegions()};
  const DaemonLink* const sharing = SharingDaemon();
  auto answers =
      calls_.Each<v1::AddKeysResponse>("AddKeys", calls_.All(), [&](DaemonLink& link, auto done) {
        v1::AddKeysRequest mine = request;
        mine.set_session_id(link.joined.session_id());
        mine.set_shared_bytes(&link == sharing ? shared_bytes : 0);
        link.channel->Call<rpc::AddKeys>(mine, calls_.timeout(), std::move(done));
      });
  const std::size_t added = static_cast<std::size_t>(
      std::count_if(answers.begin(), answers.end(), [](const auto& one) { return one.ok(); }));
  Result<AddedBatch> batch = Agree(request, shared_bytes, std::move(answers));
  if (batch.ok()) {
    batches_.push_back(added_batch);
    specs_.insert(specs_.end(), request.keys().begin(), request.keys().end());
  } else if (added > 0) {
    is_split = true;
  }
  return batch;
}

std::vector<std::uint32_t> RackBatches::CountRegions() const {
  std::vector<std::uint32_t> counts;
  for (const std::unique_ptr<DaemonLink>& link : calls_.links())
    counts.push_back(link->regions->count());
  return counts;
}

// Like a barrier, it ends with the job. A repeated call of a removal that is complete succeeds.
Status RackBatches::Remove(std::uint32_t first_batch, bool& is_split) {
  PHUB_CHECK(first_batch < batches_.size(), "batch={} batches={}", first_batch, batches_.size());
  v1::RemoveKeysRequest request;
  request.set_sequence(removals_);
  request.set_first_batch(first_batch);
  request.set_batches(static_cast<std::uint32_t>(batches_.size()));
  const auto answers = calls_.Each<v1::RemoveKeysResponse>(
      "RemoveKeys", calls_.All(),
      [&](DaemonLink& link, auto done) {
        v1::RemoveKeysRequest mine = request;
        mine.set_session_id(link.joined.session_id());
        link.channel->Call<rpc::RemoveKeys>(mine, /*timeout=*/0, std::move(done));
      },
      /*patient=*/nullptr, /*waits_for_ranks=*/true);
  if (calls_.waiter().leaves())
    return Status(StatusCode::kCancelled,
                  fmt::format("rank {} leaves job {} while RemoveKeys waits for other ranks",
                              job_.rank(), job_.name()));
  const auto failed = std::ranges::find_if(answers, [](const auto& one) { return !one.ok(); });
  if (failed != answers.end()) {
    is_split = std::ranges::any_of(answers, [](const auto& one) { return one.ok(); });
    const auto daemon = static_cast<std::size_t>(failed - answers.begin());
    return calls_.StatusOf(job_, "RemoveKeys", *calls_.links()[daemon], failed->status());
  }
  const Batch& first = batches_[first_batch];
  const std::lock_guard lock(regions_mutex_);
  for (std::size_t i = 0; i < calls_.links().size(); ++i) {
    transport::SharedRegions& regions = *calls_.links()[i]->regions;
    regions.RemoveLast(regions.count() - first.regions_before[i]);
  }
  specs_.resize(first.first_key);
  batches_.resize(first_batch);
  ++removals_;
  return Status();
}

Result<v1::AddKeysResponse> RackBatches::AddToGroup(v1::AddKeysRequest request) {
  DaemonLink& link = *calls_.links().front();
  request.set_session_id(link.joined.session_id());
  const auto answers =
      calls_.Each<v1::AddKeysResponse>("AddKeys", calls_.All(), [&](DaemonLink& each, auto done) {
        each.channel->Call<rpc::AddKeys>(request, calls_.timeout(), std::move(done));
      });
  if (!answers.front().ok())
    return calls_.StatusOf(job_, "AddKeys", link, answers.front().status());
  if (answers.front()->placements_size() == request.keys_size()) return *answers.front();
  return Status(StatusCode::kInternal,
                fmt::format("daemon {} placed {} of {} keys", link.endpoint.ToString(),
                            answers.front()->placements_size(), request.keys_size()));
}

Status RackBatches::RemoveGroup(std::uint64_t id, const std::string& group) {
  DaemonLink& link = *calls_.links().front();
  v1::RemoveKeysRequest request;
  request.set_session_id(link.joined.session_id());
  request.set_group_id(id);
  const auto answers = calls_.Each<v1::RemoveKeysResponse>(
      "RemoveKeys", calls_.All(),
      [&](DaemonLink& each, auto done) {
        each.channel->Call<rpc::RemoveKeys>(request, /*timeout=*/0, std::move(done));
      },
      /*patient=*/nullptr, /*waits_for_ranks=*/true);
  if (calls_.waiter().leaves())
    return Status(StatusCode::kCancelled,
                  fmt::format("rank {} leaves job {} while it waits for other ranks to remove "
                              "group {}",
                              job_.rank(), job_.name(), group));
  if (answers.front().ok()) return Status();
  return calls_.StatusOf(job_, "RemoveKeys", link, answers.front().status());
}

Result<AddedBatch> RackBatches::Agree(const v1::AddKeysRequest& request, std::uint64_t shared_bytes,
                                      std::vector<absl::StatusOr<v1::AddKeysResponse>> answers) {
  for (std::size_t i = 0; i < answers.size(); ++i)
    if (!answers[i].ok())
      return calls_.StatusOf(job_, "AddKeys", *calls_.links()[i], answers[i].status());
  AddedBatch added;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    const v1::AddKeysResponse& answer = *answers[i];
    if (answer.placements_size() != request.keys_size())
      return Status(
          StatusCode::kInternal,
          fmt::format("daemon {} placed {} of {} keys", calls_.links()[i]->endpoint.ToString(),
                      answer.placements_size(), request.keys_size()));
    if (!SamePlacements(*answers.front(), answer))
      return Status(
          StatusCode::kInternal,
          fmt::format("daemons {} and {} placed the keys of job {} differently; they probably "
                      "have different versions or different lists of daemons",
                      calls_.links().front()->endpoint.ToString(),
                      calls_.links()[i]->endpoint.ToString(), job_.name()));
  }
  added.response = *answers.front();
  // Only the sharing daemon maps this rank's memory; every daemon shares its parameters.
  const DaemonLink* const sharing = SharingDaemon();
  for (std::size_t i = 0; i < answers.size(); ++i) {
    const DaemonLink& link = *calls_.links()[i];
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

absl::StatusOr<std::shared_ptr<const transport::FetchedBatch>> RackBatches::Fetch(
    const DaemonLink& link, std::uint32_t batch, const v1::AddKeysResponse& response) const {
  wire::SharedBatchRequest request{
      .batch = batch,
      .rank = Rank{job_.rank()},
      .incarnation = Incarnation{link.joined.incarnation()},
      .membership_epoch = MembershipEpoch{link.joined.membership_epoch()},
      .nonce = {}};
  if (response.shared_nonce().size() != request.nonce.size())
    return absl::InternalError(fmt::format("daemon {} answered AddKeys with a nonce of {} bytes",
                                           link.endpoint.ToString(),
                                           response.shared_nonce().size()));
  std::transform(response.shared_nonce().begin(), response.shared_nonce().end(),
                 request.nonce.begin(), [](char c) { return static_cast<std::byte>(c); });
  absl::StatusOr<transport::FetchedBatch> fetched =
      transport::FetchSharedBatch(link.joined.shared_memory().name(), request, calls_.timeout());
  if (!fetched.ok()) return fetched.status();
  return std::make_shared<const transport::FetchedBatch>(*std::move(fetched));
}

Status RackBatches::FetchShared(const DaemonLink& link, std::uint32_t batch,
                                std::uint64_t shared_bytes, const v1::AddKeysResponse& response,
                                BatchMemory& memory) {
  const auto fetched = Fetch(link, batch, response);
  absl::Status status = fetched.status();
  // Before the engine knows the keys: the regions must be known at the first push.
  if (status.ok()) {
    const std::lock_guard lock(regions_mutex_);
    status = transport::AddRegions(**fetched, *link.regions);
  }
  if (!status.ok()) return calls_.StatusOf(job_, "sharing memory", link, status);
  const std::shared_ptr<const transport::FetchedBatch>& held = *fetched;
  const std::size_t own_bytes = held->worker == nullptr ? 0 : held->worker->bytes();
  if (own_bytes < shared_bytes)
    return Status(StatusCode::kInternal,
                  fmt::format("daemon {} shares {} bytes with this rank instead of {}",
                              link.endpoint.ToString(), own_bytes, shared_bytes));
  if (shared_bytes > 0) memory.own = {held->worker->data(), shared_bytes};
  if (held->parameters != nullptr && ReadsDaemonsParameters())
    memory.parameters = {held->parameters->data(), held->parameters->bytes()};
  memory.owner = held;
  return Status();
}

std::uint32_t RackBatches::TakeGroupRegion() {
  const std::lock_guard lock(regions_mutex_);
  std::uint32_t region = wire::kGroupRegionsFirst;
  for (const std::uint32_t used : group_regions_) region += used == region;
  if (region - wire::kGroupRegionsFirst >= wire::kGroupRegionsMax) return kNoGroupRegion;
  group_regions_.insert(region);
  return region;
}

void RackBatches::ReturnGroupRegion(std::uint32_t region) {
  const std::lock_guard lock(regions_mutex_);
  group_regions_.erase(region);
}

Status RackBatches::FetchGroupMemory(const v1::AddKeysResponse& response, std::uint32_t region,
                                     std::uint64_t shared_bytes, BatchMemory& memory) {
  if (response.shared_nonce().empty()) return Status();
  const DaemonLink& link = *calls_.links().front();
  const auto fetched = Fetch(link, wire::kGroupBatchesFirst + region, response);
  absl::Status status = fetched.status();
  if (status.ok()) {
    const std::lock_guard lock(regions_mutex_);
    const transport::FetchedBatch& batch = **fetched;
    const bool is_valid = batch.worker != nullptr && batch.worker->bytes() >= shared_bytes &&
                          batch.worker_region == region && batch.parameters == nullptr;
    if (!is_valid || !link.regions->AddAt(region, batch.worker, /*writable_by_peer=*/true))
      status = absl::InternalError(fmt::format(
          "the daemon shares other memory than the {} bytes of region {}", shared_bytes, region));
  }
  if (!status.ok()) return calls_.StatusOf(job_, "sharing memory", link, status);
  memory.own = {(*fetched)->worker->data(), shared_bytes};
  memory.owner = *fetched;
  return Status();
}

std::shared_ptr<const void> RackBatches::RemoveGroupMemory(std::uint32_t region) {
  const std::lock_guard lock(regions_mutex_);
  return calls_.links().front()->regions->Remove(region);
}

}  // namespace phub::client
