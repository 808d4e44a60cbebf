// Bytes of the daemon's memory that one core loop's part of a job that spans racks reads and writes
// for exchanges: by its own instructions, and by the system or a device on its behalf when messages
// arrive and leave. `phubctl plan memory` computes the same figures from a plan file
// (common/plan/memory.h). Written only by the loop, read by control as long as the shard exists.
//
// Not counted: checkpoints, the search for gradients that are not finite, gradients that are pushed
// again, and all memory that is not the data of chunks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "common/base/single_writer_number.h"
#include "server/metrics/counters.h"

namespace phub::server {

enum class MemoryWork : std::size_t {
  kLanding,  // gradients of own ranks, partial sums and parameters arrive; in place: nothing
  kSums,     // own ranks' gradients, and then the partial sums of children, are added
  kUpdate,   // the home makes the new version
  kCopies,   // payload of rounds with a root, and results for ranks that named memory
  kSending,  // partial sums and parameters leave, once for each lane
  kCount,
};
inline constexpr std::size_t kMemoryWorkCount = static_cast<std::size_t>(MemoryWork::kCount);
inline constexpr std::array<const char*, kMemoryWorkCount> kMemoryWorkNames = {
    "landing", "sums", "update", "copies", "sending"};

struct MemoryBytes {
  std::uint64_t read = 0;
  std::uint64_t written = 0;
};

class MemoryMetrics {
 public:
  // The core loop's counters of all jobs; called before anything is counted.
  void SetCounters(CoreCounters& counters) { counters_ = &counters; }
  void Count(MemoryWork work, MemoryBytes bytes) {
    Numbers& numbers = numbers_[static_cast<std::size_t>(work)];
    numbers.read.Add(bytes.read);
    numbers.written.Add(bytes.written);
    if (counters_ == nullptr) return;
    counters_->Add(CoreCounter::exchange_memory_read_bytes, bytes.read);
    counters_->Add(CoreCounter::exchange_memory_written_bytes, bytes.written);
  }

  // Any thread.
  MemoryBytes Of(MemoryWork work) const {
    const Numbers& numbers = numbers_[static_cast<std::size_t>(work)];
    return {numbers.read.Get(), numbers.written.Get()};
  }

 private:
  struct Numbers {
    SingleWriterNumber read, written;
  };
  std::array<Numbers, kMemoryWorkCount> numbers_;
  CoreCounters* counters_ = nullptr;
};

}  // namespace phub::server
