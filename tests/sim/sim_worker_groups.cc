// A worker's groups: it adds their keys before it trains, sometimes before keys of the whole job,
// and removes the groups afterwards.
#include <fmt/format.h>

#include <algorithm>

#include "tests/sim/sim_worker_calls.h"
#include "tests/sim/sim_worker_key.h"

namespace phub::sim {

// Groups that this rank is not a member of do not exist for it.
void SimWorker::SkipOtherGroups() {
  while (next_group_ < script_.groups.size() &&
         std::ranges::find(script_.groups[next_group_].ranks, rank_) ==
             script_.groups[next_group_].ranks.end()) {
    ++next_group_;
  }
}

std::uint32_t SimWorker::KeyOfGroup(std::uint32_t group) const {
  const auto key = std::ranges::find(script_.keys, group, &KeyScript::group);
  return static_cast<std::uint32_t>(key - script_.keys.begin());
}

void SimWorker::AddNextGroup() {
  SkipOtherGroups();
  if (next_group_ == script_.groups.size()) {
    next_group_ = 0;
    groups_added_ = true;
    return AddNextBatch();
  }
  const GroupScript& group = script_.groups[next_group_];
  const KeyScript& key = script_.keys[KeyOfGroup(next_group_)];
  v1::AddKeysRequest request;
  request.mutable_group()->set_name(group.name);
  request.mutable_group()->mutable_ranks()->Assign(group.ranks.begin(), group.ranks.end());
  v1::KeySpec& spec = *request.add_keys();
  spec.set_name(key.name);
  spec.set_element_count(std::uint64_t{key.element_count} * key.units());
  spec.set_type(key.pooled ? v1::ELEMENT_TYPE_U8 : v1::ELEMENT_TYPE_F32);
  spec.set_pooled(key.pooled);
  spec.set_collective(true);
  spec.set_priority_class(
      static_cast<v1::PriorityClass>(v1::PRIORITY_CLASS_DATA + next_group_ % kPriorityLevels));
  spec.set_operation(key.mean ? v1::OPERATION_MEAN : v1::OPERATION_SUM);
  CallAll<v1::AddKeysResponse>(
      "add keys of a group",
      [&](Link& link, auto done) {
        v1::AddKeysRequest mine = request;
        mine.set_session_id(link.joined.session_id());
        link.channel->Call<rpc::AddKeys>(mine, CallTimeout(), std::move(done));
      },
      [](Link& link, const v1::AddKeysResponse& placed) { link.placed = placed; },
      [this] { OnGroupAdded(); });
}

void SimWorker::OnGroupAdded() {
  const v1::AddKeysResponse& response = links_.front()->placed;
  const std::uint32_t index = KeyOfGroup(next_group_);
  if (job_.learn_plan) job_.learn_plan(config_.incarnation, next_group_);
  const KeyScript& key = script_.keys[index];
  const v1::KeyPlacement& placement = response.placements(0);
  const auto span_of = [](const auto& numbers) {
    return std::span<const std::uint32_t>(numbers.data(), static_cast<std::size_t>(numbers.size()));
  };
  const client::KeyPlacementView view{
      .name = key.name,
      .key = KeyIndex{placement.key_index()},
      .element_count = std::uint64_t{key.element_count} * key.units(),
      .element_bytes = key.pooled ? 1u : 4u,
      .chunk_bins = span_of(placement.chunk_bins()),
      .first_chunks = span_of(placement.first_chunks())};
  auto layouts = layout_->AddGroupKeys({&view, 1});
  if (!layouts.ok()) {
    mistake_ = fmt::format("layout: {}", layouts.status().ToString());
    return Fail(phub::Status(phub::StatusCode::kUnknown, mistake_), nullptr);
  }
  keys_.push_back(std::make_unique<Key>(*this, index));
  keys_.back()->number = view.key;
  auto batch = std::make_unique<client::KeyBatch>();
  batch->keys.push_back({.layout = std::move(layouts->front()),
                         .rank = Rank{rank_},
                         .priority = static_cast<std::int32_t>(random_.Below(3)),
                         .level = static_cast<std::uint8_t>(next_group_ % kPriorityLevels),
                         .collective = true,
                         .pooled = key.pooled,
                         .listener = keys_.back().get()});
  client::Command command;
  command.kind = client::Command::Kind::kAddKeys;
  command.batch = batch.get();
  groups_.push_back({response.group_id(), std::move(batch)});
  Submit(command);
  ++next_group_;
  AddNextGroup();
}

// All rounds are complete. False: no group is left.
bool SimWorker::RemoveNextGroup() {
  if (next_group_ == groups_.size()) return false;
  removing_ = true;
  v1::RemoveKeysRequest request;
  request.set_group_id(groups_[next_group_].id);
  CallAll<v1::RemoveKeysResponse>(
      "remove a group",
      [&](Link& link, auto done) {
        v1::RemoveKeysRequest mine = request;
        mine.set_session_id(link.joined.session_id());
        link.channel->Call<rpc::RemoveKeys>(mine, /*timeout=*/0, std::move(done));
      },
      [](Link&, const v1::RemoveKeysResponse&) {},
      [this] {
        client::Command remove;
        remove.kind = client::Command::Kind::kRemoveKeys;
        remove.batch = groups_[next_group_++].batch.get();
        Submit(remove);
        ++groups_removed_;
        removing_ = false;
      });
  return true;
}

}  // namespace phub::sim
