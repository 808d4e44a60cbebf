// Identifies the caller and checks authorization before every method of the services. The table in
// server/tenant/authorization.h says which roles may call a method. This file checks that a
// tenant's calls concern only that tenant's jobs and sessions.
//
// A caller's identity comes from one of these, in order of precedence:
//
//   1. the control socket: the kernel confirms that the peer is root or the daemon's own user
//   2. a token in the call's metadata ("authorization: Bearer phub_...")
//   3. the connection's certificate
//
// Address and certificate of a connection come from gRPC, or, for a connection of the front, from
// the front (peer_table.h). The front asks Admit() itself before it opens a connection to gRPC.
//
// A token belongs to one call, so two tenants may share a connection. A connection with a
// certificate only accepts tokens of the same identity.
#pragma once

#include <grpcpp/grpcpp.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "server/control/control.h"
#include "server/control/rpc/peer_table.h"
#include "server/control/rpc/received.h"
#include "server/tenant/authorization.h"
#include "server/tenant/directory.h"

namespace phub::server {

// What a caller presents.
struct Credentials {
  std::optional<PeerProcess> process;  // the process at the other end of the control socket
  std::optional<CertificateFacts> certificate;
  std::vector<std::string_view> authorization;
  std::string peer;  // "10.0.0.5:40112", "[::1]:40112"
  // The connection has ended meanwhile.
  bool gone = false;
};

// The result of identification and authorization of a call.
struct Admission {
  absl::Status status;
  Caller caller;
  const MethodRule* rule = nullptr;
  // The counter to increment if the call is refused.
  ControlCounter refused = ControlCounter::calls_refused_role;

  // A call may also be refused because of its request.
  void Add(const ParseResult& parsed) {
    if (!status.ok() || parsed.status.ok()) return;
    status = parsed.status;
    refused = parsed.refused;
  }
};

// Any thread.
class Access {
 public:
  // `directory` must outlive it. Without identities every call is allowed.
  Access(const Directory* directory, bool identities, std::string trust_domain)
      : directory_(directory), identities_(identities), trust_domain_(std::move(trust_domain)) {}

  bool identities() const { return identities_; }
  const Directory* directory() const { return directory_; }
  Admission Admit(const grpc::CallbackServerContext& context, std::string_view method) const;
  Admission Admit(const Credentials& credentials, std::string_view method) const;
  // The caller's address in common notation.
  std::string PeerAddress(const grpc::CallbackServerContext& context) const;

  PeerTable& peers() { return peers_; }

 private:
  Credentials CredentialsOf(const grpc::CallbackServerContext& context) const;
  absl::StatusOr<Caller> Identify(const Credentials& credentials, IdentityFault& fault) const;
  absl::StatusOr<Caller> IdentifyCertificate(const CertificateFacts& certificate,
                                             IdentityFault& fault) const;

  const Directory* const directory_;
  const bool identities_;
  const std::string trust_domain_;
  PeerTable peers_;
};

// Whose share of log lines pays for the call: the caller's tenant, or the address block of a
// caller without one. See EventLog.
std::string PeerOf(const Caller& caller);

// Check that the caller may access that tenant, session, snapshot or run; count a refusal. Under
// control's lock.
absl::Status CheckTenant(Control& control, const Caller& caller, std::string_view tenant);
absl::Status CheckSession(Control& control, const Caller& caller, std::string_view session_id);
absl::Status CheckSnapshot(Control& control, const Caller& caller,
                           const v1::ReadSnapshotRequest& request);
// Another rack's daemon may access jobs that span racks on behalf of a caller.
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

// Fills in the caller's own tenant if a tenant's request names none; refuses requests that name
// another tenant.
template <NamesTenant Request>
absl::Status Scope(Control& control, const Caller& caller, Request& request) {
  if (caller.open || caller.role != Role::kTenant) return absl::OkStatus();
  if (request.tenant().empty()) request.set_tenant(caller.tenant);
  return CheckTenant(control, caller, request.tenant());
}

}  // namespace phub::server
