// Parses the same bytes as each of the three small messages of a daemon's Unix socket.
#include "common/wire/shared_memory.h"
#include "tests/fuzz/wire_properties.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace phub::wire;
  const std::span<const std::byte> bytes = phub::fuzz::Bytes(data, size);
  SharedBatchRequest request;
  request.rank = {77};
  phub::fuzz::CheckDecoder<kSharedBatchRequestBytes>(bytes, request, DecodeSharedBatchRequest,
                                                     EncodeSharedBatchRequest);
  phub::fuzz::CheckDecoder<kSharedLaneBytes>(bytes, SharedLane{.slot_count = 77}, DecodeSharedLane,
                                             EncodeSharedLane);
  phub::fuzz::CheckDecoder<kSharedBatchBytes>(bytes, SharedBatch{.worker_bytes = 77},
                                              DecodeSharedBatch, EncodeSharedBatch);
  return 0;
}
