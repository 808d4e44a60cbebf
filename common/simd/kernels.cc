#include "common/simd/kernels.h"

#include "common/base/check.h"
#include "common/base/ids.h"

// This file is compiled once per instruction set: foreach_target.h includes it again for each, and
// must come before everything that depends on the target.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/simd/kernels.cc"
#include "hwy/foreach_target.h"
// clang-format on

#include "common/simd/epilogues-inl.h"
#include "common/simd/fold-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace phub::simd {
namespace HWY_NAMESPACE {

void SumKernel(Inputs inputs, std::size_t count, float* output) {
  FoldInputs<SumOfFloats>(inputs, count, Store{output});
}

void SumMeanKernel(Inputs inputs, std::size_t count, float divisor, float* output) {
  FoldInputs<SumOfFloats>(inputs, count, DivideThen<Store>{divisor, Store{output}});
}

// The choices that do not change within a call are made here, once, and not per element.
template <class Update>
void SumUpdate(Inputs inputs, std::size_t count, const SgdArguments& arguments, float* parameters,
               const Update& update) {
  using Plain = UpdateParameters<false, Update>;
  using Decayed = UpdateParameters<true, Update>;
  const float divisor = arguments.divisor;
  const float weight_decay = arguments.weight_decay;
  const Plain plain{parameters, 0.0f, update};
  const Decayed decayed{parameters, weight_decay, update};
  if (divisor == 0.0f && weight_decay == 0.0f) {
    FoldInputs<SumOfFloats>(inputs, count, plain);
  } else if (divisor == 0.0f) {
    FoldInputs<SumOfFloats>(inputs, count, decayed);
  } else if (weight_decay == 0.0f) {
    FoldInputs<SumOfFloats>(inputs, count, DivideThen<Plain>{divisor, plain});
  } else {
    FoldInputs<SumOfFloats>(inputs, count, DivideThen<Decayed>{divisor, decayed});
  }
}

void SumSgdKernel(Inputs inputs, std::size_t count, const SgdArguments& arguments,
                  float* parameters) {
  SumUpdate(inputs, count, arguments, parameters, SgdUpdate{arguments.learning_rate});
}

void SumMomentumKernel(Inputs inputs, std::size_t count, const SgdArguments& arguments,
                       float* parameters, float* momentum) {
  const SgdUpdate step{arguments.learning_rate};
  if (arguments.first_step) {
    SumUpdate(inputs, count, arguments, parameters, MomentumFirstUpdate{step, momentum});
  } else {
    SumUpdate(inputs, count, arguments, parameters,
              MomentumUpdate{step, momentum, arguments.momentum, 1.0f - arguments.dampening});
  }
}

const char* TargetNameKernel() { return hwy::TargetName(HWY_TARGET); }

}  // namespace HWY_NAMESPACE
}  // namespace phub::simd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace phub::simd {

HWY_EXPORT(SumKernel);
HWY_EXPORT(SumMeanKernel);
HWY_EXPORT(SumSgdKernel);
HWY_EXPORT(SumMomentumKernel);
HWY_EXPORT(TargetNameKernel);

namespace {

void CheckInputs(Inputs inputs) {
  PHUB_CHECK(!inputs.empty() && inputs.size() <= kRanksMax, "inputs={}", inputs.size());
}

}  // namespace

void Sum(Inputs inputs, std::size_t count, float* output) {
  CheckInputs(inputs);
  HWY_DYNAMIC_DISPATCH(SumKernel)(inputs, count, output);
}

void SumMean(Inputs inputs, std::size_t count, float divisor, float* output) {
  CheckInputs(inputs);
  HWY_DYNAMIC_DISPATCH(SumMeanKernel)(inputs, count, divisor, output);
}

void SumSgd(Inputs inputs, std::size_t count, const SgdArguments& arguments, float* parameters) {
  CheckInputs(inputs);
  HWY_DYNAMIC_DISPATCH(SumSgdKernel)(inputs, count, arguments, parameters);
}

void SumMomentum(Inputs inputs, std::size_t count, const SgdArguments& arguments, float* parameters,
                 float* momentum) {
  CheckInputs(inputs);
  HWY_DYNAMIC_DISPATCH(SumMomentumKernel)(inputs, count, arguments, parameters, momentum);
}

const char* TargetName() { return HWY_DYNAMIC_DISPATCH(TargetNameKernel)(); }

std::vector<const char*> SupportedTargetNames() {
  std::vector<const char*> names;
  for (const auto target : hwy::SupportedAndGeneratedTargets()) {
    names.push_back(hwy::TargetName(target));
  }
  return names;
}

}  // namespace phub::simd
#endif  // HWY_ONCE
