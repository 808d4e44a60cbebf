// The two ends of a probe: one measures how long small messages take there and back, and how fast
// bytes go either way; the other one answers. Over a lane as jobs' lanes are, after its welcome.
//
// The measuring end leads, with requests of kRequestBytes:
//   echo   the same bytes come back
//   take   that many bytes follow; the same request comes back when all are there
//   give   that many bytes come back
//   end    the answering end closes the lane
//
// A direction is measured by a stream: each request is sent while those before it are under way, so
// that there is always something on the way, and what the kernel has moved is looked at as it goes.
// The first part, that fills windows and shapers' buckets, is left out; of the rest the median of
// eighths counts, so that neither a pause matters nor what a shaper lets through after one.
//
// Blocking, for a thread of the probe's own; returns with an error when the other end is silent,
// gone or sends what it should not, and soon after `stopping` became true.
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
  DurationNs duration = 500 * kMillisecond;  // of all of it, on a way of little latency
  std::uint64_t bytes = std::uint64_t{1} << 30;
  std::uint32_t echoes = 10'000;  // more than there is time for: so both ends keep to the time
};
// What an answering end puts up with.
inline constexpr Limits kLimitsMax = {
    .duration = 10 * kSecond, .bytes = std::uint64_t{4} << 30, .echoes = 10'000};
inline constexpr Limits kLimitsMin = {
    .duration = 10 * kMillisecond, .bytes = std::uint64_t{1} << 20, .echoes = 1};
// Beyond its duration a probe may take so long again, and so much more, on a slow link.
inline constexpr DurationNs kPatience = 3 * kSecond;

// Where a field is 0, the default's. InvalidArgument names what is out of range.
absl::StatusOr<Limits> MakeLimits(std::int64_t duration, std::uint64_t bytes, std::uint32_t echoes);

struct Way {
  double bytes_per_s = 0;       // the median of eighths of the time
  double mean_bytes_per_s = 0;  // of all of it
  DurationNs duration = 0;      // of all of it
  std::uint64_t bytes = 0;      // with the first part
};
struct Result {
  DurationNs round_trip_min = 0;
  DurationNs round_trip = 0;  // the 5th percentile
  DurationNs round_trip_median = 0;
  std::uint32_t echoes = 0;
  Way out;
  Way back;
};

// Aborted: the other end is gone, silent, or sends what is no answer; says what.
absl::StatusOr<Result> Measure(transport::TcpConnection& lane, const Limits& limits,
                               const Clock& clock, const std::atomic<bool>& stopping);
// Until the other end says that it is done; the lane is not closed. The same errors.
absl::Status AnswerProbe(transport::TcpConnection& lane, const Limits& limits, const Clock& clock,
                         const std::atomic<bool>& stopping);

// The messages. Little-endian: magic u32 "PHPB", kind u32, bytes u64, zero up to the end. As long
// as they are because TLS counts records by the bytes that they bring.
inline constexpr std::size_t kRequestBytes = 64;
struct Request {
  enum class Kind : std::uint32_t { kEcho = 1, kTake = 2, kGive = 3, kEnd = 4 };
  Kind kind = Kind::kEcho;
  std::uint64_t bytes = 0;  // of kTake and kGive
  friend bool operator==(const Request&, const Request&) = default;
};
void EncodeRequest(const Request& request, std::span<std::byte, kRequestBytes> bytes);
// Nothing unless the form is right.
std::optional<Request> DecodeRequest(std::span<const std::byte, kRequestBytes> bytes);

}  // namespace phub::server::probe
