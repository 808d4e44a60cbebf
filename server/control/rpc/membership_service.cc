// phub.v1.Membership: the declared view of a cluster, and the daemons at its places.
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status_text.h"
#include "common/view/view_message.h"
#include "phub/v1/cluster.pb.h"
#include "server/control/rpc/grpc_service.h"
#include "server/tenant/membership.h"

namespace phub::server {
namespace {

void Describe(const ClusterMember& member, v1::ClusterPlace& place) {
  place.set_claimed(member.claims);
  place.set_daemon(member.daemon);
  place.set_endpoint(member.endpoint);
  place.set_host(member.host);
  place.set_version(member.version);
  place.set_started_at_ns(member.started_at);
}

v1::ClusterInfo DescribeCluster(const Membership& members) {
  v1::ClusterInfo info;
  info.set_place(members.own_place());
  info.set_used_view(members.used_view());
  const auto view = members.DeclaredView();
  if (!view.ok()) info.set_problem(std::string(MessageOf(view.status())));
  std::map<std::string, ClusterMember> present;
  for (ClusterMember& member : members.List()) {
    std::string place = ToString(member.place);
    present[std::move(place)] = std::move(member);
  }
  const auto add = [&](const std::string& name, bool in_view) -> v1::ClusterPlace& {
    v1::ClusterPlace& place = *info.add_places();
    place.set_place(name);
    place.set_in_view(in_view);
    return place;
  };
  if (view.ok()) {
    *info.mutable_view() = view::ToMessage<v1::View>(*view);
    for (const view::Place& each : PlacesOf(*view)) {
      v1::ClusterPlace& place = add(ToString(each), true);
      const auto found = present.find(place.place());
      if (found == present.end()) continue;
      Describe(found->second, place);
      present.erase(found);
    }
  }
  for (const auto& [name, member] : present) {
    if (member.claims) Describe(member, add(name, false));
  }
  return info;
}

class MembershipHandlers {
 public:
  explicit MembershipHandlers(Shared& shared) : shared_(shared) {}

  void Handle(RpcCall<rpc::GetCluster>& call) {
    const Membership* const members =
        shared_.admin == nullptr ? nullptr : shared_.admin->store().membership();
    call.answer(absl::OkStatus(),
                members == nullptr ? v1::ClusterInfo() : DescribeCluster(*members));
  }

  void Handle(RpcCall<rpc::DeclareView>& call) {
    RunOnState(
        shared_, std::move(call.answer),
        [this, caller = call.caller, asked = call.request]() -> absl::StatusOr<view::View> {
          const auto expected =
              asked.has_expected() ? std::optional(asked.expected()) : std::nullopt;
          view::View view = view::FromMessage(asked.view());
          view.number = 0;  // the store gives it the next one
          return shared_.admin->DeclareView(caller, view, expected);
        },
        [](Control&, const absl::StatusOr<view::View>& view, const Answer<v1::View>& then) {
          if (!view.ok()) return then(view.status(), {});
          then(absl::OkStatus(), view::ToMessage<v1::View>(*view));
        });
  }

 private:
  Shared& shared_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeMembershipService(Shared& shared) {
  return std::make_unique<GrpcService<MembershipHandlers, rpc::Membership>>(shared);
}

}  // namespace phub::server
