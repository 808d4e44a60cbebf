#include "common/plan/memory.h"

#include <algorithm>

namespace phub::plan {
namespace {

// What a vertex does in one tree.
struct Role {
  std::uint32_t reduce_children = 0;
  std::uint32_t gather_children = 0;
  bool is_home = false;
  bool sends_sum = false;
  bool receives_result = false;

  bool TakesPart() const {
    return is_home || sends_sum || receives_result || reduce_children > 0 || gather_children > 0;
  }
};

std::vector<Role> RolesIn(const Topology& topology, const Tree& tree) {
  std::vector<Role> roles(topology.nodes().size());
  roles[tree.home.value].is_home = true;
  for (const Edge& edge : tree.reduce) {
    ++roles[edge.to.value].reduce_children;
    roles[edge.from.value].sends_sum = true;
  }
  for (const Edge& edge : tree.gather) {
    ++roles[edge.from.value].gather_children;
    roles[edge.to.value].receives_result = true;
  }
  return roles;
}

void Add(MemoryTraffic& sum, const MemoryTraffic& more) {
  sum.read += more.read;
  sum.written += more.written;
}

void Add(DaemonMemory& sum, const DaemonMemory& more) {
  sum.sent += more.sent;
  sum.received += more.received;
  Add(sum.landing, more.landing);
  Add(sum.sums, more.sums);
  Add(sum.update, more.update);
  Add(sum.sending, more.sending);
  sum.touched += more.touched;
}

// The table in memory.h, times the elements of the tree.
DaemonMemory MemoryIn(const Role& role, std::uint32_t ranks, double elements,
                      const MemoryOptions& options) {
  const double gradients = elements * options.gradient_bytes * ranks;
  const double sum = elements * options.sum_bytes;
  const double parameters = elements * options.parameter_bytes;
  const double kept = elements * options.kept_bytes;
  const double state = options.states * sum;
  const double partials = role.reduce_children * sum;
  DaemonMemory memory;
  memory.sent = (role.sends_sum ? sum : 0) + role.gather_children * parameters;
  memory.received = partials + (role.receives_result ? parameters : 0);
  memory.landing.written = gradients + memory.received;
  if (ranks > 0) memory.sums = {gradients, sum};
  if (role.reduce_children > 0) {
    Add(memory.sums, {(ranks > 0 ? sum : 0) + partials, sum});
  }
  const double masters = options.keeps_masters ? parameters : 0;
  if (role.is_home) {
    memory.update = {sum + (options.updates ? kept : 0) + state, kept + masters + state};
  }
  memory.sending.read = memory.sent + ranks * parameters;
  const bool sums = ranks > 0 || role.reduce_children > 0;
  memory.touched = (sums ? sum : 0) + partials + (role.receives_result ? parameters : 0) +
                   (role.is_home ? kept + masters + state : 0);
  return memory;
}

}  // namespace

MemoryTraffic DaemonMemory::all() const {
  MemoryTraffic sum = landing;
  Add(sum, sums);
  Add(sum, update);
  Add(sum, sending);
  return sum;
}

std::vector<DaemonMemory> MemoryOf(const Topology& topology, const Forest& forest,
                                   const MemoryOptions& options) {
  std::vector<DaemonMemory> by_node(topology.nodes().size());
  std::vector<bool> takes_part(topology.nodes().size(), false);
  for (const Tree& tree : forest.trees) {
    const double elements =
        options.elements * static_cast<double>(tree.share) / static_cast<double>(forest.share_unit);
    const std::vector<Role> roles = RolesIn(topology, tree);
    for (std::uint32_t node = 0; node < roles.size(); ++node) {
      if (!roles[node].TakesPart()) continue;
      takes_part[node] = true;
      const std::uint32_t ranks = topology.IsMember(NodeIndex{node}) ? options.ranks : 0;
      Add(by_node[node], MemoryIn(roles[node], ranks, elements, options));
    }
  }
  std::vector<DaemonMemory> daemons;
  for (std::uint32_t node = 0; node < by_node.size(); ++node) {
    if (!takes_part[node]) continue;
    daemons.push_back(by_node[node]);
    daemons.back().node = NodeIndex{node};
  }
  std::stable_sort(daemons.begin(), daemons.end(),
                   [&](const DaemonMemory& a, const DaemonMemory& b) {
                     return topology.RankOf(a.node) < topology.RankOf(b.node);
                   });
  return daemons;
}

DaemonMemory SumOf(const std::vector<DaemonMemory>& daemons) {
  DaemonMemory sum;
  for (const DaemonMemory& daemon : daemons) Add(sum, daemon);
  return sum;
}

}  // namespace phub::plan
