#include "server/control/rpc/access.h"

#include <fmt/format.h>

#include "absl/strings/str_replace.h"
#include "common/net/host_port.h"
#include "common/tls/certificate.h"
#include "common/tls/grpc/server_credentials.h"
#include "server/control/admin/tenants.h"

namespace phub::server {
namespace {

constexpr std::string_view kBearer = "Bearer ";

std::string_view View(const grpc::string_ref& text) { return {text.data(), text.size()}; }

ControlCounter CounterOf(IdentityFault fault) {
  switch (fault) {
    case IdentityFault::kExpired: return ControlCounter::calls_refused_expired;
    case IdentityFault::kRevoked: return ControlCounter::calls_refused_revoked;
    case IdentityFault::kCertificate:
    case IdentityFault::kTenantGone:
    case IdentityFault::kConflict: return ControlCounter::calls_refused_certificate;
    case IdentityFault::kMalformed:
    case IdentityFault::kForged:
    case IdentityFault::kNone: return ControlCounter::calls_refused_token;
  }
  return ControlCounter::calls_refused_token;
}

absl::Status Foreign(Control& control, const Caller& caller, std::string_view what) {
  control.counters().Add(ControlCounter::calls_refused_tenant);
  return absl::PermissionDeniedError(
      fmt::format("{} may not access {}: this identity is limited to tenant {}", caller.name, what,
                  caller.tenant));
}

absl::Status NoJobOfOneRack(Control& control, const Caller& caller) {
  control.counters().Add(ControlCounter::calls_refused_role);
  return absl::FailedPreconditionError(fmt::format(
      "{} is another rack's daemon and may save and load jobs that span racks only", caller.name));
}

// From "ipv4:10.0.0.5:40112" or "ipv6:%5B::1%5D:40112".
std::string CommonNotation(const std::string& peer) {
  const bool has_scheme = peer.starts_with("ipv4:") || peer.starts_with("ipv6:");
  return absl::StrReplaceAll(peer.substr(has_scheme ? 5 : 0),
                             {{"%5B", "["}, {"%5D", "]"}, {"%25", "%"}});
}

bool IsScoped(const Caller& caller) { return !caller.open && caller.role == Role::kTenant; }

}  // namespace

std::string Access::PeerAddress(const grpc::CallbackServerContext& context) const {
  const std::string peer = context.peer();
  if (PeerTable::IsUpstream(peer)) return peers_.FindUpstream(peer).value_or(UpstreamPeer()).peer;
  return CommonNotation(peer);
}

Credentials Access::CredentialsOf(const grpc::CallbackServerContext& context) const {
  Credentials credentials;
  const std::string peer = context.peer();
  if (PeerTable::IsUpstream(peer)) {
    auto upstream = peers_.FindUpstream(peer);
    credentials.gone = !upstream.has_value();
    if (upstream.has_value()) {
      credentials.peer = std::move(upstream->peer);
      credentials.certificate = std::move(upstream->certificate);
    }
  } else {
    credentials.process = peers_.FindLocal(peer);
    credentials.peer = credentials.process.has_value() ? "control socket" : CommonNotation(peer);
    const std::shared_ptr<const grpc::AuthContext> connection = context.auth_context();
    if (connection != nullptr && connection->IsPeerAuthenticated()) {
      credentials.certificate = FactsOf(*connection);
    }
  }
  const auto [first, last] = context.client_metadata().equal_range("authorization");
  for (auto it = first; it != last; ++it) credentials.authorization.push_back(View(it->second));
  return credentials;
}

absl::StatusOr<Caller> Access::IdentifyCertificate(const CertificateFacts& certificate,
                                                   IdentityFault& fault) const {
  const absl::StatusOr<std::string> uri = UriOf(certificate, "tenant", trust_domain_);
  if (!uri.ok()) {
    fault = IdentityFault::kCertificate;
    return uri.status();
  }
  return directory_->IdentifyUri(*uri, trust_domain_, fault);
}

absl::StatusOr<Caller> Access::Identify(const Credentials& credentials,
                                        IdentityFault& fault) const {
  Caller caller;
  if (!identities_) {
    caller.open = true;
    caller.name = "anonymous";
    return caller;
  }
  if (credentials.gone) return absl::UnavailableError("the connection has ended");
  if (credentials.process.has_value()) {
    caller.role = Role::kAdmin;
    caller.name = fmt::format("uid {}, pid {}", credentials.process->uid, credentials.process->pid);
    return caller;
  }
  const bool has_certificate = credentials.certificate.has_value();
  if (has_certificate) {
    absl::StatusOr<Caller> named = IdentifyCertificate(*credentials.certificate, fault);
    if (!named.ok()) return named;
    caller = *std::move(named);
  }
  if (credentials.authorization.empty()) return caller;
  const std::string_view authorization = credentials.authorization.front();
  if (credentials.authorization.size() != 1 || !authorization.starts_with(kBearer)) {
    fault = IdentityFault::kMalformed;
    return absl::UnauthenticatedError(
        "the call's \"authorization\" metadata is not exactly one \"Bearer\" token");
  }
  absl::StatusOr<Caller> named =
      directory_->IdentifyToken(authorization.substr(kBearer.size()), WallNow(), fault);
  if (!named.ok() || !has_certificate) return named;
  if (named->role != caller.role || named->tenant != caller.tenant) {
    fault = IdentityFault::kConflict;
    return absl::UnauthenticatedError(
        fmt::format("the call has the token of {}, but its connection has the certificate of {}",
                    named->name, caller.name));
  }
  return named;
}

Admission Access::Admit(const grpc::CallbackServerContext& context, std::string_view method) const {
  return Admit(CredentialsOf(context), method);
}

Admission Access::Admit(const Credentials& credentials, std::string_view method) const {
  Admission admission;
  admission.rule = FindMethodRule(method);
  IdentityFault fault = IdentityFault::kNone;
  absl::StatusOr<Caller> caller = Identify(credentials, fault);
  if (!caller.ok()) {
    admission.status = caller.status();
    admission.refused = CounterOf(fault);
    return admission;
  }
  admission.caller = *std::move(caller);
  admission.caller.peer = credentials.peer;
  admission.status = Authorize(admission.caller, method);
  if (absl::IsUnauthenticated(admission.status)) {
    admission.refused = ControlCounter::calls_refused_anonymous;
  }
  return admission;
}

absl::Status CheckTenant(Control& control, const Caller& caller, std::string_view tenant) {
  if (!IsScoped(caller) || tenant == caller.tenant) return absl::OkStatus();
  return Foreign(control, caller, "another tenant's jobs");
}

std::string PeerOf(const Caller& caller) {
  if (!caller.tenant.empty()) return caller.tenant;
  return net::AddressBlock(caller.peer);
}

absl::Status CheckSession(Control& control, const Caller& caller, std::string_view session_id) {
  if (!IsScoped(caller)) return absl::OkStatus();
  const std::optional<std::string> tenant = control.tenants().TenantOfSession(session_id);
  // Control reports unknown sessions.
  if (!tenant.has_value() || *tenant == caller.tenant) return absl::OkStatus();
  return Foreign(control, caller, "that session");
}

absl::Status CheckPassedOn(Control& control, const Caller& caller, const v1::RackChoice& rack) {
  if (caller.open || caller.role != Role::kServer || rack.passed_on()) return absl::OkStatus();
  return NoJobOfOneRack(control, caller);
}

absl::Status CheckSnapshot(Control& control, const Caller& caller,
                           const v1::ReadSnapshotRequest& request) {
  if (absl::Status status = CheckPassedOn(control, caller, request.rack()); !status.ok()) {
    return status;
  }
  if (IsScoped(caller) && !request.tenant().empty()) {
    if (absl::Status own = CheckTenant(control, caller, request.tenant()); !own.ok()) return own;
  }
  // Another rack's daemon names the tenant for which it asks.
  const std::string& whose = IsScoped(caller) ? caller.tenant : request.tenant();
  if (whose.empty()) return absl::OkStatus();
  const std::optional<std::string> tenant =
      control.tenants().TenantOfSnapshot(request.snapshot_id());
  if (!tenant.has_value() || *tenant == whose) return absl::OkStatus();
  return Foreign(control, caller, "that snapshot");
}

absl::Status CheckLoad(Control& control, const Caller& caller, const v1::LoadStateRequest& first) {
  const bool is_server = !caller.open && caller.role == Role::kServer;
  if (first.incarnation() == 0 && is_server) return NoJobOfOneRack(control, caller);
  if (first.incarnation() == 0) return CheckSession(control, caller, first.session_id());
  if (caller.open || is_server) return absl::OkStatus();
  return Foreign(control, caller, "a run in which it has no session");
}

}  // namespace phub::server
