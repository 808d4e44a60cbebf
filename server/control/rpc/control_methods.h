// Which method of Control serves an RPC: those that go straight to it, as void
// (Control::*)(request, answer). Services do the rest (service.h). No gRPC: the simulation calls
// Control by this, too.
#pragma once

#include <cstddef>

#include "common/rpc/rpcs.h"
#include "server/control/control.h"

namespace phub::server {

// Null: a service has a handler of its own.
template <typename Rpc>
inline constexpr auto kControlMethod = nullptr;

template <>
inline constexpr auto kControlMethod<rpc::GetRack> = &Control::GetRack;
template <>
inline constexpr auto kControlMethod<rpc::Commit> = &Control::Commit;
template <>
inline constexpr auto kControlMethod<rpc::AddKeys> = &Control::AddKeys;
template <>
inline constexpr auto kControlMethod<rpc::OpenLanes> = &Control::OpenLanes;
template <>
inline constexpr auto kControlMethod<rpc::Barrier> = &Control::Barrier;
template <>
inline constexpr auto kControlMethod<rpc::Leave> = &Control::Leave;
template <>
inline constexpr auto kControlMethod<rpc::GetVersions> = &Control::GetVersions;
template <>
inline constexpr auto kControlMethod<rpc::GetLoadedState> = &Control::GetLoadedState;

template <>
inline constexpr auto kControlMethod<rpc::ListJobs> = &Control::ListJobs;
template <>
inline constexpr auto kControlMethod<rpc::GetJob> = &Control::GetJob;
template <>
inline constexpr auto kControlMethod<rpc::ListStalls> = &Control::ListStalls;

template <>
inline constexpr auto kControlMethod<rpc::Exchange> = &Control::OnEnvelope;

}  // namespace phub::server
