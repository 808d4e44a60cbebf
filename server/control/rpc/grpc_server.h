// The control plane on gRPC: phub.v1.Session, phub.v1.Admin and phub.v1.Tenants over Control, plus
// the standard health service (names "" and "phub.v1.Session") and, if calls need no identity,
// reflection. Uses the callback API: no thread waits.
//
//   Control control(clock, random, cores, options);
//   ControlThread thread(control, clock);  // its doorbell goes to the core loops
//   ControlLaneGate gate(thread);          // server/transports/tcp, to the listener
//   control.SetLaneEndpoint(core, "", listener_port);
//   thread.Start();
//   auto server = GrpcServer::Create(thread, {.host = "127.0.0.1", .port = 7700});
//   ...
//   thread.Run([](Control& c) { c.Drain(10 * kSecond); });
//   server.value()->SetServing(false);
//   // wait until thread.Run([](Control& c) { return c.Drained(); })
//   server.value()->Shutdown();
//   thread.Stop();
//   // stop the core loops, then destroy Control
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/descriptor.h"
#include "common/base/work_thread.h"
#include "common/net/address.h"
#include "common/tls/certificate.h"
#include "server/control/ports/control_thread.h"
#include "server/tenant/directory.h"
#include "server/tenant/tenant_admin.h"

namespace phub::server {

class Prober;
class RackRelay;

struct GrpcServerOptions {
  std::string host = "127.0.0.1";  // an address, without brackets, or a name
  std::uint16_t port = 0;          // 0: any free port, see port()
  // Of each tenant: requests that wait for their turn, and answers that are not read yet.
  std::uint64_t request_memory = 256 << 20;
  TlsFiles tls = {};  // empty: no TLS; reloaded every few seconds
  // phubd's executable, which runs the front of the port in a process of its own (server/front).
  // Empty: gRPC serves the port itself. It protects itself against nobody (front_limits.h has what
  // the front limits), so the host must be a loopback address.
  std::string front_program = {};
  // Maps credentials to identities; null: no identities. Must outlive the server.
  const Directory* directory = nullptr;
  bool identities = false;  // refuse calls without an identity
  std::string trust_domain = {};
  // The control store's administration and its thread; null: there is no control store. Both must
  // outlive the server.
  TenantAdmin* admin = nullptr;
  WorkThread* state_thread = nullptr;
  // Null: there are no other racks. Both must be stopped before the server and must outlive it.
  Prober* prober = nullptr;
  RackRelay* relay = nullptr;
};

// All functions are called by the owner's thread, unless noted otherwise. Call Shutdown before
// thread.Stop() and before either object is destroyed.
class GrpcServer {
 public:
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Create(ControlThread& thread,
                                                            const GrpcServerOptions& options);
  ~GrpcServer();  // Shutdown()
  GrpcServer(const GrpcServer&) = delete;
  GrpcServer& operator=(const GrpcServer&) = delete;

  std::uint16_t port() const;
  // The bound addresses of the control port.
  const std::vector<net::SocketAddress>& addresses() const;
  // Serves one connection of the control socket, from a process that may do everything. Takes
  // ownership of the descriptor, a non-blocking stream socket. Any thread.
  void AddLocalConnection(Descriptor connection, const PeerProcess& process);
  // Sets the state of the health service: SERVING, or NOT_SERVING once draining.
  void SetServing(bool serving);
  // Accepts no new calls and cancels running calls after `grace`. Idempotent.
  void Shutdown(DurationNs grace = kSecond);

 private:
  struct Impl;
  explicit GrpcServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace phub::server
