#include "server/etcd/members/known_endpoints.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "common/base/printable.h"

namespace phub::server::etcd {
namespace {

constexpr std::size_t kEndpointBytesShown = 100;

}  // namespace

KnownEndpoints FindEndpoints(const view::View& view, const std::vector<ClusterMember>& members) {
  // Who is there now comes first, then who was there last.
  std::vector<const ClusterMember*> order;
  for (const ClusterMember& member : members) order.push_back(&member);
  std::ranges::stable_sort(order, [](const ClusterMember* left, const ClusterMember* right) {
    return std::tie(left->claims, left->started_at) > std::tie(right->claims, right->started_at);
  });
  std::map<std::string, view::Place> users;
  std::map<view::Place, const ClusterMember*> found;
  for (const ClusterMember* const member : order) {
    users.try_emplace(member->endpoint, member->place);
    found.try_emplace(member->place, member);
  }
  KnownEndpoints known;
  for (const view::Place& place : PlacesOf(view)) {
    const auto member = found.find(place);
    if (member == found.end()) {
      known.missing.push_back(ToString(place));
      continue;
    }
    const std::string& endpoint = member->second->endpoint;
    if (const view::Place& user = users.at(endpoint); user == place) {
      known.endpoints[place] = endpoint;
    } else {
      known.missing.push_back(fmt::format("{} ({} is now at {})", ToString(place),
                                          Printable(endpoint, kEndpointBytesShown),
                                          ToString(user)));
    }
  }
  return known;
}

}  // namespace phub::server::etcd
