// Parses the same bytes as each message that the two ends of a verbs lane exchange.
#include "common/wire/verbs_lane.h"
#include "tests/fuzz/wire_properties.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace phub::wire;
  const std::span<const std::byte> bytes = phub::fuzz::Bytes(data, size);
  phub::fuzz::CheckDecoder<kVerbsOfferBytes>(bytes, VerbsOffer{.lid = 77}, DecodeVerbsOffer,
                                             EncodeVerbsOffer);
  phub::fuzz::CheckDecoder<kVerbsControlBytes>(bytes, VerbsControl{.index = 77}, DecodeVerbsControl,
                                               EncodeVerbsControl);
  phub::fuzz::CheckDecoder<kLaneHelloBytes>(bytes, LaneHello{.rank = {77}}, DecodeVerbsHello,
                                            EncodeVerbsHello);
  return 0;
}
