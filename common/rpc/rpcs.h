// The list of all RPCs of the control plane. The client's channel, the test fakes, the server's
// services and authorization (deny by default) are generated from it.
//
// To add an RPC, add its line to proto/phub/v1, its entry here and its handler to
// server/control/rpc. An entry without a handler does not compile. A test compares the list with
// the .proto files.
#pragma once

#include "common/rpc/rpc.h"

namespace phub::v1 {
class AddKeysRequest;
class AddKeysResponse;
class ApplyTopologyRequest;
class BarrierRequest;
class BarrierResponse;
class BeginSnapshotRequest;
class ClusterInfo;
class CommitRequest;
class CommitResponse;
class CreateTenantRequest;
class DeclareViewRequest;
class DeleteTenantRequest;
class DeleteTenantResponse;
class DrainServerRequest;
class DumpJobRequest;
class EvictJobRequest;
class GetClusterRequest;
class GetJobRequest;
class GetJobVersionsRequest;
class GetLoadedStateRequest;
class GetRackRequest;
class GetRacksRequest;
class GetServerRequest;
class GetStatsRequest;
class GetStatsResponse;
class GetTenantRequest;
class GetVersionsRequest;
class GetVersionsResponse;
class Heartbeat;
class Identity;
class IssueTokenRequest;
class IssuedToken;
class JobDump;
class JobInfo;
class JoinRequest;
class JoinResponse;
class LeaveRequest;
class LeaveResponse;
class ListAuditRequest;
class ListAuditResponse;
class ListJobsRequest;
class ListJobsResponse;
class ListStallsRequest;
class ListStallsResponse;
class ListTenantsRequest;
class ListTenantsResponse;
class ListTokensRequest;
class ListTokensResponse;
class LoadStateRequest;
class LoadStateResponse;
class LoadedState;
class OpenLanesRequest;
class OpenLanesResponse;
class PeerEnvelope;
class PeerProbeRequest;
class PeerReceipt;
class ProbeGrant;
class ProbePairRequest;
class ProbePairResponse;
class Rack;
class RacksInfo;
class ReadSnapshotRequest;
class RemoveKeysRequest;
class RemoveKeysResponse;
class ReportDumpRequest;
class ReportDumpResponse;
class ReportSavedStateRequest;
class ReportSavedStateResponse;
class RevokeTokenRequest;
class ServerInfo;
class SessionEvent;
class SetQuotaRequest;
class Snapshot;
class SnapshotPart;
class SuspendTenantRequest;
class TenantInfo;
class TokenInfo;
class TraceJobRequest;
class TraceJobResponse;
class UndrainServerRequest;
class View;
class WhoAmIRequest;
}  // namespace phub::v1

namespace phub::rpc {

// ---- phub.v1.Session: only tenants train; operators and admins cannot join a job ----------------
struct GetRack : Rpc<"/phub.v1.Session/GetRack", v1::GetRackRequest, v1::Rack, kEveryone> {};
struct Join : Rpc<"/phub.v1.Session/Join", v1::JoinRequest, v1::JoinResponse, kTenant> {};
struct Commit : Rpc<"/phub.v1.Session/Commit", v1::CommitRequest, v1::CommitResponse, kTenant> {};
struct AddKeys : Rpc<"/phub.v1.Session/AddKeys", v1::AddKeysRequest, v1::AddKeysResponse, kTenant> {
};
struct RemoveKeys
    : Rpc<"/phub.v1.Session/RemoveKeys", v1::RemoveKeysRequest, v1::RemoveKeysResponse, kTenant> {};
struct OpenLanes
    : Rpc<"/phub.v1.Session/OpenLanes", v1::OpenLanesRequest, v1::OpenLanesResponse, kTenant> {};
struct Barrier : Rpc<"/phub.v1.Session/Barrier", v1::BarrierRequest, v1::BarrierResponse, kTenant> {
};
struct Attend : Rpc<"/phub.v1.Session/Attend", v1::Heartbeat, v1::SessionEvent, kTenant, Audit::kNo,
                    Kind::kBothStreams> {};
struct Leave : Rpc<"/phub.v1.Session/Leave", v1::LeaveRequest, v1::LeaveResponse, kTenant> {};
struct GetVersions : Rpc<"/phub.v1.Session/GetVersions", v1::GetVersionsRequest,
                         v1::GetVersionsResponse, kTenant> {};

// Daemons of other racks forward LoadState of jobs that span racks.
struct LoadState : Rpc<"/phub.v1.Session/LoadState", v1::LoadStateRequest, v1::LoadStateResponse,
                       kTenant | kServer, Audit::kNo, Kind::kClientStream> {};
struct GetLoadedState
    : Rpc<"/phub.v1.Session/GetLoadedState", v1::GetLoadedStateRequest, v1::LoadedState, kTenant> {
};
struct ReportDump
    : Rpc<"/phub.v1.Session/ReportDump", v1::ReportDumpRequest, v1::ReportDumpResponse, kTenant> {};

// The unary and client-streaming RPCs of this service: one response each.
using SessionCalls = List<GetRack, Join, Commit, AddKeys, RemoveKeys, OpenLanes, Barrier, Leave,
                          GetVersions, LoadState, GetLoadedState, ReportDump>;
using Session = Joined<SessionCalls, List<Attend>>::Type;

// ---- phub.v1.Peer: daemons of other racks ------------------------------------------------------
struct Exchange : Rpc<"/phub.v1.Peer/Exchange", v1::PeerEnvelope, v1::PeerReceipt, kServer> {};
using Peer = List<Exchange>;

// ---- phub.v1.Probe: a probe takes bandwidth from jobs while it runs -----------------------------
struct GetRacks
    : Rpc<"/phub.v1.Probe/GetRacks", v1::GetRacksRequest, v1::RacksInfo, kOperators | kServer> {};
struct ApplyTopology : Rpc<"/phub.v1.Probe/ApplyTopology", v1::ApplyTopologyRequest, v1::RacksInfo,
                           kOperators | kServer, Audit::kYes> {};
struct ProbePair
    : Rpc<"/phub.v1.Probe/ProbePair", v1::ProbePairRequest, v1::ProbePairResponse, kOperators> {};
struct RelayProbe
    : Rpc<"/phub.v1.Probe/RelayProbe", v1::PeerProbeRequest, v1::ProbePairResponse, kServer> {};
struct GrantProbe
    : Rpc<"/phub.v1.Probe/GrantProbe", v1::PeerProbeRequest, v1::ProbeGrant, kServer> {};
using Probe = List<GetRacks, ApplyTopology, ProbePair, RelayProbe, GrantProbe>;

// ---- phub.v1.Admin ------------------------------------------------------------------------------
struct GetServer
    : Rpc<"/phub.v1.Admin/GetServer", v1::GetServerRequest, v1::ServerInfo, kEveryone> {};
struct ListJobs
    : Rpc<"/phub.v1.Admin/ListJobs", v1::ListJobsRequest, v1::ListJobsResponse, kReaders> {};
struct GetJob : Rpc<"/phub.v1.Admin/GetJob", v1::GetJobRequest, v1::JobInfo, kReaders> {};
struct ListStalls
    : Rpc<"/phub.v1.Admin/ListStalls", v1::ListStallsRequest, v1::ListStallsResponse, kReaders> {};
struct DumpJob : Rpc<"/phub.v1.Admin/DumpJob", v1::DumpJobRequest, v1::JobDump, kReaders> {};
struct TraceJob
    : Rpc<"/phub.v1.Admin/TraceJob", v1::TraceJobRequest, v1::TraceJobResponse, kReaders> {};
struct GetStats
    : Rpc<"/phub.v1.Admin/GetStats", v1::GetStatsRequest, v1::GetStatsResponse, kReaders> {};
struct DrainServer : Rpc<"/phub.v1.Admin/DrainServer", v1::DrainServerRequest, v1::ServerInfo,
                         kOperators, Audit::kYes> {};
struct UndrainServer : Rpc<"/phub.v1.Admin/UndrainServer", v1::UndrainServerRequest, v1::ServerInfo,
                           kOperators, Audit::kYes> {};
struct EvictJob
    : Rpc<"/phub.v1.Admin/EvictJob", v1::EvictJobRequest, v1::JobInfo, kReaders, Audit::kYes> {};

// These four RPCs expose parameters or saved state. Operators may see that a job exists, but not
// what it has learned. Daemons of other racks forward their callers' requests for jobs that span
// racks.
struct GetJobVersions : Rpc<"/phub.v1.Admin/GetJobVersions", v1::GetJobVersionsRequest,
                            v1::GetVersionsResponse, kTenant | kAdmin | kServer> {};
struct BeginSnapshot : Rpc<"/phub.v1.Admin/BeginSnapshot", v1::BeginSnapshotRequest, v1::Snapshot,
                           kTenant | kAdmin | kServer> {};
struct ReadSnapshot : Rpc<"/phub.v1.Admin/ReadSnapshot", v1::ReadSnapshotRequest, v1::SnapshotPart,
                          kTenant | kAdmin | kServer, Audit::kNo, Kind::kServerStream> {};
struct ReportSavedState
    : Rpc<"/phub.v1.Admin/ReportSavedState", v1::ReportSavedStateRequest,
          v1::ReportSavedStateResponse, kTenant | kAdmin | kServer, Audit::kYes> {};
using Admin =
    List<GetServer, ListJobs, GetJob, ListStalls, DumpJob, TraceJob, GetStats, DrainServer,
         UndrainServer, EvictJob, GetJobVersions, BeginSnapshot, ReadSnapshot, ReportSavedState>;
// What a worker's channel calls: it also asks which ranks its rounds wait for.
using WorkerCalls = Joined<SessionCalls, List<ListStalls>>::Type;

// ---- phub.v1.Tenants ----------------------------------------------------------------------------
struct WhoAmI : Rpc<"/phub.v1.Tenants/WhoAmI", v1::WhoAmIRequest, v1::Identity, kEveryone> {};
struct CreateTenant : Rpc<"/phub.v1.Tenants/CreateTenant", v1::CreateTenantRequest, v1::TenantInfo,
                          kAdmin, Audit::kYes> {};
struct ListTenants : Rpc<"/phub.v1.Tenants/ListTenants", v1::ListTenantsRequest,
                         v1::ListTenantsResponse, kReaders> {};
struct GetTenant
    : Rpc<"/phub.v1.Tenants/GetTenant", v1::GetTenantRequest, v1::TenantInfo, kReaders> {};
struct SetQuota
    : Rpc<"/phub.v1.Tenants/SetQuota", v1::SetQuotaRequest, v1::TenantInfo, kAdmin, Audit::kYes> {};
struct SuspendTenant : Rpc<"/phub.v1.Tenants/SuspendTenant", v1::SuspendTenantRequest,
                           v1::TenantInfo, kAdmin, Audit::kYes> {};
struct DeleteTenant : Rpc<"/phub.v1.Tenants/DeleteTenant", v1::DeleteTenantRequest,
                          v1::DeleteTenantResponse, kAdmin, Audit::kYes> {};
struct IssueToken : Rpc<"/phub.v1.Tenants/IssueToken", v1::IssueTokenRequest, v1::IssuedToken,
                        kAdmin, Audit::kYes> {};
struct ListTokens : Rpc<"/phub.v1.Tenants/ListTokens", v1::ListTokensRequest,
                        v1::ListTokensResponse, kTenant | kAdmin> {};
struct RevokeToken : Rpc<"/phub.v1.Tenants/RevokeToken", v1::RevokeTokenRequest, v1::TokenInfo,
                         kAdmin, Audit::kYes> {};
struct ListAudit
    : Rpc<"/phub.v1.Tenants/ListAudit", v1::ListAuditRequest, v1::ListAuditResponse, kOperators> {};
using Tenants = List<WhoAmI, CreateTenant, ListTenants, GetTenant, SetQuota, SuspendTenant,
                     DeleteTenant, IssueToken, ListTokens, RevokeToken, ListAudit>;

// ---- phub.v1.Membership: the declared membership
// ---------------------------------------------------
struct GetCluster
    : Rpc<"/phub.v1.Membership/GetCluster", v1::GetClusterRequest, v1::ClusterInfo, kReaders> {};
struct DeclareView : Rpc<"/phub.v1.Membership/DeclareView", v1::DeclareViewRequest, v1::View,
                         kAdmin, Audit::kYes> {};
using Membership = List<GetCluster, DeclareView>;

using All = Joined<Session, Peer, Probe, Admin, Tenants, Membership>::Type;

}  // namespace phub::rpc
