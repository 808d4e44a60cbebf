// Which endpoint each place of a view has, as far as known. Pure.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "common/view/view.h"
#include "server/tenant/membership.h"

namespace phub::server::etcd {

struct KnownEndpoints {
  std::map<view::Place, std::string> endpoints;
  // Places whose endpoint is not known: "south/1", "south/1 (10.0.0.7:7700 is now at north/0)".
  std::vector<std::string> missing;
};

// A daemon that is gone counts with its last endpoint, unless another daemon is there now.
KnownEndpoints FindEndpoints(const view::View& view, const std::vector<ClusterMember>& members);

}  // namespace phub::server::etcd
