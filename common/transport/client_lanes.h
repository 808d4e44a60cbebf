// The client's half of a transport, apart from its data path (transport.h): it decides whether the
// transport can be used for a daemon, and opens lanes. One ClientLanes object per job and
// transport; client_registry.cc lists all transports.
//
// To add a transport, implement ClientLanes in the transport's own folder, add a line to
// client_registry.cc, and add the sources to CMakeLists.txt. The choice of a transport for each
// lane, the engine, logs and errors need no change.
//
// Not on the data path: every call may block and allocate. Threads: one thread at a time opens
// lanes, and one at a time registers memory; both may run concurrently.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/transport/lane_finding.h"
#include "common/transport/transport.h"
#include "common/wire/lane_hello.h"

namespace phub::transport {

class SharedRegions;

// A lane to open, and what the worker knows about the daemon.
struct LaneTarget {
  // The daemon's data port (tcp).
  std::string host;
  std::uint16_t port = 0;
  CoreIndex core{};
  bool tls_lanes = false;            // lanes over tcp use TLS
  bool encryption_required = false;  // the tenant requires encryption

  // The address that the daemon offers for this transport. Empty: it offers only the data port.
  std::string address;
  bool same_host = false;  // the offer says that the daemon runs on the worker's host

  // Memory that the rank and the daemon both map.
  std::shared_ptr<const SharedRegions> regions;
};

struct DialledLane {
  std::unique_ptr<Connection> connection;
  std::string reason;  // details of the choice, for the log; may be empty
};

class ClientLanes {
 public:
  virtual ~ClientLanes() = default;

  // Creates the transport with which the engine serves these lanes; called once. Null: this host
  // does not support such lanes, and Dial returns the reason. An error: the process lacks
  // descriptors. window_bytes: limit of the bytes in flight on one lane.
  virtual absl::StatusOr<std::unique_ptr<Transport>> MakeTransport(std::uint32_t connections_max,
                                                                   std::size_t window_bytes) = 0;

  // OK: a lane to this daemon can use this transport. kUnimplemented: it cannot, with the reason;
  // the caller tries another transport. Any other error ends the attempt to open the lane.
  virtual absl::Status Offer(const LaneTarget& target) const = 0;

  // How many times a lane can be tried, each time over another device of this host; at least 1.
  virtual std::uint32_t attempt_count() const { return 1; }

  // Opens the lane. kUnimplemented: the lane cannot use this transport, with the reason.
  // nonce_used: set as soon as the hello's nonce may have left this process.
  virtual absl::StatusOr<DialledLane> Dial(const LaneTarget& target, const wire::LaneHello& hello,
                                           DurationNs timeout, std::uint32_t attempt,
                                           bool& nonce_used) = 0;

  // Registers memory of the job's keys, which stays until the job ends: gradients are sent from it,
  // or parameters are received into it. The default does nothing.
  enum class MemoryUse : std::uint8_t { kSend, kReceive };
  virtual void Register(std::byte* /*data*/, std::size_t /*bytes*/, MemoryUse /*use*/) {}
  // Whether Register() refers to memory until the job ends.
  virtual bool registers_memory() const { return false; }
};

struct ClientLaneProvider {
  std::string_view name;         // in logs and Job::transports(): "shm"
  std::string_view spoken_name;  // in errors: "shared memory"
  std::uint8_t choice = 0;       // the phub::TransportChoice that requires it; 0: no choice does
  int preference = 0;            // without a choice, the transport with the largest is tried first
  // Unless the program requires this transport, running out of resources or time is not an error,
  // because the next transport is tried. It gets half of the time for opening a lane.
  bool best_effort = false;
  bool shares_memory = false;  // both ends of a lane map memory that can hold keys
  // daemon_host: the host at which the job's first daemon was reached.
  std::unique_ptr<ClientLanes> (*open)(const std::string& daemon_host);
  // Null: the transport works on every host, so there is nothing to diagnose.
  LaneDiagnosis (*diagnose)(const LaneNeeds& needs) = nullptr;
};

// All transports of this build, in the order in which the engine polls them.
std::span<const ClientLaneProvider> ClientLaneProviders();

}  // namespace phub::transport
