// The records of the view and of the daemons at its places, as values of etcd. Pure; any thread.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/view/view.h"
#include "server/etcd/record.h"
#include "server/tenant/membership.h"

namespace phub::server::etcd {

// "/places/north/0": the daemon that is there now, with its lease.
std::string PlaceKey(const view::Place& place);
// "/endpoints/north/0": the daemon that was there last.
std::string EndpointKey(const view::Place& place);

std::string SealView(const Records& records, const view::View& view);
// The message of an error continues "/view". A view that this phubd cannot use is an error, too.
absl::StatusOr<view::View> OpenView(const Records& records, const std::string& value);

// `key`: PlaceKey or EndpointKey of the member's place.
std::string SealMember(const Records& records, std::string_view key, const ClusterMember& member);
// The message of an error continues the key.
absl::StatusOr<ClusterMember> OpenMember(const Records& records, std::string_view key,
                                         const std::string& value);

}  // namespace phub::server::etcd
