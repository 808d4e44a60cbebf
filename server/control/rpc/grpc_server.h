// The control plane on gRPC: phub.v1.Session, phub.v1.Admin and phub.v1.Tenants over Control, plus
// the standard health service (names "" and "phub.v1.Session") and, where nobody needs an identity,
// reflection. Callback API: no thread waits.
//
//   Control control(clock, random, cores, options);
//   ControlThread thread(control, clock);            // its doorbell goes to the core loops
//   ControlLaneGate gate(thread);                    // server/transports/tcp/tcp_lane_gate.h, to
//   the listener control.SetLaneEndpoint(core, "", listener_port); thread.Start(); auto server =
//   GrpcServer::Create(thread, {.host = "127.0.0.1", .port = 7700});
//   ...
//   thread.Run([](Control& c) { c.Drain(10 * kSecond); });  server.value()->SetServing(false);
//   until thread.Run([](Control& c) { return c.Drained(); });
//   server.value()->Shutdown(); thread.Stop(); then stop the core loops; then destroy Control.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/descriptor.h"
#include "common/base/work_thread.h"
#include "server/control/ports/control_thread.h"
#include "server/tenant/certificate.h"
#include "server/tenant/directory.h"
#include "server/tenant/tenant_admin.h"

namespace phub::server {

class Prober;
class RackRelay;

struct GrpcServerOptions {
  std::string host = "127.0.0.1";  // an address, without brackets, or a name
  std::uint16_t port = 0;          // 0: any free one, see port()
  TlsFiles tls = {};               // empty: without TLS. Read again every few seconds.
  // Who is who; null: nobody has an identity. Outlives the server.
  const Directory* directory = nullptr;
  bool identities = false;  // calls without one are refused
  std::string trust_domain = {};
  // Control state, and the thread that works on it; null: there is none. Outlive the server.
  TenantAdmin* admin = nullptr;
  WorkThread* state_thread = nullptr;
  // Null: there are no other racks. Both are stopped first, and outlive the server.
  Prober* prober = nullptr;
  RackRelay* relay = nullptr;
};

// Owner's thread for everything; Shutdown before thread.Stop(), and before destruction of either.
class GrpcServer {
 public:
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Create(ControlThread& thread,
                                                            const GrpcServerOptions& options);
  ~GrpcServer();  // Shutdown()
  GrpcServer(const GrpcServer&) = delete;
  GrpcServer& operator=(const GrpcServer&) = delete;

  std::uint16_t port() const;
  // Serves one connection of the control socket, from a process that may do everything. Takes the
  // descriptor of a non-blocking stream socket. Any thread.
  void AddLocalConnection(Descriptor connection, const PeerProcess& process);
  // What the health service says: SERVING, or NOT_SERVING once draining.
  void SetServing(bool serving);
  // Takes no new calls and cancels what still runs after `grace`. Idempotent.
  void Shutdown(DurationNs grace = kSecond);

 private:
  struct Impl;
  explicit GrpcServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace phub::server
