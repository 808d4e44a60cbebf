// phub::Key and phub::Handle: the public faces of client/session/key_state.h.
#include <fmt/core.h>

#include <functional>
#include <utility>

#include "client/session/job_state.h"
#include "client/session/key_state.h"
#include "client/session/optimizers.h"
#include "common/base/check.h"
#include "phub/client.h"

namespace phub {
namespace {

bool Overlap(std::span<const float> a, std::span<const float> b) {
  const std::less<> before;
  return !a.empty() && !b.empty() && before(a.data(), b.data() + b.size()) &&
         before(b.data(), a.data() + a.size());
}

Status CheckMemory(const client::KeyState& key, std::span<const float> gradients,
                   std::span<const float> parameters) {
  const std::uint64_t count = key.definition.element_count;
  if (gradients.size() != count || parameters.size() != count)
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("key {} of job {} has {} elements; gradients of {} and parameters of "
                              "{} were given",
                              key.definition.name, key.job->name(), count, gradients.size(),
                              parameters.size()));
  if (Overlap(gradients, parameters))
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("key {} of job {}: gradients and parameters overlap",
                              key.definition.name, key.job->name()));
  return Status();
}

}  // namespace

// ---- Key ---------------------------------------------------------------------------------------

Key::Key(std::shared_ptr<client::KeyState> state) : state_(std::move(state)) {}
Key::~Key() = default;
Key::Key(const Key& other) = default;
Key& Key::operator=(const Key& other) = default;
Key::Key(Key&& other) noexcept = default;
Key& Key::operator=(Key&& other) noexcept = default;

const std::string& Key::name() const { return state_->definition.name; }
std::uint64_t Key::element_count() const { return state_->definition.element_count; }
std::uint64_t Key::iteration() const { return state_->iteration.load(std::memory_order_relaxed); }
std::span<float> Key::gradients() const { return state_->definition.gradients; }
std::span<float> Key::parameters() const { return state_->definition.parameters; }
std::size_t Key::tensor_count() const { return state_->definition.tensors.size(); }

Tensor Key::tensor(std::size_t i) const {
  const std::vector<std::uint64_t>& tensors = state_->definition.tensors;
  PHUB_CHECK(i < tensors.size(), "key={} tensor={} tensors={}", name(), i, tensors.size());
  std::uint64_t offset = 0;
  for (std::size_t before = 0; before < i; ++before) offset += tensors[before];
  return {.gradients = gradients().subspan(offset, tensors[i]),
          .parameters = parameters().subspan(offset, tensors[i])};
}

Handle Key::PushPull() { return PushPull(gradients(), parameters()); }

Handle Key::PushPull(std::span<const float> gradients, std::span<float> parameters) {
  if (Status status = CheckMemory(*state_, gradients, parameters); !status.ok())
    return Handle(std::move(status));
  auto ticket = state_->Start({.gradients = gradients.data(), .parameters = parameters.data()});
  if (!ticket.ok()) return Handle(ticket.status());
  return Handle(state_, *ticket);
}

Handle Key::Push() { return PushPull(); }
Handle Key::Push(std::span<const float> gradients) { return PushPull(gradients, parameters()); }

Handle Key::Pull() const {
  auto ticket = state_->LastPushed();
  if (!ticket.ok()) return Handle(ticket.status());
  return Handle(state_, *ticket);
}

Status Key::SetHyperParameters(const Optimizer& values) {
  if (values.index() != state_->definition.optimizer.index())
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("key {} of job {} has another kind of optimizer",
                              state_->definition.name, state_->job->name()));
  const wire::HyperParameters record = client::HyperParametersOf(values);
  Status status = client::CheckHyperParameters(state_->definition.name, record);
  if (status.ok()) status = state_->job->status();
  if (!status.ok()) return status;
  state_->job->Submit({.kind = client::Command::Kind::kSetHyperParameters,
                       .key = state_->index,
                       .hyper_parameters = record});
  return Status();
}

// ---- Handle ------------------------------------------------------------------------------------

Handle::Handle()
    : refused_(StatusCode::kFailedPrecondition, "this handle was made without a push") {}
Handle::Handle(Status refused) : refused_(std::move(refused)) {}
Handle::Handle(std::shared_ptr<client::KeyState> key, std::uint64_t ticket)
    : key_(std::move(key)), ticket_(ticket) {}
Handle::~Handle() = default;
Handle::Handle(Handle&& other) noexcept = default;
Handle& Handle::operator=(Handle&& other) noexcept = default;
Handle::Handle(const Handle& other) = default;
Handle& Handle::operator=(const Handle& other) = default;

Status Handle::Wait() const {
  return key_ == nullptr ? refused_ : key_->Wait(ticket_, std::nullopt);
}

Status Handle::Wait(std::chrono::nanoseconds timeout) const {
  if (key_ == nullptr) return refused_;
  const auto now = std::chrono::steady_clock::now();
  // A wait that long is one without a deadline; as a point in time it would overflow.
  if (timeout > std::chrono::steady_clock::time_point::max() - now) return Wait();
  return key_->Wait(ticket_, now + timeout);
}

bool Handle::Test() const { return key_ == nullptr || key_->Test(ticket_); }

Status Handle::Cancel() const { return key_ == nullptr ? refused_ : key_->Cancel(ticket_); }

}  // namespace phub
