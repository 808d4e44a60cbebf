// phub::Group, implemented with client/session/job_impl.h.
#include "phub/group.h"

#include <utility>

#include "client/session/fork.h"
#include "client/session/group_impl.h"
#include "client/session/job_impl.h"
#include "client/session/round_access.h"

namespace phub {

using client::ForkedStatus;
using client::InForkedChild;

Group::Group(std::shared_ptr<client::JobImpl> job, std::shared_ptr<client::GroupImpl> group)
    : job_(std::move(job)), impl_(std::move(group)) {}
Group::~Group() = default;
Group::Group(const Group& other) = default;
Group& Group::operator=(const Group& other) = default;
Group::Group(Group&& other) noexcept = default;
Group& Group::operator=(Group&& other) noexcept = default;

const std::string& Group::name() const { return impl_->name; }
std::span<const std::uint32_t> Group::ranks() const { return impl_->ranks; }
std::uint32_t Group::index() const { return impl_->index; }

Result<std::vector<Key>> Group::AddKeys(std::span<const KeySpec> specs) {
  if (InForkedChild()) return ForkedStatus();
  auto states = job_->groups().AddKeys(*impl_, specs);
  if (!states.ok()) return states.status();
  std::vector<Key> keys;
  keys.reserve(states->size());
  for (std::shared_ptr<client::KeyImpl>& state : *states)
    keys.push_back(client::RoundAccess::Make(std::move(state)));
  return keys;
}

Result<Key> Group::AddKey(std::string_view key, ElementType type, std::uint64_t element_count,
                          const KeyOptions& options) {
  const KeySpec spec{
      .name = std::string(key), .type = type, .element_count = element_count, .options = options};
  auto keys = AddKeys({&spec, 1});
  if (!keys.ok()) return keys.status();
  return std::move(keys->front());
}

Status Group::Remove() { return InForkedChild() ? ForkedStatus() : job_->groups().Remove(impl_); }

Result<Group> Job::NewGroup(std::string_view name, std::span<const std::uint32_t> ranks,
                            PriorityClass priority_class) {
  if (InForkedChild()) return ForkedStatus();
  auto group = impl_->groups().New(name, ranks, priority_class);
  if (!group.ok()) return group.status();
  return Group(impl_, *std::move(group));
}

Result<std::vector<Group>> Job::NewGroups(std::span<const GroupSpec> groups) {
  if (InForkedChild()) return ForkedStatus();
  auto made = impl_->groups().New(groups);
  if (!made.ok()) return made.status();
  std::vector<Group> own;
  for (std::shared_ptr<client::GroupImpl>& each : *made)
    own.push_back(Group(impl_, std::move(each)));
  return own;
}

}  // namespace phub
