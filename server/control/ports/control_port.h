// The control port accepts connections before gRPC sees them and limits what unauthenticated
// clients cost. gRPC allocates some 30 KiB per connection at once (90 KiB with TLS), accepts any
// number of them, and does not report which ones are in use. A connection has one of three states
// here:
//
//   silent     accepted. Its first message (TLS's ClientHello, or HTTP/2's preface) is incomplete,
//              or there is no place among the strangers. The data stays in the kernel, so the
//              connection costs only a descriptor.
//   stranger   given to gRPC. No call of an identified caller has arrived on it yet.
//   known      Access has identified the caller of a call on it. gRPC keeps it until it is idle
//              for a minute.
//
// All three are limited per address and in total, the first two also in time. When strangers have
// all places, the oldest one is closed: a client with a token or certificate becomes known within
// milliseconds.
//
// gRPC owns the descriptor of a connection that it was given, and does not report when it closes
// it. Sockets are therefore identified by their cookie (SO_COOKIE), which the kernel never reuses.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/descriptor.h"

namespace phub::server {

struct ControlPortOptions {
  std::string host = "127.0.0.1";                   // name or address, without brackets
  std::uint16_t port = 0;                           // 0: the kernel chooses
  bool tls = false;                                 // whether the first message is TLS or HTTP/2
  DurationNs first_message_timeout = 10 * kSecond;  // long enough for busy hosts
  DurationNs stranger_timeout = 10 * kSecond;
  DurationNs displaced_after = 2 * kSecond;  // a stranger keeps its place for at least this long
  std::uint32_t silent_max = 2048;
  std::uint32_t silent_per_address_max = 512;
  std::uint32_t strangers_max = 384;  // 35 MiB
  std::uint32_t strangers_per_address_max = 64;
  std::uint32_t connections_max = 8192;  // in any state
  std::uint32_t connections_per_address_max = 2048;
};

// Lowers the limits to fit the process's limit of descriptors. Lanes and files need half of them.
// No single address, known or not, can use up the rest.
ControlPortOptions ScaledTo(ControlPortOptions options, std::uint64_t descriptors);

// Connections that were closed since the last report.
struct ControlPortRefusals {
  std::uint64_t form = 0;   // the first bytes are neither TLS nor HTTP/2
  std::uint64_t crowd = 0;  // a limit was reached, or the place went to a newer stranger
  std::uint64_t late = 0;  // no complete first message, or no call of an identified caller, in time
  bool any() const { return form + crowd + late > 0; }
};

class ControlPort {
 public:
  // HandOver gives gRPC a connection. Report is called without a lock. Both run on the port's
  // thread.
  using HandOver = std::function<void(int listening, Descriptor connection)>;
  using Report = std::function<void(const ControlPortRefusals&)>;

  // Listens, but accepts nothing before Start.
  static absl::StatusOr<std::unique_ptr<ControlPort>> Create(const ControlPortOptions& options);
  ~ControlPort();  // Stop()
  ControlPort(const ControlPort&) = delete;
  ControlPort& operator=(const ControlPort&) = delete;

  std::uint16_t port() const;
  void Start(HandOver hand_over, Report report);  // once
  void Stop();                                    // stops accepting; idempotent
  // A call of an identified caller has arrived on the connection from this peer ("10.0.0.5:40112",
  // "[::1]:40112"). Any thread.
  void MarkKnown(const std::string& peer);

 private:
  struct Impl;
  explicit ControlPort(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace phub::server
