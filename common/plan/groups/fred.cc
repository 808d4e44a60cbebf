#include "common/plan/groups/fred.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <numeric>
#include <utility>

#include "common/plan/generators.h"
#include "fmt/format.h"

namespace phub::plan {
namespace {

constexpr std::uint64_t kRouteWorkMax = std::uint64_t{1} << 22;

// One network FRED_m(P): which switch each port belongs to, and the network inside.
struct FredLevel {
  explicit FredLevel(std::uint32_t port_count)
      : ports(port_count), pairs(port_count / 2), is_odd(port_count % 2 == 1) {}

  bool IsOneSwitch() const { return ports == 2; }
  bool IsMuxed(std::uint32_t port) const { return port == 2 * pairs; }
  std::uint32_t InnerPort(std::uint32_t port) const { return IsMuxed(port) ? pairs : port / 2; }
  std::uint32_t InnerPorts() const { return pairs + (is_odd ? 1 : 0); }
  // The node of a port. `prefix` names the network: "1.2." is middle 2 of middle 1.
  std::string NodeAt(const std::string& prefix, std::uint32_t port, bool is_input) const {
    if (IsOneSwitch()) return prefix + "sw";
    if (IsMuxed(port)) return prefix + (is_input ? "demux" : "mux");
    return fmt::format("{}{}{}", prefix, is_input ? "in" : "out", port / 2);
  }

  std::uint32_t ports;
  std::uint32_t pairs;  // switches of two ports on each side
  bool is_odd;
};

// The number of nodes of FRED_m(P).
std::uint64_t SwitchesOf(const FredShape& shape) {
  const FredLevel level(shape.ports);
  if (level.IsOneSwitch()) return 1;
  return 2 * (level.pairs + (level.is_odd ? 1u : 0u)) +
         shape.middles * SwitchesOf({level.InnerPorts(), shape.middles});
}

class FredBuilder {
 public:
  FredBuilder(std::uint32_t middles, TopologyBuilder& builder)
      : middles_(middles), builder_(builder) {}

  void Build(std::uint32_t ports, const std::string& prefix) {
    const FredLevel level(ports);
    if (level.IsOneSwitch()) {
      Add(prefix + "sw", NodeKind::kAggregator);
      return;
    }
    for (const bool is_input : {true, false}) {
      for (std::uint32_t port = 0; port < ports; port += 2)
        Add(level.NodeAt(prefix, port, is_input),
            level.IsMuxed(port) ? NodeKind::kSwitch : NodeKind::kAggregator);
    }
    for (std::uint32_t middle = 0; middle < middles_; ++middle) {
      const std::string inner_prefix = fmt::format("{}{}.", prefix, middle);
      Build(level.InnerPorts(), inner_prefix);
      const FredLevel inner(level.InnerPorts());
      for (std::uint32_t port = 0; port < ports; port += 2) {
        Link(level.NodeAt(prefix, port, true),
             inner.NodeAt(inner_prefix, level.InnerPort(port), true));
        Link(inner.NodeAt(inner_prefix, level.InnerPort(port), false),
             level.NodeAt(prefix, port, false));
      }
    }
  }

  void LinkMembers(std::uint32_t ports, const std::vector<NodeIndex>& members) {
    const FredLevel level(ports);
    for (std::uint32_t port = 0; port < ports; ++port) {
      builder_.ConnectOneWay(members[port], nodes_.at(level.NodeAt("", port, true)), Rational(1));
      builder_.ConnectOneWay(nodes_.at(level.NodeAt("", port, false)), members[port], Rational(1));
    }
  }

 private:
  void Add(const std::string& name, NodeKind kind) {
    nodes_[name] = builder_.AddNode({name, kind});
  }
  void Link(const std::string& from, const std::string& to) {
    builder_.ConnectOneWay(nodes_.at(from), nodes_.at(to), Rational(1));
  }

  const std::uint32_t middles_;
  TopologyBuilder& builder_;
  std::map<std::string, NodeIndex> nodes_;
};

// Routes flows through the middle networks, level by level.
class FredRouter {
 public:
  FredRouter(std::uint32_t middles, std::size_t flows) : middles_(middles), routes_(flows) {}

  FredRoutes Run(std::uint32_t ports, std::span<const FredFlow> flows) {
    std::vector<Part> parts;
    for (std::uint32_t i = 0; i < flows.size(); ++i) parts.push_back({i, flows[i]});
    const bool is_routed = Route(ports, 0, parts);
    if (work_ > kRouteWorkMax) return {FredVerdict::kUnknown, {}};
    if (!is_routed) return {FredVerdict::kConflict, {}};
    return {FredVerdict::kRouted, std::move(routes_)};
  }

 private:
  struct Part {
    std::uint32_t flow;
    FredFlow ports;  // ports of the present network
  };

  bool Route(std::uint32_t ports, std::size_t depth, const std::vector<Part>& parts) {
    for (const Part& part : parts) routes_[part.flow].resize(depth);
    if (parts.size() <= 1 || ports == 2) return true;
    const FredLevel level(ports);
    const std::vector<std::vector<std::uint32_t>> conflicts = ConflictsOf(level, parts);
    std::vector<std::uint32_t> order(parts.size());
    std::iota(order.begin(), order.end(), 0u);
    std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
      return conflicts[a].size() > conflicts[b].size();
    });
    std::vector<std::uint32_t> colours(parts.size(), kNoIndex);
    return Colour(level, depth, parts, conflicts, order, 0, 0, colours);
  }

  // Colours the parts from order[next] on; `used` colours are in use.
  bool Colour(const FredLevel& level, std::size_t depth, const std::vector<Part>& parts,
              const std::vector<std::vector<std::uint32_t>>& conflicts,
              const std::vector<std::uint32_t>& order, std::size_t next, std::uint32_t used,
              std::vector<std::uint32_t>& colours) {
    if (++work_ > kRouteWorkMax) return false;
    if (next == order.size()) return RouteInside(level, depth, parts, colours);
    const std::uint32_t part = order[next];
    // Unused middle networks are interchangeable.
    for (std::uint32_t colour = 0; colour < std::min(middles_, used + 1); ++colour) {
      if (std::any_of(conflicts[part].begin(), conflicts[part].end(),
                      [&](std::uint32_t other) { return colours[other] == colour; }))
        continue;
      colours[part] = colour;
      if (Colour(level, depth, parts, conflicts, order, next + 1, std::max(used, colour + 1),
                 colours))
        return true;
      if (work_ > kRouteWorkMax) return false;
    }
    colours[part] = kNoIndex;
    return false;
  }

  bool RouteInside(const FredLevel& level, std::size_t depth, const std::vector<Part>& parts,
                   const std::vector<std::uint32_t>& colours) {
    for (std::uint32_t middle = 0; middle < middles_; ++middle) {
      std::vector<Part> inner;
      for (std::size_t i = 0; i < parts.size(); ++i) {
        if (colours[i] != middle) continue;
        inner.push_back(
            {parts[i].flow,
             {Inside(level, parts[i].ports.inputs), Inside(level, parts[i].ports.outputs)}});
      }
      if (!Route(level.InnerPorts(), depth + 1, inner)) return false;
      for (const Part& part : inner) routes_[part.flow][depth] = middle;
    }
    return true;
  }

  static std::vector<std::uint32_t> Inside(const FredLevel& level,
                                           const std::vector<std::uint32_t>& ports) {
    std::vector<std::uint32_t> inner;
    for (const std::uint32_t port : ports)
      if (inner.empty() || inner.back() != level.InnerPort(port))
        inner.push_back(level.InnerPort(port));
    return inner;
  }

  // By part: the parts with which it shares an input switch or an output switch.
  static std::vector<std::vector<std::uint32_t>> ConflictsOf(const FredLevel& level,
                                                             const std::vector<Part>& parts) {
    std::vector<std::vector<std::uint32_t>> conflicts(parts.size());
    for (const bool is_input : {true, false}) {
      std::vector<std::uint32_t> first(level.pairs, kNoIndex);  // by switch
      for (std::uint32_t i = 0; i < parts.size(); ++i) {
        for (const std::uint32_t port : is_input ? parts[i].ports.inputs : parts[i].ports.outputs) {
          if (level.IsMuxed(port)) continue;
          std::uint32_t& other = first[port / 2];
          if (other == kNoIndex) other = i;
          if (other == i) continue;
          conflicts[i].push_back(other);
          conflicts[other].push_back(i);
        }
      }
    }
    for (auto& list : conflicts) {
      std::sort(list.begin(), list.end());
      list.erase(std::unique(list.begin(), list.end()), list.end());
    }
    return conflicts;
  }

  const std::uint32_t middles_;
  std::vector<std::vector<std::uint32_t>> routes_;
  std::uint64_t work_ = 0;
};

bool HaveEqualParts(const Topology& a, const Topology& b) {
  return std::equal(
             a.nodes().begin(), a.nodes().end(), b.nodes().begin(), b.nodes().end(),
             [](const Node& x, const Node& y) { return x.name == y.name && x.kind == y.kind; }) &&
         std::equal(a.links().begin(), a.links().end(), b.links().begin(), b.links().end(),
                    [](const Link& x, const Link& y) {
                      return x.from == y.from && x.to == y.to && x.capacity == y.capacity;
                    });
}

}  // namespace

std::optional<FredShape> FredShapeOf(const Topology& topology) {
  constexpr std::string_view kPrefix = "fred:";
  const std::string& name = topology.name();
  if (!name.starts_with(kPrefix)) return std::nullopt;
  // A file may have this name and other links.
  const absl::StatusOr<Topology> generated = Generate(name);
  if (!generated.ok() || !HaveEqualParts(*generated, topology)) return std::nullopt;
  FredShape shape;
  const char* end = name.data() + name.size();
  const char* at = std::from_chars(name.data() + kPrefix.size(), end, shape.ports).ptr;
  if (at == end || *at != ',') return std::nullopt;
  std::from_chars(at + 1, end, shape.middles);
  return shape;
}

absl::Status BuildFred(const FredShape& shape, TopologyBuilder& builder) {
  const std::uint64_t nodes = shape.ports + SwitchesOf(shape);
  if (nodes > kNodesMax)
    return absl::InvalidArgumentError(fmt::format(
        "FRED with {} ports and {} middle networks has {} nodes; at most {} are allowed",
        shape.ports, shape.middles, nodes, kNodesMax));
  std::vector<NodeIndex> members;
  for (std::uint32_t port = 0; port < shape.ports; ++port)
    members.push_back(builder.AddMember(std::nullopt));
  FredBuilder fred(shape.middles, builder);
  fred.Build(shape.ports, "");
  fred.LinkMembers(shape.ports, members);
  return absl::OkStatus();
}

FredRoutes RouteFlows(const FredShape& shape, std::span<const FredFlow> flows) {
  return FredRouter(shape.middles, flows.size()).Run(shape.ports, flows);
}

std::vector<std::string> FredPath(const FredShape& shape, std::uint32_t input, std::uint32_t output,
                                  std::span<const std::uint32_t> middles) {
  std::vector<std::string> path, back;
  std::string prefix;
  std::uint32_t ports = shape.ports;
  for (std::size_t depth = 0;; ++depth) {
    const FredLevel level(ports);
    path.push_back(level.NodeAt(prefix, input, true));
    if (level.IsOneSwitch()) break;
    back.push_back(level.NodeAt(prefix, output, false));
    prefix += fmt::format("{}.", depth < middles.size() ? middles[depth] : 0);
    input = level.InnerPort(input);
    output = level.InnerPort(output);
    ports = level.InnerPorts();
  }
  path.insert(path.end(), back.rbegin(), back.rend());
  return path;
}

}  // namespace phub::plan
