#include "common/wire/lane_hello.h"
#include "tests/fuzz/wire_properties.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using phub::wire::LaneRefusal;
  using phub::wire::LaneWelcome;
  LaneWelcome untouched;
  untouched.version_max = 77;
  const auto decode = [](std::span<const std::byte> bytes, LaneWelcome& welcome) {
    if (!phub::wire::DecodeLaneWelcome(bytes, welcome)) return false;
    PHUB_CHECK(bytes.size() == phub::wire::kLaneWelcomeBytes, "bytes={}", bytes.size());
    PHUB_CHECK((welcome.refusal == LaneRefusal::kNone) == (welcome.version != 0));
    return true;
  };
  phub::fuzz::CheckDecoder<phub::wire::kLaneWelcomeBytes>(phub::fuzz::Bytes(data, size), untouched,
                                                          decode, phub::wire::EncodeLaneWelcome);
  return 0;
}
