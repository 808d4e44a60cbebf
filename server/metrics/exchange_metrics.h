// A core loop's measurements of one job's exchange with other racks: how long its stages take, the
// traffic on the lanes to each rack, the racks that sums wait for, and the memory that is read and
// written. Written only by the loop,
// read by control as long as the shard exists. Nothing here allocates, locks or reads the clock:
// times are exact to one run of the loop (see shard_metrics.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/single_writer_number.h"
#include "server/metrics/memory_metrics.h"

namespace phub::server {

// The time for which an exchange keeps a stage busy. Chunks overlap in a stage; the time counts
// while any chunk is in it. One exchange is the bytes of all chunks together, so a job that pushes
// each key once per iteration has one exchange per iteration.
class SpanMeter {
 public:
  // A batch of keys was added: from now on an exchange has that many bytes more.
  void Extend(std::uint64_t bytes) { exchange_bytes_.Add(bytes); }
  void Begin(TimeNs now) {
    Mark(now);
    ++under_way_;
  }
  void End(TimeNs now, std::uint64_t bytes) {
    PHUB_CHECK(under_way_ > 0);
    Mark(now);
    --under_way_;
    sample_bytes_ += bytes;
    if (sample_bytes_ >= exchange_bytes_.Get()) Close();
  }

  // Any thread. An exchange may end between two of these calls.
  std::uint64_t exchange_bytes() const { return exchange_bytes_.Get(); }
  std::uint64_t exchanges() const { return exchanges_.Get(); }
  std::uint64_t busy_ns() const { return busy_ns_.Get(); }  // total over all exchanges
  std::uint64_t recent_ns() const { return recent_ns_.Get(); }

 private:
  static constexpr std::uint64_t kNewest = 8;  // the newest exchange has a weight of 1/8

  void Mark(TimeNs now) {
    if (under_way_ > 0) sample_ns_ += static_cast<std::uint64_t>(now - marked_at_);
    marked_at_ = now;
  }
  // The sample has more bytes than one exchange if keys are not pushed equally often; the rest
  // counts for the next exchange.
  void Close() {
    const std::uint64_t bytes = exchange_bytes_.Get();
    std::uint64_t ns = sample_ns_;
    if (sample_bytes_ > bytes) {
      ns = static_cast<std::uint64_t>(static_cast<double>(sample_ns_) * static_cast<double>(bytes) /
                                      static_cast<double>(sample_bytes_));
    }
    sample_ns_ -= ns;
    sample_bytes_ -= bytes;
    const std::uint64_t before = recent_ns_.Get();
    if (exchanges_.Get() == 0) {
      recent_ns_.Add(ns);
    } else if (ns >= before) {
      recent_ns_.Add((ns - before) / kNewest);
    } else {
      recent_ns_.Subtract((before - ns) / kNewest);
    }
    busy_ns_.Add(ns);
    exchanges_.Add();
  }

  // Only for the loop's thread.
  std::uint32_t under_way_ = 0;  // chunks that are in the stage
  TimeNs marked_at_ = 0;
  std::uint64_t sample_ns_ = 0, sample_bytes_ = 0;  // the exchange that is not complete yet
  SingleWriterNumber exchange_bytes_, exchanges_, busy_ns_, recent_ns_;
};

enum class ExchangeSpan : std::size_t {
  kWhole,   // from the own ranks' sum to the new version
  kSums,    // until the partial sums of all children in the tree have arrived, too
  kResult,  // from sending the partial sum to the parent until the new parameters arrive
  kCount,
};
inline constexpr std::size_t kExchangeSpanCount = static_cast<std::size_t>(ExchangeSpan::kCount);
inline constexpr std::array<const char*, kExchangeSpanCount> kExchangeSpanNames = {"whole", "sums",
                                                                                   "result"};

struct SpanMeters {
  std::array<SpanMeter, kExchangeSpanCount> spans;
  SpanMeter& operator[](ExchangeSpan span) { return spans[static_cast<std::size_t>(span)]; }
};

// Lanes to one other rack; bytes are payload. For the own rack only the first two are used, which
// tell how long sums wait for its part.
struct LinkMetrics {
  SingleWriterNumber sums_last;        // reductions for which its part was the last to arrive
  SingleWriterNumber sums_awaited_ns;  // time that those waited only for it
  SingleWriterNumber partials_sent, partial_bytes_sent, results_sent, result_bytes_sent;
  SingleWriterNumber partials_received, partial_bytes_received, results_received;
  SingleWriterNumber result_bytes_received;
  SingleWriterNumber result_wait_ns;   // results_received: time since their partials were ready
  SingleWriterNumber messages_taken;   // messages that the kernel accepted completely
  SingleWriterNumber message_wait_ns;  // messages_taken: time since they were ready
};

struct ExchangeMetrics {
  SingleWriterNumber exchange_bytes;     // partial sums of all chunks, over all trees
  std::unique_ptr<SpanMeters[]> trees;   // [0]: all trees together, which overlap; [1 + tree]
  std::unique_ptr<LinkMetrics[]> links;  // [rack]
  MemoryMetrics memory;
};

}  // namespace phub::server
