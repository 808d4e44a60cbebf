// What a core loop measures of one job's exchange with other racks: how long its stages take, what
// goes over the lanes to each rack, and for whom sums wait. Written by the loop alone, read by
// control for as long as the shard lives. As in shard_metrics.h nothing allocates, locks or asks
// for the time: times are exact to one run of the loop.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/single_writer_number.h"

namespace phub::server {

// For how long an exchange keeps a stage busy. Chunks go through a stage beside and behind each
// other; what counts is the time in which any of them is in it. What all chunks together have as
// bytes makes one exchange, so a job that pushes each key once an iteration has one exchange each.
class SpanMeter {
 public:
  // A batch of keys came: an exchange is so much more from now on.
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

  // Anybody's to read. Between two of them another exchange may end.
  std::uint64_t exchange_bytes() const { return exchange_bytes_.Get(); }
  std::uint64_t exchanges() const { return exchanges_.Get(); }
  std::uint64_t busy_ns() const { return busy_ns_.Get(); }  // of all exchanges
  std::uint64_t recent_ns() const { return recent_ns_.Get(); }

 private:
  static constexpr std::uint64_t kNewest = 8;  // the newest exchange counts an eighth

  void Mark(TimeNs now) {
    if (under_way_ > 0) sample_ns_ += static_cast<std::uint64_t>(now - marked_at_);
    marked_at_ = now;
  }
  // Of more bytes than one exchange has, if keys are not pushed equally often: the rest is of the
  // next one.
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

  // The loop's own.
  std::uint32_t under_way_ = 0;  // chunks that are in the stage
  TimeNs marked_at_ = 0;
  std::uint64_t sample_ns_ = 0, sample_bytes_ = 0;  // of the exchange that is not whole yet
  SingleWriterNumber exchange_bytes_, exchanges_, busy_ns_, recent_ns_;
};

enum class ExchangeSpan : std::size_t {
  kWhole,   // from the own ranks' sum to the new version
  kSums,    // until the partials of all children in the tree are here, too
  kResult,  // from when the partial goes to the parent to when the new parameters are here
  kCount,
};
inline constexpr std::size_t kExchangeSpanCount = static_cast<std::size_t>(ExchangeSpan::kCount);
inline constexpr std::array<const char*, kExchangeSpanCount> kExchangeSpanNames = {"whole", "sums",
                                                                                   "result"};

struct SpanMeters {
  std::array<SpanMeter, kExchangeSpanCount> spans;
  SpanMeter& operator[](ExchangeSpan span) { return spans[static_cast<std::size_t>(span)]; }
};

// Lanes to one other rack; bytes are payload. Of the own rack, as one whose part of a sum is
// waited for, the first two.
struct LinkMetrics {
  SingleWriterNumber sums_last;        // reductions that its part completed, as the last one
  SingleWriterNumber sums_awaited_ns;  // that those had been waiting for it alone
  SingleWriterNumber partials_sent, partial_bytes_sent, results_sent, result_bytes_sent;
  SingleWriterNumber partials_received, partial_bytes_received, results_received;
  SingleWriterNumber result_bytes_received;
  SingleWriterNumber result_wait_ns;   // of results_received, since their partials were ready to go
  SingleWriterNumber messages_taken;   // by the system, whole
  SingleWriterNumber message_wait_ns;  // of these, since they were ready to go
};

struct ExchangeMetrics {
  SingleWriterNumber exchange_bytes;  // partials of all chunks, whatever the tree
  std::unique_ptr<SpanMeters[]> trees;   // [0]: all trees together, which go on beside each other;
                                         // [1 + tree]
  std::unique_ptr<LinkMetrics[]> links;  // [rack]
};

}  // namespace phub::server
