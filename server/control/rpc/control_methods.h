// For RPCs that are handled by one method of a part of Control: calls it as
// kControlMethod<Rpc>(control, request, answer). Services handle the other RPCs (service.h). Does
// not use gRPC, so that the simulation can call Control in the same way.
#pragma once

#include <cstddef>
#include <utility>

#include "common/rpc/rpcs.h"
#include "server/control/admin/admin.h"
#include "server/control/admin/job_dumps.h"
#include "server/control/admin/job_traces.h"
#include "server/control/admin/stall_reports.h"
#include "server/control/checkpoint/loads.h"
#include "server/control/checkpoint/versions.h"
#include "server/control/control.h"
#include "server/control/keys/key_removals.h"
#include "server/control/keys/keys.h"
#include "server/control/lanes/lanes.h"
#include "server/control/racks/rack_messages.h"
#include "server/control/ranks/barriers.h"
#include "server/control/ranks/joins.h"
#include "server/control/ranks/seats.h"

namespace phub::server {

template <typename Part, typename Request, typename Response>
struct PartMethod {
  Part& (Control::*part)();
  void (Part::*method)(const Request&, Answer<Response>);

  void operator()(Control& control, const Request& request, Answer<Response> answer) const {
    ((control.*part)().*method)(request, std::move(answer));
  }
};

// clang 14 does not deduce the parameters of aggregates.
template <typename Part, typename Request, typename Response>
PartMethod(Part& (Control::*)(), void (Part::*)(const Request&, Answer<Response>))
    -> PartMethod<Part, Request, Response>;

// Null: a service has its own handler.
template <typename Rpc>
inline constexpr auto kControlMethod = nullptr;

template <>
inline constexpr auto kControlMethod<rpc::GetRack> = PartMethod{&Control::joins, &Joins::GetRack};
template <>
inline constexpr auto kControlMethod<rpc::Commit> = PartMethod{&Control::seats, &Seats::Commit};
template <>
inline constexpr auto kControlMethod<rpc::AddKeys> = PartMethod{&Control::keys, &Keys::AddKeys};
template <>
inline constexpr auto kControlMethod<rpc::RemoveKeys> =
    PartMethod{&Control::key_removals, &KeyRemovals::RemoveKeys};
template <>
inline constexpr auto kControlMethod<rpc::OpenLanes> =
    PartMethod{&Control::lanes, &Lanes::OpenLanes};
template <>
inline constexpr auto kControlMethod<rpc::Barrier> =
    PartMethod{&Control::barriers, &Barriers::Barrier};
template <>
inline constexpr auto kControlMethod<rpc::Leave> = PartMethod{&Control::seats, &Seats::Leave};
template <>
inline constexpr auto kControlMethod<rpc::GetVersions> =
    PartMethod{&Control::versions, &Versions::GetVersions};
template <>
inline constexpr auto kControlMethod<rpc::GetLoadedState> =
    PartMethod{&Control::loads, &Loads::GetLoadedState};
template <>
inline constexpr auto kControlMethod<rpc::ReportDump> =
    PartMethod{&Control::job_dumps, &JobDumps::ReportDump};

template <>
inline constexpr auto kControlMethod<rpc::ListJobs> = PartMethod{&Control::admin, &Admin::ListJobs};
template <>
inline constexpr auto kControlMethod<rpc::GetJob> = PartMethod{&Control::admin, &Admin::GetJob};
template <>
inline constexpr auto kControlMethod<rpc::ListStalls> =
    PartMethod{&Control::stall_reports, &StallReports::ListStalls};
template <>
inline constexpr auto kControlMethod<rpc::DumpJob> =
    PartMethod{&Control::job_dumps, &JobDumps::DumpJob};
template <>
inline constexpr auto kControlMethod<rpc::TraceJob> =
    PartMethod{&Control::job_traces, &JobTraces::TraceJob};

}  // namespace phub::server
