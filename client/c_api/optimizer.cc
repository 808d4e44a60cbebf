// phub_optimizer: every optimizer's hyper-parameters in one struct.
#include <array>
#include <cstddef>
#include <cstdint>
#include <variant>

#include "client/c_api/structs.h"
#include "common/optimizer/hyper_parameters.h"

namespace phub::c_api {
namespace {

// The members of phub_optimizer, in the order of optimizer::kFields.
constexpr std::array<double phub_optimizer::*, optimizer::kFields.size()> kMembers = {
    &phub_optimizer::learning_rate,
    &phub_optimizer::weight_decay,
    &phub_optimizer::clip_value,
    &phub_optimizer::momentum,
    &phub_optimizer::dampening,
    &phub_optimizer::beta1,
    &phub_optimizer::beta2,
    &phub_optimizer::epsilon,
    &phub_optimizer::learning_rate_decay,
    &phub_optimizer::initial_accumulator,
    &phub_optimizer::alpha};
static_assert(kMembers.back() != nullptr, "a field of optimizer::kFields has no member");

// The optimizer of a kind, with its defaults; kind must be valid.
template <std::size_t kIndex = 0>
Optimizer OfKind(std::size_t kind) {
  if constexpr (kIndex + 1 < std::variant_size_v<Optimizer>)
    if (kind != kIndex) return OfKind<kIndex + 1>(kind);
  return Optimizer(std::in_place_index<kIndex>);
}
constexpr std::int32_t kLastKind = PHUB_RMSPROP_CENTERED;
static_assert(std::variant_size_v<Optimizer> == kLastKind + 1);

template <typename Struct>
void Assign(Struct& to, const phub_optimizer& from) {
  if constexpr (requires { to.learning_rate; }) to.learning_rate = from.learning_rate;
  if constexpr (requires { to.weight_decay; }) to.weight_decay = from.weight_decay;
  if constexpr (requires { to.clip_value; }) to.clip_value = from.clip_value;
  if constexpr (requires { to.momentum; }) to.momentum = from.momentum;
  if constexpr (requires { to.dampening; }) to.dampening = from.dampening;
  if constexpr (requires { to.beta1; }) to.beta1 = from.beta1;
  if constexpr (requires { to.beta2; }) to.beta2 = from.beta2;
  if constexpr (requires { to.epsilon; }) to.epsilon = from.epsilon;
  if constexpr (requires { to.learning_rate_decay; })
    to.learning_rate_decay = from.learning_rate_decay;
  if constexpr (requires { to.initial_accumulator; })
    to.initial_accumulator = from.initial_accumulator;
  if constexpr (requires { to.alpha; }) to.alpha = from.alpha;
}

constexpr std::size_t kOptimizerFirst = offsetof(phub_optimizer, alpha);

}  // namespace

Status ReadOptimizer(const phub_optimizer* given, Optimizer& values) {
  if (given == nullptr) {
    values = None{};
    return Status();
  }
  phub_optimizer flat{};
  if (Status status = Read(given, "phub_optimizer", kOptimizerFirst, flat); !status.ok())
    return status;
  if (Status status = CheckChoice("phub_optimizer.kind", flat.kind, kLastKind); !status.ok())
    return status;
  values = OfKind(static_cast<std::size_t>(flat.kind));
  return std::visit(
      [&flat](auto& one) {
        const auto has = optimizer::FieldsOf<std::decay_t<decltype(one)>>();
        for (std::size_t i = 0; i < kMembers.size(); ++i)
          if (!has[i] && flat.*kMembers[i] != 0.0)
            return Invalid(
                fmt::format("phub_optimizer.{} is {}, but the optimizer of kind {} has "
                            "no such hyper-parameter; it must be 0",
                            optimizer::kFields[i].name, flat.*kMembers[i], flat.kind));
        Assign(one, flat);
        return Status();
      },
      values);
}

}  // namespace phub::c_api

void phub_optimizer_init(phub_optimizer* optimizer, size_t struct_size, int32_t kind) {
  phub_optimizer flat{};
  flat.kind = kind;
  if (kind >= 0 && kind <= phub::c_api::kLastKind) {
    const auto defaults =
        std::visit([](const auto& one) { return phub::optimizer::FromStruct(one); },
                   phub::c_api::OfKind(static_cast<std::size_t>(kind)));
    for (std::size_t i = 0; i < phub::c_api::kMembers.size(); ++i)
      flat.*phub::c_api::kMembers[i] = defaults.*phub::optimizer::kFields[i].value;
  }
  phub::c_api::Initialize(optimizer, struct_size, flat);
}
