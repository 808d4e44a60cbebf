// Groups that have members in several racks: the third part of GroupKeys.
#include <algorithm>
#include <utility>

#include "server/control/jobs/group_text.h"
#include "server/control/keys/group_keys.h"
#include "server/control/keys/key_specs.h"
#include "server/control/on_control.h"

namespace phub::server {

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
  if (found != nullptr) *group->key_names = *found->key_names;
  BuildForGroup(job, *trial, group);
  const auto status = std::make_shared<absl::Status>();
  context_.turns.RunLong(
      static_cast<std::size_t>(request.keys_size()), job.account.tenant,
      [trial, status, adding] { *status = CheckKeys(*trial, adding.request->keys()); },
      [this, status, adding] {
        const absl::StatusOr<Seating> seat = sessions_.FindCommitted(adding.request->session_id());
        if (!seat.ok()) return adding.answer(seat.status(), {});
        const std::shared_ptr<Group> now = FindByRanks(*seat->job, adding.request->group());
        if (now != nullptr && adding.request->batch() < now->batches.size())
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
  build->given = std::move(keys);
  keys_.StartBuild(job, build, done);
}

}  // namespace phub::server
