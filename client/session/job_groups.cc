// Groups of a job: checks them, adds their keys and removes them. Their members agree in the
// daemon.
#include "client/session/job_groups.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "client/session/job_impl.h"
#include "client/session/key_checks.h"
#include "client/session/key_memory.h"
#include "client/session/key_support.h"
#include "client/session/marked_keys.h"
#include "common/base/declared_groups.h"

namespace phub::client {
namespace {

Status InvalidGroup(std::string message) {
  return Status(StatusCode::kInvalidArgument, std::move(message));
}

Status RefusedGroup(std::string message) {
  return Status(StatusCode::kFailedPrecondition, std::move(message));
}

std::string GroupPlace(const std::string& job, std::uint32_t rank, const std::string& group) {
  return fmt::format("group {} of job {}, rank {}", group, job, rank);
}

}  // namespace

Status JobGroups::CheckSupported(const std::string& group) const {
  const JobOptions& options = job_.settings_.options;
  const char* why = nullptr;
  if (options.restart) why = "has restart=true";
  if (options.sum == Sum::kFixed) why = "has sum=kFixed";
  if (job_.calls_.links().size() > 1) why = "uses several daemons";
  if (why != nullptr)
    return RefusedGroup(fmt::format("{}: job {} {}, and such jobs cannot have groups",
                                    GroupPlace(job_.name(), job_.rank(), group), job_.name(), why));
  const DaemonLink& link = *job_.calls_.links().front();
  if (link.joined.groups()) return Status();
  return RefusedGroup(
      fmt::format("{}: daemon {} of version {} does not support groups: upgrade the "
                  "daemon",
                  GroupPlace(job_.name(), job_.rank(), group), link.endpoint.ToString(),
                  link.joined.daemon_version()));
}

Result<std::vector<std::uint32_t>> JobGroups::CheckMembers(const std::string& group,
                                                           std::span<const std::uint32_t> ranks,
                                                           PriorityClass priority_class) const {
  const std::string place = GroupPlace(job_.name(), job_.rank(), group);
  if (Status verdict = job_.status(); !verdict.ok()) return verdict;
  if (Status status = CheckSupported(group); !status.ok()) return status;
  if (group.empty()) return InvalidGroup(fmt::format("{}: a group needs a name", place));
  if (Status status = CheckPriorityClass(place, priority_class); !status.ok()) return status;
  std::vector<std::uint32_t> members(ranks.begin(), ranks.end());
  std::ranges::sort(members);
  const auto twice = std::ranges::adjacent_find(members);
  if (twice != members.end())
    return InvalidGroup(fmt::format("{}: rank {} is given twice", place, *twice));
  if (!members.empty() && members.back() >= job_.world_size())
    return InvalidGroup(fmt::format("{}: rank {} must be less than world_size {}", place,
                                    members.back(), job_.world_size()));
  return members;
}

Result<std::shared_ptr<GroupImpl>> JobGroups::Make(const std::string& group,
                                                   std::vector<std::uint32_t> members,
                                                   PriorityClass priority_class) {
  const std::string place = GroupPlace(job_.name(), job_.rank(), group);
  const auto own = std::ranges::find(members, job_.rank());
  if (own == members.end())
    return InvalidGroup(fmt::format("{}: this rank is not a member; the group has ranks {}", place,
                                    fmt::join(members, ", ")));
  const auto index = static_cast<std::uint32_t>(own - members.begin());
  const auto made = std::make_shared<GroupImpl>(group, std::move(members), index, priority_class);
  const std::lock_guard lock(job_.mutex_);
  for (const std::shared_ptr<GroupImpl>& other : groups_) {
    if (other->name == group)
      return Status(
          StatusCode::kAlreadyExists,
          fmt::format("{}: this rank is already a member of a group of that name", place));
  }
  groups_.push_back(made);
  return made;
}

Result<std::shared_ptr<GroupImpl>> JobGroups::New(std::string_view group_name,
                                                  std::span<const std::uint32_t> ranks,
                                                  PriorityClass priority_class) {
  const std::string group(group_name);
  auto members = CheckMembers(group, ranks, priority_class);
  if (!members.ok()) return members.status();
  return Make(group, *std::move(members), priority_class);
}

Result<std::vector<std::shared_ptr<GroupImpl>>> JobGroups::New(std::span<const GroupSpec> groups) {
  if (groups.size() > kDeclaredGroupsMax)
    return InvalidGroup(fmt::format(
        "job {}, rank {}: {} groups were declared with one call, and at most {} can be; declare "
        "those together that are used at the same time",
        job_.name(), job_.rank(), groups.size(), kDeclaredGroupsMax));
  const auto declared = std::make_shared<DeclaredGroups>();
  for (const GroupSpec& each : groups) {
    auto members = CheckMembers(each.name, each.ranks, each.priority_class);
    if (!members.ok()) return members.status();
    declared->emplace_back(each.name, *std::move(members));
  }
  std::vector<std::shared_ptr<GroupImpl>> made;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const auto& [name, members] = (*declared)[i];
    if (std::ranges::find(members, job_.rank()) == members.end()) continue;
    auto group = Make(name, members, groups[i].priority_class);
    if (!group.ok()) {
      const std::lock_guard lock(job_.mutex_);
      for (const std::shared_ptr<GroupImpl>& each : made) std::erase(groups_, each);
      return group.status();
    }
    if (groups.size() > 1) (*group)->declared = declared;
    made.push_back(*std::move(group));
  }
  return made;
}

Result<std::vector<KeyDefinition>> JobGroups::CheckSpecs(const GroupImpl& group,
                                                         std::span<const KeySpec> specs) const {
  const std::uint32_t chunk_bytes = job_.calls_.links().front()->joined.chunk_bytes();
  const Membership member{.rank = Rank{group.index},
                          .world_size = static_cast<std::uint32_t>(group.ranks.size()),
                          .chunk_bytes = chunk_bytes};
  const std::uint64_t bytes_max =
      std::uint64_t{kChunksPerShardMax} * job_.layout_->lane_count() * chunk_bytes;
  std::set<std::string> names;
  for (const std::shared_ptr<KeyImpl>& key : KeysOf(group)) names.insert(key->definition.name);
  std::vector<KeyDefinition> definitions;
  for (const KeySpec& given : specs) {
    KeySpec spec = given;
    spec.name = fmt::format("{} of group {}", given.name, group.name);
    spec.options.collective = true;
    if (!spec.options.priority_class) spec.options.priority_class = group.priority_class;
    const Movement movement = spec.options.movement;
    if (movement == Movement::kScatter || movement == Movement::kGatherToOne) {
      const auto root = std::ranges::find(group.ranks, spec.options.root);
      if (root == group.ranks.end())
        return InvalidGroup(fmt::format("key {}: root {} is not a member; the group has ranks {}",
                                        spec.name, spec.options.root,
                                        fmt::join(group.ranks, ", ")));
      spec.options.root = static_cast<std::uint32_t>(root - group.ranks.begin());
    }
    if (!names.insert(spec.name).second)
      return Status(StatusCode::kAlreadyExists,
                    fmt::format("job {} already has a key {}", job_.name(), spec.name));
    Result<KeyDefinition> definition = CheckKey(spec, bytes_max, member);
    if (!definition.ok()) return definition.status();
    if (Status status = client::CheckSupported(*definition, job_.calls_.links()); !status.ok())
      return status;
    for (const std::uint32_t each : group.ranks) definition->members.push_back(Rank{each});
    definitions.push_back(*std::move(definition));
  }
  return definitions;
}

Result<std::vector<std::shared_ptr<KeyImpl>>> JobGroups::AddKeys(GroupImpl& group,
                                                                 std::span<const KeySpec> specs) {
  const std::lock_guard group_calls(group.calls_mutex);
  if (Status verdict = job_.status(); !verdict.ok()) return verdict;
  if (group.removed)
    return RefusedGroup(
        fmt::format("{}: the group was removed", GroupPlace(job_.name(), job_.rank(), group.name)));
  if (specs.empty()) return std::vector<std::shared_ptr<KeyImpl>>();
  Result<std::vector<KeyDefinition>> definitions = CheckSpecs(group, specs);
  if (!definitions.ok()) return definitions.status();
  v1::AddKeysRequest request;
  request.set_batch(static_cast<std::uint32_t>(group.batches.size()));
  request.mutable_group()->set_name(group.name);
  for (const std::uint32_t each : group.ranks) request.mutable_group()->add_ranks(each);
  if (group.declared != nullptr && group.batches.empty()) {
    for (const auto& [name, ranks] : *group.declared) {
      v1::GroupSpec& each = *request.add_declared();
      each.set_name(name);
      each.mutable_ranks()->Assign(ranks.begin(), ranks.end());
    }
  }
  for (const KeyDefinition& definition : *definitions) *request.add_keys() = ToProto(definition);
  if (request.ByteSizeLong() > kWholeBatchBytesMax)
    return InvalidGroup(
        fmt::format("{}: {} keys are too many for one call; add them in several calls",
                    GroupPlace(job_.name(), job_.rank(), group.name), specs.size()));
  const std::uint32_t region = RequestMemory(*definitions, request);
  const std::uint64_t shared_bytes = request.shared_bytes();
  Result<v1::AddKeysResponse> response = job_.rack_batches_.AddToGroup(std::move(request));
  if (!response.ok()) {
    job_.rack_batches_.ReturnGroupRegion(region);
    return response.status();
  }
  const std::lock_guard calls(job_.calls_mutex_);
  if (job_.left_) return job_.status();
  AddedBatch added{.response = *std::move(response), .memory = {}};
  Status status =
      job_.rack_batches_.FetchGroupMemory(added.response, region, shared_bytes, added.memory);
  if (status.ok() && !added.memory.own.empty())
    group.regions.push_back(region);
  else
    job_.rack_batches_.ReturnGroupRegion(region);
  auto keys = status.ok() ? Enter(group, *std::move(definitions), added) : status;
  // The daemon has the keys but this rank does not, so the job must end.
  if (!keys.ok()) job_.Fail(keys.status());
  return keys;
}

std::uint32_t JobGroups::RequestMemory(std::span<KeyDefinition> definitions,
                                       v1::AddKeysRequest& request) {
  if (job_.rack_batches_.SharingDaemon() == nullptr) return kNoGroupRegion;
  const std::uint32_t region = job_.rack_batches_.TakeGroupRegion();
  if (region == kNoGroupRegion) return region;  // then the memory is private
  request.set_shared_bytes(PlanOwnMemory(definitions, /*parameters_shared=*/false));
  request.set_shared_region(region);
  return region;
}

Result<std::vector<std::shared_ptr<KeyImpl>>> JobGroups::Enter(
    GroupImpl& group, std::vector<KeyDefinition> definitions, const AddedBatch& added) {
  const v1::AddKeysResponse& response = added.response;
  absl::StatusOr<std::vector<KeyLayout>> layouts =
      job_.layout_->AddGroupKeys(ViewsOf(definitions, response));
  if (!layouts.ok() || response.group_id() == 0)
    return Status(StatusCode::kInternal,
                  fmt::format("daemon {}: {}", job_.calls_.links().front()->endpoint.ToString(),
                              layouts.ok() ? "the group has no id"
                                           : std::string(layouts.status().message())));
  AwaitNumbers(*layouts);
  auto batch = std::make_unique<KeyBatch>();
  auto keys = job_.MakeKeys(std::move(definitions), *std::move(layouts), added, *batch);
  if (!keys.ok()) return keys.status();
  group.id = response.group_id();
  {
    const std::lock_guard lock(job_.mutex_);
    group.keys.insert(group.keys.end(), keys->begin(), keys->end());
  }
  group.batches.push_back(std::move(batch));
  job_.Submit({.kind = Command::Kind::kAddKeys, .batch = group.batches.back().get()});
  return keys;
}

Status JobGroups::Remove(const std::shared_ptr<GroupImpl>& group) {
  const std::lock_guard group_calls(group->calls_mutex);
  if (Status verdict = job_.status(); !verdict.ok()) return verdict;
  if (group->removed)
    return RefusedGroup(fmt::format("{}: the group was removed",
                                    GroupPlace(job_.name(), job_.rank(), group->name)));
  if (group->id != 0) {
    if (Status status = RemoveKeys(*group); !status.ok()) return status;
  }
  group->removed = true;
  std::vector<std::shared_ptr<KeyImpl>> keys;  // none is destroyed with the lock
  const std::lock_guard lock(job_.mutex_);
  keys.swap(group->keys);
  std::erase(groups_, group);
  return Status();
}

void JobGroups::AppendKeys(std::vector<std::shared_ptr<KeyImpl>>& keys) const {
  for (const std::shared_ptr<GroupImpl>& group : groups_)
    keys.insert(keys.end(), group->keys.begin(), group->keys.end());
}

void JobGroups::Clear() {
  for (const std::shared_ptr<GroupImpl>& group : groups_) group->keys.clear();
  groups_.clear();
}

std::vector<std::shared_ptr<KeyImpl>> JobGroups::KeysOf(const GroupImpl& group) const {
  const std::lock_guard lock(job_.mutex_);
  return group.keys;
}

// REQUIRES: group.calls_mutex is held.
Status JobGroups::RemoveKeys(GroupImpl& group) {
  if (job_.ways_->registers_memory())
    return RefusedGroup(
        fmt::format("{}: the memory of its keys is registered with this host's RDMA "
                    "devices until the job ends; require another transport",
                    GroupPlace(job_.name(), job_.rank(), group.name)));
  const std::vector<std::shared_ptr<KeyImpl>> keys = KeysOf(group);
  MarkedKeys marked;
  for (const std::shared_ptr<KeyImpl>& key : keys)
    if (Status status = marked.Mark(*key); !status.ok()) return status;
  {
    const std::lock_guard lock(numbers_mutex_);
    removing_.push_back(&group);
  }
  Status status = job_.rack_batches_.RemoveGroup(group.id, group.name);
  if (status.ok() || status.code() == StatusCode::kCancelled) marked.Keep();
  if (status.ok()) status = RemoveFromEngine(group, keys);
  {
    const std::lock_guard lock(numbers_mutex_);
    std::erase(removing_, &group);
    numbers_changed_.notify_all();
  }
  if (!status.ok()) return status;
  group.regions.clear();
  group.batches.clear();
  group.id = 0;
  return status;
}

// Without the job's calls_mutex_, whose holder may wait for the numbers of these keys.
Status JobGroups::RemoveFromEngine(const GroupImpl& group,
                                   std::span<const std::shared_ptr<KeyImpl>> keys) {
  if (Status verdict = job_.status(); !verdict.ok()) return verdict;
  std::vector<std::shared_ptr<const void>> memory;  // freed after the engine has ended the keys
  for (const std::uint32_t region : group.regions)
    memory.push_back(job_.rack_batches_.RemoveGroupMemory(region));
  for (const std::unique_ptr<KeyBatch>& batch : group.batches)
    job_.Submit({.kind = Command::Kind::kRemoveKeys, .batch = batch.get()});
  // If the job ends meanwhile, its keys stay until this rank leaves.
  for (const std::shared_ptr<KeyImpl>& key : keys)
    if (!key->AwaitRemoved()) return job_.status();
  for (const std::uint32_t region : group.regions) job_.rack_batches_.ReturnGroupRegion(region);
  return Status();
}

bool JobGroups::HaveNumbers(std::span<const KeyLayout> layouts) const {
  std::set<KeyIndex> keys;
  std::set<std::pair<std::uint32_t, ChunkIndex>> chunks;
  for (const KeyLayout& layout : layouts) {
    keys.insert(layout.key);
    for (const ChunkPlace& place : layout.chunks) chunks.emplace(place.lane, place.chunk);
  }
  for (const GroupImpl* const group : removing_) {
    for (const std::unique_ptr<KeyBatch>& batch : group->batches) {
      for (const KeyPlan& plan : batch->keys) {
        if (keys.contains(plan.layout.key)) return true;
        for (const ChunkPlace& place : plan.layout.chunks)
          if (chunks.contains({place.lane, place.chunk})) return true;
      }
    }
  }
  return false;
}

void JobGroups::AwaitNumbers(std::span<const KeyLayout> layouts) {
  std::unique_lock lock(numbers_mutex_);
  while (!removing_.empty() && HaveNumbers(layouts)) {
    if (!job_.status().ok()) return;
    numbers_changed_.wait_for(lock, std::chrono::milliseconds(20));  // or the job ends
  }
}

}  // namespace phub::client
