// Groups that have members in several racks: the third part of GroupKeys.
#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "server/control/jobs/group_text.h"
#include "server/control/keys/group_keys.h"
#include "server/control/keys/key_specs.h"
#include "server/control/on_control.h"

namespace phub::server {
namespace {

// A batch that is held has the names of the keys that this call adds.
std::set<std::string> NamesBefore(const Group& group, std::uint32_t batch) {
  std::set<std::string> names = *group.key_names;
  if (batch >= group.batches.size()) return names;
  for (const v1::KeySpec& key : *group.batches[batch]->keys) names.erase(key.name());
  return names;
}

}  // namespace

// Rack 0 must know of the batch. The keys are checked before, because what rack 0 gets is added or
// ends the job.
void GroupKeys::Ask(Job& job, Rank rank, const std::shared_ptr<Group>& found,
                    const Adding& adding) {
  const v1::AddKeysRequest& request = *adding.request;
  if (request.ByteSizeLong() > racks_.BatchBytesMax())
    return adding.answer(
        Refuse(absl::InvalidArgumentError(fmt::format(
            "job {}: a batch of {} keys of group {} has {} bytes, and at most {} can be sent to "
            "other racks; add the keys in several batches",
            job.name(), request.keys_size(), request.group().name(), request.ByteSizeLong(),
            racks_.BatchBytesMax()))),
        {});
  const std::shared_ptr<KeyBuild> trial = StartKeyBuild(job, rank, host_memory_);
  const auto group = std::make_shared<Group>();
  group->members = std::make_shared<const Members>();
  group->exchange = std::make_shared<GroupExchange>();
  if (found != nullptr) *group->key_names = NamesBefore(*found, request.batch());
  BuildForGroup(job, *trial, group);
  const auto status = std::make_shared<absl::Status>();
  context_.turns.RunLong(
      static_cast<std::size_t>(request.keys_size()), job.account.tenant,
      [trial, status, adding] { *status = CheckKeys(*trial, adding.request->keys()); },
      [this, status, adding] {
        const absl::StatusOr<Seating> seat = sessions_.FindCommitted(adding.request->session_id());
        if (!seat.ok()) return adding.answer(seat.status(), {});
        const std::shared_ptr<Group> now = FindByRanks(*seat->job, adding.request->group());
        if (now != nullptr && now->Has(adding.request->batch()))
          return AddKeys(adding.request, adding.answer);
        if (!status->ok()) return adding.answer(Refuse(*status), {});
        racks_.AskForBatch(*seat->job, seat->rank, adding.request,
                           [this, adding](const absl::Status& there) {
                             if (!there.ok()) return adding.answer(there, {});
                             AddKeys(adding.request, adding.answer);
                           });
      });
}

void GroupKeys::BuildFromRack0(Job& job, const std::shared_ptr<Group>& group, Rank first,
                               std::shared_ptr<const KeySpecs> keys,
                               std::vector<std::uint32_t> numbers, const Keys::Done& done) {
  PHUB_ON_CONTROL();
  const std::shared_ptr<KeyBuild> build = StartKeyBuild(job, first, host_memory_);
  BuildForGroup(job, *build, group);
  build->group_numbers = std::move(numbers);
  build->held = true;
  build->given = std::move(keys);
  keys_.StartBuild(job, build, done);
}

void GroupKeys::HandOut(Job& job, BatchRecord& batch) {
  batch.held = false;
  keys_.HandOutBatches(job);
}

DoneFlag GroupKeys::Discard(Job& job, const std::shared_ptr<Group>& group) {
  const std::shared_ptr<BatchRecord> batch = group->batches.back();
  PHUB_CHECK(batch->held && job.key_build == nullptr, "job={}", job.name());
  group->batches.pop_back();
  for (const v1::KeySpec& key : *batch->keys) group->key_names->erase(key.name());
  auto unwanted = std::make_shared<std::vector<std::shared_ptr<const void>>>();
  ForgetBatch(job, *batch, *unwanted);
  if (group->batches.empty()) std::erase(job.groups, group);
  shares_.ShareOutAgain(job.account.tenant);
  return host_memory_.FreeLater(std::move(unwanted));
}

void GroupKeys::ReturnCharges(Job& job, const BatchRecord& batch) {
  context_.ledger.Return(job.account, batch.bytes);
  context_.ledger.ReturnKeys(job.account, batch.keys->size(), batch.only_here);
  job.memory_bytes -= batch.bytes;
}

}  // namespace phub::server
