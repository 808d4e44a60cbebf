// Who calls, and whether he may: in front of every method of the services. What he may is decided
// by the table of server/tenant/authorization.h; that a tenant's calls concern that tenant's jobs
// and sessions only is decided here.
//
// Identities come, in this order of weight, from the control socket (the kernel vouches for root
// and the daemon's own user), from a token in the call's metadata ("authorization: Bearer
// phub_..."), from the connection's certificate. A token is of one call: two tenants may share a
// connection. A connection with a certificate carries no other identity's tokens.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "server/control/control.h"
#include "server/tenant/authorization.h"
#include "server/tenant/directory.h"

namespace phub::server {

// "ipv4:10.0.0.5:40112" and "ipv6:%5B::1%5D:40112" as people write them.
std::string PeerAddress(const grpc::CallbackServerContext& context);

// What became of a call at the door.
struct Admission {
  absl::Status status;
  Caller caller;
  const MethodRule* rule = nullptr;
  ControlCounter refused = ControlCounter::calls_refused_role;  // if it was refused
};

// Any thread.
class Access {
 public:
  // `directory` outlives it. Without identities everybody is let in.
  Access(const Directory* directory, bool identities, std::string trust_domain)
      : directory_(directory), identities_(identities), trust_domain_(std::move(trust_domain)) {}

  bool identities() const { return identities_; }
  const Directory* directory() const { return directory_; }
  Admission Admit(const grpc::CallbackServerContext& context, std::string_view method) const;

  // A connection of the control socket, under the name that gRPC will give its calls' peer.
  void SetLocalPeer(const std::string& peer, const PeerProcess& process);

  // Is told whose calls come from somebody who is known, by peer address. Before the first call.
  void SetOnKnown(std::function<void(const std::string& peer)> on_known) {
    on_known_ = std::move(on_known);
  }

 private:
  absl::StatusOr<Caller> Identify(const grpc::CallbackServerContext& context,
                                  IdentityFault& fault) const;
  absl::StatusOr<Caller> IdentifyCertificate(const grpc::AuthContext& connection,
                                             IdentityFault& fault) const;

  const Directory* const directory_;
  const bool identities_;
  const std::string trust_domain_;
  std::function<void(const std::string& peer)> on_known_;
  mutable std::mutex mutex_;
  std::map<std::string, PeerProcess> local_peers_;  // of the control socket; a few
};

// Whether the caller may concern himself with that tenant, session, snapshot or run; counts a
// refusal.
// Under control's lock.
absl::Status CheckTenant(Control& control, const Caller& caller, std::string_view tenant);
absl::Status CheckSession(Control& control, const Caller& caller, std::string_view session_id);
absl::Status CheckSnapshot(Control& control, const Caller& caller,
                           const v1::ReadSnapshotRequest& request);
// Another rack's daemon may ask about jobs that span racks, in somebody's name.
absl::Status CheckPassedOn(Control& control, const Caller& caller, const v1::RackChoice& rack);
absl::Status CheckLoad(Control& control, const Caller& caller, const v1::LoadStateRequest& first);

template <typename Request>
concept NamesTenant = requires(Request& request) {
  request.set_tenant(std::string());
};
template <typename Request>
concept NamesSession = requires(Request& request) {
  request.set_session_id(std::string());
};

// A tenant's request that names no tenant is about his own; one that names another is refused.
template <NamesTenant Request>
absl::Status Scope(Control& control, const Caller& caller, Request& request) {
  if (caller.open || caller.role != Role::kTenant) return absl::OkStatus();
  if (request.tenant().empty()) request.set_tenant(caller.tenant);
  return CheckTenant(control, caller, request.tenant());
}

}  // namespace phub::server
