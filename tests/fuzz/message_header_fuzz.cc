#include "common/wire/message.h"
#include "tests/fuzz/wire_properties.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using phub::wire::DecodeError;
  using phub::wire::MessageHeader;
  MessageHeader untouched;
  untouched.chunk = {77};
  const auto decode = [](std::span<const std::byte> bytes, MessageHeader& header) {
    const DecodeError error = phub::wire::DecodeHeader(bytes, header);
    PHUB_CHECK((error == DecodeError::kTruncated) == (bytes.size() < phub::wire::kHeaderBytes),
               "error={} bytes={}", phub::wire::ToString(error), bytes.size());
    if (error != DecodeError::kNone) return false;
    PHUB_CHECK(header.payload_bytes <= phub::kChunkBytesMax, "bytes={}", header.payload_bytes);
    return true;
  };
  phub::fuzz::CheckDecoder<phub::wire::kHeaderBytes>(phub::fuzz::Bytes(data, size), untouched,
                                                     decode, phub::wire::EncodeHeader);
  return 0;
}
