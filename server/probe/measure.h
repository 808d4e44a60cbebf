// The two ends of a probe. One end measures the round trip of small messages and the throughput in
// each direction; the other end answers. A probe uses a lane like those of jobs, after its welcome.
//
// The measuring end leads, with requests of kRequestBytes:
//   echo   the peer sends the same bytes back
//   take   that many bytes follow; the peer sends the request back when it has received all of them
//   give   the peer sends that many bytes
//   end    the answering end closes the lane
//
// A direction is measured by a stream of requests. Several requests are in flight, so that the link
// is never idle, and the kernel's byte counts are sampled meanwhile. The first part, which fills
// windows and token buckets of shapers, is ignored. The result is the median over eighths of the
// rest, so that neither a pause nor the burst that a shaper allows after it counts.
//
// Blocking, for a thread of the probe's own. Fails if the peer is silent, gone or breaks the
// protocol, and soon after `stopping` became true.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/transport/tcp/tcp_connection.h"

namespace phub::server::probe {

struct Limits {
  DurationNs duration = 500 * kMillisecond;  // the whole probe, on a path with low latency
  std::uint64_t bytes = std::uint64_t{1} << 30;
  std::uint32_t echoes = 10'000;  // more than the duration allows, so that the time is the limit
};
// The most that an answering end accepts.
inline constexpr Limits kLimitsMax = {
    .duration = 10 * kSecond, .bytes = std::uint64_t{4} << 30, .echoes = 10'000};
inline constexpr Limits kLimitsMin = {
    .duration = 10 * kMillisecond, .bytes = std::uint64_t{1} << 20, .echoes = 1};
// On a slow link a probe may take twice its duration plus this.
inline constexpr DurationNs kPatience = 3 * kSecond;

// A field of 0 gets its default. InvalidArgument names the field that is out of range.
absl::StatusOr<Limits> MakeLimits(std::int64_t duration, std::uint64_t bytes, std::uint32_t echoes);

struct Way {
  double bytes_per_s = 0;       // median over eighths of the measured time
  double mean_bytes_per_s = 0;  // over the measured time
  DurationNs duration = 0;      // the measured time
  std::uint64_t bytes = 0;      // total, including the first part, which is not measured
};
struct Result {
  DurationNs round_trip_min = 0;
  DurationNs round_trip = 0;  // the 5th percentile
  DurationNs round_trip_median = 0;
  std::uint32_t echoes = 0;
  Way out;
  Way back;
};

// Aborted, with the reason: the peer is gone, is silent or breaks the protocol.
absl::StatusOr<Result> Measure(transport::TcpConnection& lane, const Limits& limits,
                               const Clock& clock, const std::atomic<bool>& stopping);
// Answers until the peer sends `end`; does not close the lane. Same errors as Measure.
absl::Status AnswerProbe(transport::TcpConnection& lane, const Limits& limits, const Clock& clock,
                         const std::atomic<bool>& stopping);

// The messages. Little-endian: magic u32 "PHPB", kind u32, bytes u64, zeros up to the end. They
// have this size because TLS limits the number of records relative to their bytes.
inline constexpr std::size_t kRequestBytes = 64;
struct Request {
  enum class Kind : std::uint32_t { kEcho = 1, kTake = 2, kGive = 3, kEnd = 4 };
  Kind kind = Kind::kEcho;
  std::uint64_t bytes = 0;  // the size, for kTake and kGive
  friend bool operator==(const Request&, const Request&) = default;
};
void EncodeRequest(const Request& request, std::span<std::byte, kRequestBytes> bytes);
// nullopt if the message is malformed.
std::optional<Request> DecodeRequest(std::span<const std::byte, kRequestBytes> bytes);

}  // namespace phub::server::probe
