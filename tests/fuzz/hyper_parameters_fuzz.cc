#include <cmath>

#include "common/wire/message.h"
#include "tests/fuzz/wire_properties.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using phub::wire::HyperParameters;
  HyperParameters untouched;
  untouched.momentum = 77.0f;
  const auto decode = [](std::span<const std::byte> bytes, HyperParameters& values) {
    if (!phub::wire::DecodeHyperParameters(bytes, values)) return false;
    PHUB_CHECK(bytes.size() == phub::wire::kHyperParametersBytes, "bytes={}", bytes.size());
    PHUB_CHECK(std::isfinite(values.learning_rate) && std::isfinite(values.momentum) &&
               std::isfinite(values.dampening) && std::isfinite(values.weight_decay));
    return true;
  };
  phub::fuzz::CheckDecoder<phub::wire::kHyperParametersBytes>(
      phub::fuzz::Bytes(data, size), untouched, decode, phub::wire::EncodeHyperParameters);
  return 0;
}
