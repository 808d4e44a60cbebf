// The control port, up to gRPC: what somebody costs who has not shown who he is. gRPC gives every
// connection some 30 KiB at once and 90 KiB with TLS, takes any number of them, and does not say
// which are good for anything. So connections are accepted here, and have three lives:
//
//   silent     accepted; its first message (TLS's ClientHello, or HTTP/2's preface) is not whole.
//              It stays in the kernel: this costs a descriptor. Or whole, and there is no place.
//   stranger   gRPC has it; no call on it has been let in yet.
//   known      one has (Access says so), and gRPC keeps it until it has been idle for a minute.
//
// All are bounded, per address and in total; the first two also in time. When strangers have all
// the places, the oldest of them goes: who has a token or a certificate is known within
// milliseconds.
//
// gRPC owns a connection's descriptor once it has it, and does not tell when it closes it: a socket
// is known by its cookie (SO_COOKIE), which the kernel never gives twice.
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
  bool tls = false;                                 // what a first message looks like
  DurationNs first_message_timeout = 10 * kSecond;  // hosts may be busy
  DurationNs stranger_timeout = 10 * kSecond;
  DurationNs displaced_after = 2 * kSecond;  // so long a stranger keeps its place from others
  std::uint32_t silent_max = 2048;
  std::uint32_t silent_per_address_max = 512;
  std::uint32_t strangers_max = 384;  // 35 MiB
  std::uint32_t strangers_per_address_max = 64;
  std::uint32_t connections_max = 8192;  // of any kind
  std::uint32_t connections_per_address_max = 2048;
};

// With so many descriptors for the whole process: lanes and files need half of them, and of what is
// left nobody, known or not, gets so much that others have none.
ControlPortOptions ScaledTo(ControlPortOptions options, std::uint64_t descriptors);

// What was closed, since the last report.
struct ControlPortRefusals {
  std::uint64_t form = 0;   // the first bytes are not what a client sends
  std::uint64_t crowd = 0;  // there was no room, or a place was needed
  std::uint64_t late = 0;   // the first message, or the first call that was let in, did not come
  bool any() const { return form + crowd + late > 0; }
};

class ControlPort {
 public:
  // Gives gRPC a connection. Report: under no lock. Both on the port's thread.
  using HandOver = std::function<void(int listening, Descriptor connection)>;
  using Report = std::function<void(const ControlPortRefusals&)>;

  // Listens, but accepts nothing before Start.
  static absl::StatusOr<std::unique_ptr<ControlPort>> Create(const ControlPortOptions& options);
  ~ControlPort();  // Stop()
  ControlPort(const ControlPort&) = delete;
  ControlPort& operator=(const ControlPort&) = delete;

  std::uint16_t port() const;
  void Start(HandOver hand_over, Report report);  // once
  void Stop();                                    // accepts no more; idempotent
  // Somebody who may made a call on the connection from there ("10.0.0.5:40112", "[::1]:40112").
  // Any thread.
  void MarkKnown(const std::string& peer);

 private:
  struct Impl;
  explicit ControlPort(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace phub::server
