// The view and the daemons at its places, as this daemon knows them: it follows the mirror. A
// record that cannot be read is never used. Any thread; RecordChanged is called under the mirror's
// lock.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "server/etcd/mirror.h"
#include "server/etcd/record.h"
#include "server/tenant/control_store.h"
#include "server/tenant/membership.h"

namespace phub::server::etcd {

class ClusterMembers final : public Membership, public MemberFollower {
 public:
  // Writes /view if it has this revision, with an audit entry.
  using Commit = std::function<absl::Status(const std::string& value, std::int64_t revision,
                                            const AuditNote& note)>;
  struct Calls {
    Commit commit;
    std::function<absl::Status()> claim;
    // The records of the view, and those under /places/ and /endpoints/, from etcd.
    std::function<absl::StatusOr<std::vector<Item>>()> read;
  };
  ClusterMembers(const Records& records, std::string own_place, Calls calls)
      : records_(records), own_place_(std::move(own_place)), calls_(std::move(calls)) {}

  absl::StatusOr<view::View> DeclaredView() const override;
  std::vector<ClusterMember> List() const override;
  std::string own_place() const override { return own_place_; }
  absl::Status Declare(view::View& view, std::optional<std::int64_t> expected,
                       const AuditNote& note) override;

  absl::Status Claim() override { return calls_.claim(); }
  absl::StatusOr<Known> Read() override;
  void UseView(const Known& known) override;
  void OnEndpoints(EndpointChanged changed) override;
  std::int64_t used_view() const override;

  void RecordChanged(const std::string& key, std::int64_t revision,
                     const std::string& value) override;

 private:
  void ViewRecordChanged(std::int64_t revision, const std::string& value);
  void ViewChanged(const std::string& value);
  bool HasMoved(const ClusterMember& member);
  // Returns the daemon that is at the place now, if it is at another endpoint than before.
  std::optional<ClusterMember> PlaceChanged(const std::string& key, const std::string& value,
                                            std::map<std::string, ClusterMember>& members);

  const Records& records_;
  const std::string own_place_;
  const Calls calls_;
  mutable std::mutex mutex_;
  absl::StatusOr<view::View> view_ = view::View();  // this and the rest: under mutex_
  std::int64_t view_revision_ = 0;
  std::map<std::string, ClusterMember> present_;  // [key under /places/]
  std::map<std::string, ClusterMember> last_;     // [key under /endpoints/]
  std::int64_t used_view_ = 0;
  std::map<view::Place, std::string> used_endpoints_;  // as this daemon uses them
  EndpointChanged endpoint_changed_;
};

}  // namespace phub::server::etcd
