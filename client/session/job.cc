// phub::Job, implemented with client/session/job_impl.h.
#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "client/session/fork.h"
#include "client/session/job_impl.h"
#include "client/session/key_checks.h"
#include "phub/client.h"

namespace phub {
namespace {

using client::ForkedStatus;
using client::InForkedChild;

}  // namespace

Job::Job(std::shared_ptr<client::JobImpl> state) : impl_(std::move(state)) {}
Job::Job(Job&& other) noexcept = default;

Job& Job::operator=(Job&& other) noexcept {
  std::swap(impl_, other.impl_);  // `other` leaves this object's former job when it is destroyed
  return *this;
}

Job::~Job() {
  if (impl_ != nullptr) (void)Leave();
}

const std::string& Job::name() const { return impl_->name(); }
std::uint32_t Job::rank() const { return impl_->rank(); }
std::uint32_t Job::world_size() const { return impl_->world_size(); }
bool Job::created() const { return impl_->created(); }
std::string Job::transports() const { return InForkedChild() ? "" : impl_->transports(); }
bool Job::resumed() const { return impl_->resumed(); }
std::uint64_t Job::iteration() const { return InForkedChild() ? 0 : impl_->iteration(); }
IterationOutcome Job::last_iteration() const { return impl_->last_iteration(); }
Status Job::status() const { return InForkedChild() ? ForkedStatus() : impl_->status(); }
Status Job::Barrier() { return InForkedChild() ? ForkedStatus() : impl_->barriers().Wait(); }
Status Job::ExplainBarrier() const {
  return InForkedChild() ? ForkedStatus() : impl_->barriers().Explain();
}
Status Job::SetRecorder(Recorder recorder) {
  return InForkedChild() ? ForkedStatus() : impl_->SetRecorder(std::move(recorder));
}
Status Job::Leave() { return InForkedChild() ? ForkedStatus() : impl_->Leave(); }

Result<std::vector<Key>> Job::AddKeys(std::span<const KeySpec> specs) {
  if (InForkedChild()) return ForkedStatus();
  auto states = impl_->AddKeys(specs);
  if (!states.ok()) return states.status();
  std::vector<Key> keys;
  keys.reserve(states->size());
  for (std::shared_ptr<client::KeyImpl>& state : *states) keys.push_back(Key(std::move(state)));
  return keys;
}

Status Job::RemoveKeys(std::span<const Key> keys) {
  if (InForkedChild()) return ForkedStatus();
  std::vector<std::shared_ptr<client::KeyImpl>> states;
  states.reserve(keys.size());
  for (const Key& key : keys) states.push_back(key.impl_);
  return impl_->RemoveKeys(states);
}

Result<Key> Job::AddKey(std::string_view name, ElementType type, std::uint64_t element_count,
                        const Optimizer& optimizer, const KeyOptions& options) {
  const KeySpec spec{.name = std::string(name),
                     .type = type,
                     .element_count = element_count,
                     .optimizer = optimizer,
                     .options = options};
  auto keys = AddKeys({&spec, 1});
  if (!keys.ok()) return keys.status();
  return std::move(keys->front());
}

Result<Key> Job::AddBundle(std::string_view name, ElementType type,
                           std::span<const std::uint64_t> tensors, const Optimizer& optimizer,
                           const KeyOptions& options) {
  if (tensors.empty())
    return Status(StatusCode::kInvalidArgument, fmt::format("bundle {} has no tensors", name));
  const KeySpec spec{.name = std::string(name),
                     .type = type,
                     .optimizer = optimizer,
                     .options = options,
                     .tensors = {tensors.begin(), tensors.end()}};
  auto keys = AddKeys({&spec, 1});
  if (!keys.ok()) return keys.status();
  return std::move(keys->front());
}

Status Job::Initialize(Key& key, ConstElements values) {
  if (InForkedChild()) return ForkedStatus();
  client::KeyImpl& state = *key.impl_;
  const client::KeyDefinition& definition = state.definition;
  if (state.has_values()) return this->status();
  const Rank root = definition.members.empty() ? Rank{0} : definition.members.front();
  const bool is_root = rank() == root.value;
  if (is_root) {
    Status status =
        client::CheckElements(fmt::format("key {} of job {}", definition.name, name()),
                              "initial values", values, definition.type, definition.element_count);
    if (!status.ok()) return status;
  }
  auto ticket = state.StartAssign(root, definition.type, is_root ? values.data : nullptr);
  if (!ticket.ok()) return ticket.status();
  return state.Wait(*ticket, std::nullopt);
}

Handle Job::Broadcast(Key& key, std::uint32_t root, ConstElements values) {
  if (InForkedChild()) return Handle(ForkedStatus());
  client::KeyImpl& state = *key.impl_;
  const client::KeyDefinition& definition = state.definition;
  const std::string place = fmt::format("key {} of job {}", definition.name, name());
  if (root >= world_size())
    return Handle(Status(
        StatusCode::kInvalidArgument,
        fmt::format("{}: root {} must be less than world_size {}", place, root, world_size())));
  if (!definition.members.empty() &&
      std::ranges::find(definition.members, Rank{root}) == definition.members.end())
    return Handle(Status(StatusCode::kInvalidArgument,
                         fmt::format("{}: root {} is not a member of the group", place, root)));
  // Without values the root sends its own parameters.
  const bool from_parameters = values.count == 0;
  if (from_parameters) values = definition.parameters;
  const numeric::ElementType type = from_parameters ? definition.parameter_type : definition.type;
  const bool is_root = rank() == root;
  if (is_root && !from_parameters) {
    Status status = client::CheckElements(place, "values", values, type, definition.element_count);
    if (!status.ok()) return Handle(std::move(status));
  }
  auto ticket = state.StartAssign(Rank{root}, type, is_root ? values.data : nullptr);
  if (!ticket.ok()) return Handle(ticket.status());
  return Handle(key.impl_, *ticket);
}

}  // namespace phub
