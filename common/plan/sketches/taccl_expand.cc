#include "common/plan/sketches/taccl_expand.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/plan/planners/symmetry.h"
#include "common/plan/topology_builder.h"
#include "fmt/format.h"

namespace phub::plan {
namespace {

absl::Status In(std::string_view field, std::string_view reason) {
  return absl::InvalidArgumentError(fmt::format("{}: {}", field, reason));
}

constexpr double kChunkNsMax = 86'400e9;

class Expander {
 public:
  Expander(const TacclSketch& sketch, const TacclProfile& profile)
      : sketch_(sketch), profile_(profile) {}

  absl::StatusOr<ExpandedSketch> Run() {
    for (absl::Status (Expander::*check)() :
         {&Expander::CheckSwitches, &Expander::Connect, &Expander::CheckSenders,
          &Expander::CheckSizes, &Expander::CheckRotations})
      if (absl::Status status = (this->*check)(); !status.ok()) return status;
    absl::StatusOr<Topology> topology = Build();
    if (!topology.ok()) return topology.status();
    SketchRules rules = Rules();
    if (!rules.rotations.empty())
      if (const auto symmetry = SymmetryUnder(*topology, rules); !symmetry.ok())
        return In("symmetry_offsets", std::string(symmetry.status().message()));
    return ExpandedSketch{*std::move(topology), std::move(rules), pairs_, pairs_across_,
                          time_across_};
  }

 private:
  absl::Status CheckPlace(std::string_view field, std::uint32_t place) const {
    if (place < profile_.gpus) return absl::OkStatus();
    return In(field, fmt::format("there is no GPU {}; a node has {} (gpus_per_node)", place,
                                 profile_.gpus));
  }
  absl::Status CheckLists(std::string_view field, const PlaceLists& lists) const {
    for (const auto& [sender, list] : lists) {
      if (absl::Status status = CheckPlace(field, sender); !status.ok()) return status;
      for (const std::uint32_t place : list)
        if (absl::Status status = CheckPlace(field, place); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  // GPUs on a switch have links of the same cost to each other.
  absl::Status CheckSwitches() {
    switch_of_.assign(profile_.gpus, std::nullopt);
    for (std::size_t i = 0; i < sketch_.switches.size(); ++i) {
      const std::string field = fmt::format("intranode_sketch.switches[{}]", i);
      const std::vector<std::uint32_t>& places = sketch_.switches[i];
      for (const std::uint32_t place : places) {
        if (absl::Status status = CheckPlace(field, place); !status.ok()) return status;
        switch_of_[place] = i;
      }
      const Rational& beta = profile_.Beta(places[0], places[1]);
      for (const std::uint32_t from : places)
        for (const std::uint32_t to : places) {
          if (from == to) continue;
          const Rational& other = profile_.Beta(from, to);
          if (other.numerator() == 0)
            return In(field,
                      fmt::format("the profile has no link from GPU {} to GPU {}", from, to));
          if (other != beta)
            return In(field, fmt::format("the links from GPU {} to GPU {} and from GPU {} to GPU "
                                         "{} have different costs in the profile",
                                         places[0], places[1], from, to));
        }
    }
    return absl::OkStatus();
  }

  // Fills across_, the pairs of GPUs that exchange data between any two nodes.
  absl::Status Connect() {
    if (!sketch_.relay) return absl::OkStatus();
    if (!profile_.remote)
      return In("nnodes", fmt::format("is {}, but the profile has no remote_alpha, remote_beta, "
                                      "remote_invbw and nics_per_node",
                                      sketch_.nodes));
    const TacclSketch::Relay& relay = *sketch_.relay;
    if (absl::Status status = CheckLists("internode_sketch.internode_conn", relay.connections);
        !status.ok())
      return status;
    for (std::uint32_t i = 0; i < profile_.gpus; ++i) {
      if (relay.connect == TacclSketch::Connect::kDirectMap) across_.emplace_back(i, i);
      if (relay.connect == TacclSketch::Connect::kFullyConnected)
        for (std::uint32_t j = 0; j < profile_.gpus; ++j) across_.emplace_back(i, j);
    }
    for (const auto& [sender, receivers] : relay.connections)
      for (const std::uint32_t receiver : receivers) across_.emplace_back(sender, receiver);
    const auto links = static_cast<std::int64_t>(across_.size());
    const auto factor = Rational::Make(links, profile_.remote->nics);
    const auto beta = Multiply(profile_.remote->beta, *factor);
    const auto time = beta ? Add(*beta, profile_.remote->alpha) : std::nullopt;
    if (!time) return In("internode_sketch.internode_conn", "the cost of a link is out of range");
    beta_across_ = *beta;
    time_across_ = *time;
    return absl::OkStatus();
  }

  // Every GPU's data must be able to leave the node.
  absl::Status CheckSenders() {
    if (!sketch_.relay || !sketch_.relay->carries) return absl::OkStatus();
    constexpr std::string_view kField = "internode_sketch.gpus_to_sender_rev_map";
    const PlaceLists& carries = *sketch_.relay->carries;
    if (absl::Status status = CheckLists(kField, carries); !status.ok()) return status;
    std::set<std::uint32_t> carried;
    for (const auto& [sender, homes] : carries) {
      carried.insert(homes.begin(), homes.end());
      const bool sends =
          std::any_of(across_.begin(), across_.end(),
                      [&, sender = sender](const auto& pair) { return pair.first == sender; });
      if (!sends)
        return In(kField,
                  fmt::format("GPU {} does not send to other nodes (internode_conn)", sender));
    }
    for (std::uint32_t place = 0; place < profile_.gpus; ++place)
      if (!carried.contains(place))
        return In(kField, fmt::format("no GPU may send the data of GPU {} to other nodes", place));
    return absl::OkStatus();
  }

  absl::Status CheckSizes() {
    const std::uint64_t ranks = std::uint64_t{sketch_.nodes} * profile_.gpus;
    if (ranks < 2 || ranks > kMembersMax)
      return In("nnodes", fmt::format("{} node(s) with {} GPU(s) each have {} ranks; there must be "
                                      "from 2 to {}",
                                      sketch_.nodes, profile_.gpus, ranks, kMembersMax));
    const std::size_t links = static_cast<std::size_t>(
        std::count_if(profile_.betas.begin(), profile_.betas.end(),
                      [](const Rational& beta) { return beta.numerator() > 0; }));
    pairs_across_ = across_.size() * sketch_.nodes * (sketch_.nodes - 1);
    pairs_ = links * sketch_.nodes + pairs_across_;
    if (pairs_ > kLinksMax)
      return In("nnodes", fmt::format("the nodes have {} links; at most {} are supported", pairs_,
                                      kLinksMax));
    return absl::OkStatus();
  }

  absl::Status CheckRotations() {
    const std::uint32_t ranks = sketch_.nodes * profile_.gpus;
    for (std::size_t i = 0; i < sketch_.rotations.size(); ++i)
      if (ranks % sketch_.rotations[i].block != 0)
        return In(
            fmt::format("symmetry_offsets[{}]", i),
            fmt::format("{} ranks are not a multiple of {}", ranks, sketch_.rotations[i].block));
    return absl::OkStatus();
  }

  SketchRules Rules() const {
    SketchRules rules;
    SetGroups(rules, sketch_.nodes * profile_.gpus, profile_.gpus);
    if (sketch_.relay) {
      rules.pairs.emplace(across_.begin(), across_.end());
      rules.may_return = false;
      rules.own_first = sketch_.relay->own_first;
      if (sketch_.relay->carries)
        for (const auto& [sender, homes] : *sketch_.relay->carries)
          (rules.carries ? *rules.carries : rules.carries.emplace())[sender] = {homes.begin(),
                                                                                homes.end()};
    }
    rules.rotations = sketch_.rotations;
    rules.trees_per_member = sketch_.chunks_per_rank;
    rules.preference = sketch_.preference;
    return rules;
  }

  // The bandwidth of a link on which a chunk takes `beta`, in units of the fastest link.
  std::optional<Rational> CapacityFor(const Rational& beta) const {
    return Rational::Make(Wide{fastest_.numerator()} * beta.denominator(),
                          Wide{fastest_.denominator()} * beta.numerator());
  }
  std::int64_t NanosecondsOf(const Rational& time) const {
    return std::llround(time.ToDouble() * static_cast<double>(profile_.time_unit_ns));
  }

  absl::StatusOr<Topology> Build() {
    fastest_ = beta_across_;
    for (const Rational& beta : profile_.betas)
      if (beta.numerator() > 0 && (fastest_.numerator() == 0 || beta < fastest_)) fastest_ = beta;
    if (fastest_.numerator() == 0) return In("nnodes", "there is no link between GPUs at all");
    const double unit = static_cast<double>(profile_.chunk_bytes) * 1e9 /
                        (fastest_.ToDouble() * static_cast<double>(profile_.time_unit_ns));
    if (!(unit >= 1) || !(unit <= static_cast<double>(kUnitBytesPerSecondMax)))
      return In("node_betas_list", fmt::format("the fastest link has {:g} bytes/s, which is out of "
                                               "range; check the size of a chunk and the time unit",
                                               unit));
    if (absl::Status status = CheckCosts(); !status.ok()) return status;
    TopologyBuilder builder(fmt::format("{} x {}", profile_.name, sketch_.nodes),
                            std::llround(unit), 0, false);
    for (std::uint32_t i = 0; i < sketch_.nodes * profile_.gpus; ++i)
      builder.AddNode({fmt::format("g{}", i), NodeKind::kMember});
    for (std::uint32_t node = 0; node < sketch_.nodes; ++node) AddLinksWithin(node, builder);
    if (sketch_.nodes == 2) AddLinksBetweenTwo(builder);
    if (sketch_.nodes > 2) AddLinksBetweenPorts(builder);
    absl::StatusOr<Topology> topology = builder.Build();
    if (!topology.ok())
      return absl::InvalidArgumentError(
          fmt::format("the expanded topology: {}", std::string(topology.status().message())));
    return topology;
  }

  absl::Status CheckCosts() const {
    const Rational latest = std::max(profile_.alpha, LatencyAcross());
    if (latest.ToDouble() * static_cast<double>(profile_.time_unit_ns) >
        static_cast<double>(kLatencyNsMax))
      return In("alpha",
                fmt::format("the latency is longer than {}", HumanDuration(kLatencyNsMax)));
    std::vector<Rational> betas = profile_.betas;
    betas.push_back(beta_across_);
    for (const Rational& beta : betas) {
      if (beta.ToDouble() * static_cast<double>(profile_.time_unit_ns) > kChunkNsMax)
        return In("the profile", "a chunk takes longer than 1 day on a link; check the time unit");
      if (beta.numerator() > 0 && !CapacityFor(beta))
        return In("the profile", "the costs of links differ too much; round them");
    }
    return absl::OkStatus();
  }

  Rational LatencyAcross() const {
    return profile_.remote ? profile_.remote->alpha : profile_.alpha;
  }

  void AddLinksWithin(std::uint32_t node, TopologyBuilder& builder) const {
    const std::uint32_t first = node * profile_.gpus;
    const std::int64_t latency_ns = NanosecondsOf(profile_.alpha);
    for (std::size_t i = 0; i < sketch_.switches.size(); ++i) {
      const NodeIndex hub = builder.AddNode({fmt::format("n{}.s{}", node, i), NodeKind::kSwitch});
      const std::vector<std::uint32_t>& places = sketch_.switches[i];
      const Rational capacity = *CapacityFor(profile_.Beta(places[0], places[1]));
      for (const std::uint32_t place : places) {
        builder.AddLink(NodeAt(first + place), hub, capacity, latency_ns / 2);
        builder.AddLink(hub, NodeAt(first + place), capacity, latency_ns - latency_ns / 2);
      }
    }
    for (std::uint32_t from = 0; from < profile_.gpus; ++from)
      for (std::uint32_t to = 0; to < profile_.gpus; ++to) {
        const Rational& beta = profile_.Beta(from, to);
        const bool is_switched = switch_of_[from] && switch_of_[from] == switch_of_[to];
        if (beta.numerator() == 0 || is_switched) continue;
        builder.AddLink(NodeAt(first + from), NodeAt(first + to), *CapacityFor(beta), latency_ns);
      }
  }

  void AddLinksBetweenTwo(TopologyBuilder& builder) const {
    const std::uint32_t gpus = profile_.gpus;
    const Rational capacity = *CapacityFor(beta_across_);
    const std::int64_t latency_ns = NanosecondsOf(LatencyAcross());
    for (const auto& [from, to] : across_) {
      builder.AddLink(NodeAt(from), NodeAt(gpus + to), capacity, latency_ns);
      builder.AddLink(NodeAt(gpus + from), NodeAt(to), capacity, latency_ns);
    }
  }

  void AddLinksBetweenPorts(TopologyBuilder& builder) const {
    const std::uint32_t gpus = profile_.gpus;
    const Rational capacity = *CapacityFor(beta_across_);
    const std::int64_t latency_ns = NanosecondsOf(LatencyAcross());
    std::vector<std::optional<NodeIndex>> out(std::size_t{sketch_.nodes} * gpus);
    std::vector<std::optional<NodeIndex>> in(out.size());
    const auto port = [&](std::uint32_t rank, std::string_view name,
                          std::vector<std::optional<NodeIndex>>& ports) {
      if (!ports[rank]) {
        ports[rank] = builder.AddNode({fmt::format("g{}.{}", rank, name), NodeKind::kSwitch});
        const bool is_out = &ports == &out;
        builder.AddLink(is_out ? NodeAt(rank) : *ports[rank], is_out ? *ports[rank] : NodeAt(rank),
                        capacity, 0);
      }
      return *ports[rank];
    };
    for (std::uint32_t a = 0; a < sketch_.nodes; ++a)
      for (std::uint32_t b = 0; b < sketch_.nodes; ++b)
        for (const auto& [from, to] : across_)
          if (a != b) {
            const NodeIndex sender = port(a * gpus + from, "out", out);
            const NodeIndex receiver = port(b * gpus + to, "in", in);
            builder.AddLink(sender, receiver, capacity, latency_ns);
          }
  }

  const TacclSketch& sketch_;
  const TacclProfile& profile_;
  std::vector<std::optional<std::size_t>> switch_of_;            // by place
  std::vector<std::pair<std::uint32_t, std::uint32_t>> across_;  // sender and receiver, places
  Rational beta_across_;
  Rational time_across_;
  Rational fastest_;
  std::size_t pairs_ = 0;
  std::size_t pairs_across_ = 0;
};

}  // namespace

absl::StatusOr<ExpandedSketch> Expand(const TacclSketch& sketch, const TacclProfile& profile) {
  return Expander(sketch, profile).Run();
}

}  // namespace phub::plan
