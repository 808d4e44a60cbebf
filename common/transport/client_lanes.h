// The client's half of a transport, apart from its data path (transport.h): whether lanes to a
// daemon may travel this way, and how they are opened. One ClientLanes object per job and
// transport; client_registry.cc lists all transports.
//
// To add a transport, implement ClientLanes in the transport's own folder and add its line to
// client_registry.cc (and its sources to CMakeLists.txt). The choice of a transport for each lane,
// the engine, logs and errors follow from that line.
//
// Cold: every call may block and allocate. Threads: one thread opens lanes at a time, and one adds
// memory at a time; the two may run at once.
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

// One lane that a worker wants, and what the worker knows of the daemon at the other end.
struct LaneTarget {
  // The daemon's data port (tcp).
  std::string host;
  std::uint16_t port = 0;
  CoreIndex core{};
  bool tls_lanes = false;            // lanes over tcp use TLS
  bool encryption_required = false;  // by the tenant

  // What the daemon offers for this transport. Empty: nothing beyond the data port.
  std::string address;
  bool same_host = false;  // the offer says that the daemon runs on the worker's host

  // Memory that the rank and the daemon both map.
  std::shared_ptr<const SharedRegions> regions;
};

struct DialledLane {
  std::unique_ptr<Connection> connection;
  std::string reason;  // why the lane travels this way, for the log; may be empty
};

class ClientLanes {
 public:
  virtual ~ClientLanes() = default;

  // What the engine serves these lanes with; called once. Null: this host cannot have such lanes,
  // and Dial says why. window_bytes: what may be on its way on one lane.
  virtual std::unique_ptr<Transport> MakeTransport(std::uint32_t connections_max,
                                                   std::size_t window_bytes) = 0;

  // OK: a lane to this daemon may travel this way. kUnimplemented: it cannot, and why; another
  // transport may do. Any other error ends the attempt to open the lane.
  virtual absl::Status Offer(const LaneTarget& target) const = 0;

  // A lane can be tried so many times, each by another device of this host; at least 1.
  virtual std::uint32_t attempt_count() const { return 1; }

  // Opens the lane. kUnimplemented: it cannot travel this way, and why. nonce_used: set once the
  // hello's nonce may have left this process.
  virtual absl::StatusOr<DialledLane> Dial(const LaneTarget& target, const wire::LaneHello& hello,
                                           DurationNs timeout, std::uint32_t attempt,
                                           bool& nonce_used) = 0;

  // Memory of the job's keys, which stays until the job ends: gradients are sent from it, or
  // parameters are received in it. The default: the transport needs to know nothing.
  enum class MemoryUse : std::uint8_t { kSend, kReceive };
  virtual void Register(std::byte* /*data*/, std::size_t /*bytes*/, MemoryUse /*use*/) {}
};

struct ClientLaneProvider {
  std::string_view name;         // in logs and Job::transports(): "shm"
  std::string_view spoken_name;  // in errors: "shared memory"
  std::uint8_t choice = 0;       // of phub::TransportChoice, which insists on it; 0: no such value
  int preference = 0;            // without a choice, the transport with the largest is tried first
  // A lane needs this transport only if the program insists on it: missing room and missing time
  // are no errors while there is another way, and it gets half of a lane's time.
  bool best_effort = false;
  bool shares_memory = false;  // both ends of a lane map memory, in which keys may live
  // daemon_host: where the job's first daemon was reached.
  std::unique_ptr<ClientLanes> (*open)(const std::string& daemon_host);
  // Null: nothing of this host can stand in the way.
  LaneDiagnosis (*diagnose)(const LaneNeeds& needs) = nullptr;
};

// All transports of this build, in the order in which an engine polls them.
std::span<const ClientLaneProvider> ClientLaneProviders();

}  // namespace phub::transport
