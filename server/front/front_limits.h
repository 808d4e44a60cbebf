// The front's limits, in one place, because memory is bounded by their product.
//
//                      connections         bytes each                    together
//   silent             2048                a descriptor, 300 bytes       0.6 MiB
//   strangers          256                 TLS 40 KiB, HTTP/2 and data   40 MiB, if all of them
//                                          at most 128 KiB               attack in the same way
//   known              6144, 2048 for      TLS 40 KiB, HTTP/2 4 MiB, a   what waits for slow
//                      one address block   window of data for each call  readers: kHeldBytesMax
//
// The connection that holds the most is closed while all together hold more than kHeldBytesMax.
//
// The window of a connection with known calls is the sum of its calls' windows. With less, calls
// whose data nobody reads would use it up, and every other call of the connection would wait.
#pragma once

#include "common/base/clock.h"
#include "server/front/h2_session.h"

namespace phub::server {

// Headers of one call; a token has 86 bytes.
inline constexpr std::size_t kHeaderListBytesMax = 8 * 1024;
// Headers and trailers from phubd, which contain messages of errors.
inline constexpr std::size_t kAnswerHeaderBytesMax = 64 * 1024;
// Concurrent calls on one connection: a worker's barriers (64), and a reserve.
inline constexpr std::uint32_t kCallsMax = 128;
// Headers of calls that wait until phubd has judged the first one.
inline constexpr std::size_t kWaitingHeaderBytesMax = 16 * 1024;
// Calls that phubd may refuse before it lets one pass.
inline constexpr int kRefusalsMax = 64;
inline constexpr std::uint32_t kStrangerWindow = 65'535;    // HTTP/2's initial window
inline constexpr std::uint32_t kKnownWindow = 256 << 10;    // for each call
inline constexpr std::uint32_t kUpstreamWindow = 64 << 10;  // likewise; phubd is on this host
inline constexpr H2Session::Limits kStrangerLimits = {.header_list_bytes_max = kHeaderListBytesMax,
                                                      .memory_bytes_max = 128 * 1024,
                                                      .streams_max = kCallsMax,
                                                      .stream_window = kStrangerWindow,
                                                      .connection_window = kStrangerWindow};
inline constexpr H2Session::Limits kKnownLimits = {.header_list_bytes_max = kHeaderListBytesMax,
                                                   .memory_bytes_max = 2 << 20,
                                                   .streams_max = kCallsMax,
                                                   .stream_window = kKnownWindow,
                                                   .connection_window = kCallsMax * kKnownWindow};
inline constexpr H2Session::Limits kUpstreamLimits = {
    .header_list_bytes_max = kAnswerHeaderBytesMax,
    .memory_bytes_max = 2 << 20,
    .streams_max = kCallsMax,
    .stream_window = kUpstreamWindow,
    .connection_window = kCallsMax * kUpstreamWindow};
// Frames that cost their sender nothing (pings, settings, resets, empty data, window updates
// without data): a burst, then so many per second.
inline constexpr double kCheapFrameBurst = 1000;
inline constexpr double kCheapFramesPerSecond = 200;
// The first message of a request must arrive within kRequestTimeMax, without a longer pause. After
// many that do not, the connection is closed. Until then each counts like memory: gRPC has some.
inline constexpr DurationNs kRequestPauseMax = 20 * kSecond;
inline constexpr DurationNs kRequestTimeMax = 120 * kSecond;
inline constexpr int kUnfinishedEndedMax = 32;
inline constexpr std::size_t kUnfinishedCallBytes = 16 << 10;
// All connections together, beyond a share that each connection has anyway.
inline constexpr std::size_t kHeldBytesMax = 32 << 20;
inline constexpr std::size_t kShareBytes = 64 << 10;
// A client must send its first message, and make a call that passes, within this time.
inline constexpr DurationNs kFirstMessageTimeout = 10 * kSecond;
inline constexpr DurationNs kStrangerTimeout = 10 * kSecond;
// What is left to send is dropped after this time once a connection has ended.
inline constexpr DurationNs kFlushTimeout = 2 * kSecond;

// phubd kills a front that says nothing for this long, and the front reports not serving if phubd
// says nothing for this long.
inline constexpr DurationNs kReportEvery = 500 * kMillisecond;
inline constexpr DurationNs kFrontSilenceMax = 10 * kSecond;
inline constexpr DurationNs kFrontOutageMin = 3 * kReportEvery;  // shorter silence is no outage
inline constexpr DurationNs kServerSilenceMax = 3 * kSecond;
// The front's own memory: phubd restarts a front that has more. A known connection adds its share.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr std::uint64_t kFrontBytesMax = 4ull << 30;  // sanitizers keep freed memory
#else
inline constexpr std::uint64_t kFrontBytesMax = 160 << 20;
#endif
inline constexpr std::uint64_t kFrontBytesPerKnown = 128 << 10;

}  // namespace phub::server
