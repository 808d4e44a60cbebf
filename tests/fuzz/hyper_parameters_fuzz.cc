#include <cmath>

#include "common/wire/message.h"
#include "tests/fuzz/wire_properties.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using phub::wire::HyperParameters;
  HyperParameters untouched;
  untouched.momentum = 77.0;
  const auto decode = [](std::span<const std::byte> bytes, HyperParameters& values) {
    if (!phub::wire::DecodeHyperParameters(bytes, values)) return false;
    PHUB_CHECK(bytes.size() == phub::wire::kHyperParametersBytes, "bytes={}", bytes.size());
    for (const double value :
         {values.learning_rate, values.weight_decay, values.clip_value, values.momentum,
          values.dampening, values.beta1, values.beta2, values.epsilon, values.learning_rate_decay,
          values.initial_accumulator, values.alpha})
      PHUB_CHECK(std::isfinite(value));
    return true;
  };
  phub::fuzz::CheckDecoder<phub::wire::kHyperParametersBytes>(
      phub::fuzz::Bytes(data, size), untouched, decode, phub::wire::EncodeHyperParameters);
  return 0;
}
