// Conversions between f32, f16 and bf16; non-temporal copies; the instruction set in use.
#include <cstring>

#include "common/base/check.h"
#include "common/simd/blocks.h"

// This file is compiled once per instruction set: foreach_target.h includes it again for each, and
// must come before everything that depends on the target.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/simd/convert.cc"
#include "hwy/foreach_target.h"
// clang-format on

#include "common/simd/fold-inl.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace phub::simd {
namespace HWY_NAMESPACE {

// Converts as a fold of one term that is stored in another format.
template <class Input, class Output>
void ConvertAs(const std::byte* input, std::byte* output, std::size_t count) {
  const From<Input> first{reinterpret_cast<const typename Input::Element*>(input), 0};
  const StoreAs<Output> store{reinterpret_cast<typename Output::Element*>(output), 0};
  FoldPass<Input, Sum>(first, Rows(), Range{0, count}, store);
}

void ConvertKernel(ElementType from, const std::byte* input, ElementType to, std::byte* output,
                   std::size_t count) {
  using F32 = Plain<float>;
  if (from == ElementType::kF32) {
    return to == ElementType::kF16 ? ConvertAs<F32, F16>(input, output, count)
                                   : ConvertAs<F32, Bf16>(input, output, count);
  }
  if (from == ElementType::kF16) {
    return to == ElementType::kF32 ? ConvertAs<ExactF16, F32>(input, output, count)
                                   : ConvertAs<F16, Bf16>(input, output, count);
  }
  return to == ElementType::kF32 ? ConvertAs<Bf16, F32>(input, output, count)
                                 : ConvertAs<Bf16, F16>(input, output, count);
}

void StreamCopyKernel(const std::byte* input, std::byte* output, std::size_t bytes) {
  const hn::ScalableTag<std::uint8_t> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto* const from = reinterpret_cast<const std::uint8_t*>(input);
  auto* const to = reinterpret_cast<std::uint8_t*>(output);
  std::size_t i = 0;
  if (reinterpret_cast<std::uintptr_t>(output) % lanes == 0) {
    for (; i + lanes <= bytes; i += lanes) hn::Stream(hn::LoadU(d, from + i), d, to + i);
  }
  if (i < bytes) std::memcpy(output + i, input + i, bytes - i);
}

const char* TargetNameKernel() { return hwy::TargetName(HWY_TARGET); }

}  // namespace HWY_NAMESPACE
}  // namespace phub::simd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace phub::simd {

HWY_EXPORT(ConvertKernel);
HWY_EXPORT(StreamCopyKernel);
HWY_EXPORT(TargetNameKernel);

namespace {

bool IsAmongConvertible(ElementType type) {
  return type == ElementType::kF32 || numeric::IsHalf(type);
}

}  // namespace

void Convert(ElementType from, const std::byte* input, ElementType to, std::byte* output,
             std::size_t count) {
  if (from == to) {
    if (count > 0) std::memcpy(output, input, count * numeric::ElementBytes(from));
    return;
  }
  PHUB_CHECK(IsAmongConvertible(from) && IsAmongConvertible(to), "from={} to={}",
             numeric::ToString(from), numeric::ToString(to));
  HWY_DYNAMIC_DISPATCH(ConvertKernel)(from, input, to, output, count);
}

void StreamCopy(const std::byte* input, std::byte* output, std::size_t bytes) {
  HWY_DYNAMIC_DISPATCH(StreamCopyKernel)(input, output, bytes);
}

void FinishStreaming() { hwy::FlushStream(); }

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
