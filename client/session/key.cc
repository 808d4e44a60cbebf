// phub::Key, implemented with client/session/key_impl.h.
#include <fmt/core.h>

#include <algorithm>
#include <utility>
#include <variant>

#include "client/session/fork.h"
#include "client/session/key_checks.h"
#include "client/session/key_impl.h"
#include "client/session/optimizers.h"
#include "client/session/pool_checks.h"
#include "common/base/check.h"
#include "phub/client.h"

namespace phub {
namespace {

std::string PlaceOf(const client::KeyImpl& key) {
  return fmt::format("key {} of job {}", key.definition.name, key.job->name());
}

// The part of a key's memory that belongs to one tensor.
Elements Part(const Elements& memory, std::uint64_t offset, std::uint64_t count) {
  const std::uint64_t offset_bytes = offset * numeric::ElementBytes(client::Numeric(memory.type));
  return Elements(static_cast<std::byte*>(memory.data) + offset_bytes, count, memory.type);
}

Result<std::uint64_t> StartReduce(client::KeyImpl& key, const void* gradients, void* parameters,
                                  bool parameters_shared, bool skip = false) {
  if (client::InForkedChild()) return client::ForkedStatus();
  const bool moves = MovesBytes(key.definition.parts.movement);
  return key.Start(
      {.operation = moves ? wire::RoundOperation::kMove : wire::RoundOperation::kReduce,
       .payload_type = key.definition.gradient_type,
       .gradients = gradients,
       .parameters = parameters,
       .parameters_shared = parameters_shared,
       .skip = skip});
}

}  // namespace

// ---- Key ---------------------------------------------------------------------------------------

Key::Key(std::shared_ptr<client::KeyImpl> state) : impl_(std::move(state)) {}
Key::~Key() = default;
Key::Key(const Key& other) = default;
Key& Key::operator=(const Key& other) = default;
Key::Key(Key&& other) noexcept = default;
Key& Key::operator=(Key&& other) noexcept = default;

const std::string& Key::name() const { return impl_->definition.name; }
std::uint64_t Key::element_count() const { return impl_->definition.element_count; }
std::uint64_t Key::iteration() const { return impl_->iteration.load(std::memory_order_relaxed); }
ElementType Key::type() const { return client::Public(impl_->definition.type); }
Elements Key::gradients() const { return impl_->definition.gradients; }
ConstElements Key::parameters() const { return impl_->definition.parameters; }

Elements Key::mutable_parameters() const {
  const client::KeyDefinition& definition = impl_->definition;
  if (definition.parameters_shared) return Elements(nullptr, 0, definition.parameters.type);
  return definition.parameters;
}

std::size_t Key::tensor_count() const { return impl_->definition.tensors.size(); }

Tensor Key::tensor(std::size_t i) const {
  const std::vector<std::uint64_t>& tensors = impl_->definition.tensors;
  PHUB_CHECK(i < tensors.size(), "key={} tensor={} tensors={}", name(), i, tensors.size());
  const client::KeyDefinition& definition = impl_->definition;
  // A rank may have only some parts of a key that is not a bundle.
  if (tensors.size() == 1)
    return {.gradients = definition.gradients, .parameters = definition.parameters};
  std::uint64_t offset = 0;
  for (std::size_t before = 0; before < i; ++before) offset += tensors[before];
  return {.gradients = Part(definition.gradients, offset, tensors[i]),
          .parameters = Part(definition.parameters, offset, tensors[i])};
}

Handle Key::PushPull() {
  const client::KeyDefinition& definition = impl_->definition;
  auto ticket = StartReduce(*impl_, definition.gradients.data, definition.parameters.data,
                            definition.parameters_shared);
  if (!ticket.ok()) return Handle(ticket.status());
  return Handle(impl_, *ticket);
}

Handle Key::PushPull(ConstElements gradients, Elements parameters) {
  const client::KeyDefinition& definition = impl_->definition;
  const std::string place = PlaceOf(*impl_);
  Status status = client::CheckElements(place, "gradients", gradients, definition.gradient_type,
                                        definition.gradient_count());
  if (status.ok())
    status = client::CheckElements(place, "parameters", parameters, definition.parameter_type,
                                   definition.parameter_count());
  if (status.ok()) status = client::CheckNoOverlap(place, definition, gradients, parameters);
  if (!status.ok()) return Handle(std::move(status));
  auto ticket = StartReduce(*impl_, gradients.data, parameters.data, /*parameters_shared=*/false);
  if (!ticket.ok()) return Handle(ticket.status());
  return Handle(impl_, *ticket);
}

Handle Key::PushPullToSkip() {
  if (!impl_->job->applies_iterations())
    return Handle(Status(
        StatusCode::kFailedPrecondition,
        fmt::format("{}: iterations can be skipped only in jobs with apply=kIteration; this one "
                    "applies each chunk as soon as it is summed",
                    PlaceOf(*impl_))));
  const client::KeyDefinition& definition = impl_->definition;
  if (definition.collective)
    return Handle(Status(StatusCode::kFailedPrecondition,
                         fmt::format("{}: collective keys are outside iterations, so their rounds "
                                     "cannot be skipped",
                                     PlaceOf(*impl_))));
  auto ticket = StartReduce(*impl_, definition.gradients.data, definition.parameters.data,
                            definition.parameters_shared, /*skip=*/true);
  if (!ticket.ok()) return Handle(ticket.status());
  return Handle(impl_, *ticket);
}

Handle Key::AllReduce(ConstElements gradients, Elements parameters, Operation operation,
                      std::uint32_t sequence) {
  if (client::InForkedChild()) return Handle(client::ForkedStatus());
  const std::string place = PlaceOf(*impl_);
  Result<wire::PoolRound> round =
      client::CheckPoolRound(place, impl_->definition, gradients, parameters, operation);
  if (!round.ok()) return Handle(round.status());
  round->sequence = sequence;
  auto ticket = impl_->Start({.operation = wire::RoundOperation::kPool,
                              .payload_type = client::Numeric(gradients.type),
                              .gradients = gradients.data,
                              .parameters = parameters.data,
                              .pool = *round});
  if (!ticket.ok()) return Handle(ticket.status());
  return Handle(impl_, *ticket);
}

Handle Key::Push() { return PushPull(); }

Handle Key::Push(ConstElements gradients) {
  const client::KeyDefinition& definition = impl_->definition;
  const std::string place = PlaceOf(*impl_);
  Status status = client::CheckElements(place, "gradients", gradients, definition.gradient_type,
                                        definition.gradient_count());
  if (status.ok())
    status = client::CheckNoOverlap(place, definition, gradients, definition.parameters);
  if (!status.ok()) return Handle(std::move(status));
  auto ticket =
      StartReduce(*impl_, gradients.data, definition.parameters.data, definition.parameters_shared);
  if (!ticket.ok()) return Handle(ticket.status());
  return Handle(impl_, *ticket);
}

Handle Key::Pull() const {
  if (client::InForkedChild()) return Handle(client::ForkedStatus());
  auto ticket = impl_->LastPushed();
  if (!ticket.ok()) return Handle(ticket.status());
  return Handle(impl_, *ticket);
}

Status Key::SetHyperParameters(const Optimizer& values) {
  if (client::InForkedChild()) return client::ForkedStatus();
  if (values.index() != impl_->definition.optimizer.index())
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("the given hyper-parameters are not for the optimizer of key {} of "
                              "job {}",
                              impl_->definition.name, impl_->job->name()));
  Status status = client::CheckHyperParameters(PlaceOf(*impl_), values);
  if (status.ok()) status = impl_->job->status();
  if (!status.ok()) return status;
  // None has no values, and a key without an optimizer may be removed meanwhile.
  if (std::holds_alternative<None>(values)) return Status();
  const wire::HyperParameters record = client::HyperParametersOf(values);
  for (const optimizer::Field& field : optimizer::kFields) {
    const double now = record.*field.value;
    const double first = impl_->definition.hyper_parameters.*field.value;
    if (field.is_fixed && now != first)
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("{}: {} cannot change to {}: it was set to {} when the key was "
                                "added",
                                PlaceOf(*impl_), field.name, now, first));
  }
  impl_->first_push.NoteLearningRate(record.learning_rate);
  impl_->job->Submit({.kind = client::Command::Kind::kSetHyperParameters,
                      .key = impl_->index,
                      .hyper_parameters = record});
  return Status();
}

}  // namespace phub
