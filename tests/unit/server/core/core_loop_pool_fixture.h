// A core loop with a pooled key.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "tests/unit/server/core/core_loop_fixture.h"

namespace phub::server {

using numeric::ElementType;

inline constexpr std::uint32_t kPoolChunkBytes = kElements * sizeof(float);

template <typename T>
std::vector<std::byte> BytesOf(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// A pool of four chunks.
class PoolTest : public CoreLoopTest {
 protected:
  void StartPool(std::uint32_t slots = 4, std::uint32_t ranks = 2) {
    key_.type = key_.gradient_type = key_.parameter_type = ElementType::kU8;
    key_.collective = true;
    key_.pool_bytes = 4 * kPoolChunkBytes;
    for (std::uint32_t i = 0; i < 4; ++i)
      key_.chunks.push_back({kPoolChunkBytes, i * kPoolChunkBytes});
    Start(ranks, slots, Optimizer::kNone, Reduction::kSum, /*chunks=*/0);
  }
  wire::MessageHeader Pooled(std::uint32_t chunk, std::uint64_t iteration, std::uint32_t slot,
                             ElementType type, const wire::PoolRound& round) {
    wire::MessageHeader header = Gradient(chunk, iteration, slot);
    header.version = wire::kPoolVersion;
    header.operation = wire::RoundOperation::kPool;
    header.hyper_version = {};
    header.type = type;
    header.pool = round;
    return header;
  }
  template <typename T>
  void PushPooled(std::uint32_t rank, const wire::MessageHeader& header,
                  const std::vector<T>& values) {
    std::vector<float> payload(values.size() * sizeof(T) / sizeof(float));  // as bytes
    if (!payload.empty())
      std::memcpy(payload.data(), values.data(), payload.size() * sizeof(float));
    transport_.Deliver(lanes_[rank], header, payload);
    loop_.RunOnce();
  }
};

}  // namespace phub::server
