#include "common/wire/lane_hello.h"
#include "tests/fuzz/wire_properties.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using phub::wire::LaneHello;
  LaneHello untouched;
  untouched.rank = {77};
  const auto decode = [](std::span<const std::byte> bytes, LaneHello& hello) {
    if (!phub::wire::DecodeLaneHello(bytes, hello)) return false;
    PHUB_CHECK(bytes.size() == phub::wire::kLaneHelloBytes, "bytes={}", bytes.size());
    PHUB_CHECK(hello.version_min <= hello.version_max);
    return true;
  };
  phub::fuzz::CheckDecoder<phub::wire::kLaneHelloBytes>(phub::fuzz::Bytes(data, size), untouched,
                                                        decode, phub::wire::EncodeLaneHello);
  return 0;
}
