// The membership of a cluster: the declared view, and which daemons are at its places. A control
// store that several daemons share implements it (server/etcd/members/cluster_members.h).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/view/view.h"
#include "server/tenant/tenant.h"

namespace phub::server {

struct AuditNote;

// Why a daemon cannot start at a place. Such daemons take no calls before they have all places.
inline constexpr std::string_view kNoView =
    "the cluster has no view; declare one with `phubctl store set-view`, or with `phubctl view "
    "set` at a daemon without a place";

// A daemon at a place.
struct ClusterMember {
  view::Place place;
  std::string daemon;    // its id
  std::string instance;  // random; another one after each start
  std::string host;
  std::string endpoint;  // where others reach its control plane
  std::string version;
  WallTimeNs started_at = 0;
  bool claims = false;  // it holds the place; false: it was there last
};

class Membership {
 public:
  virtual ~Membership() = default;

  // As this daemon knows them; any thread. Number 0: no view has been declared. An error says why
  // the record cannot be read.
  virtual absl::StatusOr<view::View> DeclaredView() const = 0;
  // One for each place that a daemon has or had, by place. Unreadable records are left out.
  virtual std::vector<ClusterMember> List() const = 0;
  // The place of this daemon; empty: it has none.
  virtual std::string own_place() const = 0;
  // The number of the view that this daemon has; 0: its settings do not come from a view.
  virtual std::int64_t used_view() const = 0;

  // Declares the next view, and sets its number. A view that is equal to the present one keeps its
  // number, and nothing is changed. expected: the number that the present view must have.
  // ABORTED: it has another one, or was changed meanwhile. State thread.
  virtual absl::Status Declare(view::View& view, std::optional<std::int64_t> expected,
                               const AuditNote& note) = 0;

  // The rest is for a starting daemon, in its thread, before Grants::Start.
  // Takes the place of this daemon, or renews its lease. ALREADY_EXISTS: another daemon has it.
  // NOT_FOUND: the view does not have it. FAILED_PRECONDITION: a record cannot be read.
  virtual absl::Status Claim() = 0;
  struct Known {
    view::View view;
    std::map<view::Place, std::string> endpoints;
    std::vector<std::string> missing;  // places without an endpoint, as text
  };
  // As etcd has it now. UNAVAILABLE: it does not answer.
  virtual absl::StatusOr<Known> Read() = 0;
  // From now on this daemon has this view, and logs that another one is declared. The function is
  // called when a place of the view gets another endpoint; any thread, one call at a time.
  using EndpointChanged = std::function<void(const view::Place&, const std::string& endpoint)>;
  virtual void UseView(const Known& known) = 0;
  virtual void OnEndpoints(EndpointChanged changed) = 0;
};

}  // namespace phub::server
