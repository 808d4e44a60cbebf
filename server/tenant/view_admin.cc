// The administrator's changes of the cluster's view.
#include <utility>

#include "server/tenant/tenant_admin.h"

namespace phub::server {

absl::StatusOr<view::View> TenantAdmin::DeclareView(const Caller& caller, view::View view,
                                                    std::optional<std::int64_t> expected) {
  Membership* const members = store_->membership();
  if (members == nullptr) {
    return absl::UnimplementedError(
        "this daemon belongs to no cluster; a view needs control_store = \"etcd:...\"");
  }
  const AuditNote note{.actor = caller.name,
                       .peer = caller.peer,
                       .action = "view.set",
                       .subject = {},
                       .detail = {},
                       .at = WallNow()};
  const absl::Status declared =
      writer_.Write([&](ControlStore&) { return members->Declare(view, expected, note); });
  ShareStoreState();
  if (!declared.ok()) return declared;
  return view;
}

}  // namespace phub::server
