#include "common/plan/generators.h"

#include <array>
#include <charconv>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/units.h"
#include "common/plan/groups/fred.h"
#include "common/plan/random_topology.h"
#include "common/plan/topology_builder.h"
#include "fmt/format.h"

namespace phub::plan {
namespace {

struct Spec {
  std::string_view text;
  std::string_view family;
  std::vector<std::int64_t> shape;  // every dimension >= 1
  std::optional<Rational> oversubscription;
  std::int64_t bandwidth = kDefaultUnitBytesPerSecond;
  std::int64_t latency_ns = kDefaultLatencyNs;
  bool aggregate = false;
  std::uint64_t seed = 1;
  std::optional<std::int64_t> switches;
  std::optional<std::int64_t> spines;
  std::uint32_t middles = 3;  // fred
};

absl::Status Bad(const Spec& spec, std::string_view what) {
  return absl::InvalidArgumentError(fmt::format("topology '{}': {}", spec.text, what));
}

template <typename Number>
bool ParseNumber(std::string_view text, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size();
}

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

absl::Status ParseOption(std::string_view option, Spec& spec) {
  const std::size_t equals = option.find('=');
  const std::string_view key = option.substr(0, equals);
  const std::string_view value =
      equals == std::string_view::npos ? std::string_view{} : option.substr(equals + 1);
  if (key == "aggregate" && value.empty()) {
    spec.aggregate = true;
    return absl::OkStatus();
  }
  if (key == "bandwidth") {
    const auto bandwidth = ParseBandwidth(value);
    if (!bandwidth)
      return Bad(spec, fmt::format("'{}' is not a bandwidth, such as 100Gbit/s", value));
    spec.bandwidth = *bandwidth;
    return absl::OkStatus();
  }
  if (key == "latency") {
    const auto latency = ParseDuration(value);
    if (!latency) return Bad(spec, fmt::format("'{}' is not a latency, such as 500ns", value));
    spec.latency_ns = *latency;
    return absl::OkStatus();
  }
  if (spec.family == "random" && key == "seed" && ParseNumber(value, spec.seed))
    return absl::OkStatus();
  if (std::int64_t count = 0; spec.family == "random" && key == "switches" &&
                              ParseNumber(value, count) && count >= 0 && count <= 4096) {
    spec.switches = count;
    return absl::OkStatus();
  }
  if (std::int64_t count = 0; spec.family == "fattree" && key == "spines" &&
                              ParseNumber(value, count) && count >= 1 && count <= 4096) {
    spec.spines = count;
    return absl::OkStatus();
  }
  const std::string_view more = spec.family == "random"    ? ", seed=, switches="
                                : spec.family == "fattree" ? ", spines="
                                                           : "";
  return Bad(spec, fmt::format("{1} has no option '{0}'; it has bandwidth=, latency=, aggregate{2}",
                               option, spec.family, more));
}

absl::StatusOr<Spec> ParseSpec(std::string_view text) {
  Spec spec;
  spec.text = text.substr(0, 200);
  const std::size_t colon = text.find(':');
  spec.family = spec.text.substr(0, colon);
  if (colon == std::string_view::npos || text.size() > 200)
    return Bad(spec, "expected FAMILY:SHAPE, such as torus:4x4 or racks:4x8@4");
  const std::vector<std::string_view> fields = Split(text.substr(colon + 1), ',');
  std::string_view shape = fields.front();
  if (const std::size_t at = shape.find('@'); at != std::string_view::npos) {
    const std::string_view factor = shape.substr(at + 1);
    spec.oversubscription = Rational::Parse(factor);
    if (!spec.oversubscription || spec.oversubscription->numerator() < 1 ||
        *spec.oversubscription > Rational(1'000'000) || spec.oversubscription->denominator() > 1000)
      return Bad(spec, fmt::format("'@{}' is not an oversubscription, such as @4 or @3/2", factor));
    shape = shape.substr(0, at);
  }
  for (const std::string_view dimension : Split(shape, 'x')) {
    std::int64_t size = 0;
    if (!ParseNumber(dimension, size) || size < 1 || size > static_cast<std::int64_t>(kNodesMax) ||
        spec.shape.size() >= 8)
      return Bad(spec, fmt::format("'{}' is not a shape, such as 4x4, with numbers from 1 to {}",
                                   shape, kNodesMax));
    spec.shape.push_back(size);
  }
  std::size_t first_option = 1;
  if (spec.family == "fred") {
    if (fields.size() < 2 || !ParseNumber(fields[1], spec.middles) || spec.middles < 2 ||
        spec.middles > kFredMiddlesMax)
      return Bad(spec, fmt::format("expected fred:PORTS,MIDDLES with 2 to {} middle networks, such "
                                   "as fred:64,3",
                                   kFredMiddlesMax));
    first_option = 2;
  }
  for (std::size_t i = first_option; i < fields.size(); ++i)
    if (absl::Status status = ParseOption(fields[i], spec); !status.ok()) return status;
  return spec;
}

// Grids of any number of dimensions; `wraps` connects the ends of each dimension.
absl::Status BuildGrid(const Spec& spec, bool wraps, TopologyBuilder& builder) {
  std::int64_t count = 1;
  for (const std::int64_t size : spec.shape) {
    count *= size;
    if (count > static_cast<std::int64_t>(kMembersMax))
      return Bad(spec, fmt::format("the topology has more than {} members", kMembersMax));
  }
  const std::int64_t width = spec.shape.back();
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t row = i / width;
    builder.AddMember(Place{static_cast<double>(i % width), static_cast<double>(row)});
  }
  std::int64_t stride = count;
  for (const std::int64_t size : spec.shape) {
    stride /= size;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t at = i / stride % size;
      const bool is_last = at + 1 == size;
      if (is_last && (!wraps || size <= 2)) continue;
      const std::int64_t next = is_last ? i - (size - 1) * stride : i + stride;
      builder.Connect(NodeAt(i), NodeAt(next), Rational(1));
    }
  }
  builder.SetMembersForward();
  return absl::OkStatus();
}

absl::Status BuildSwitch(const Spec& spec, TopologyBuilder& builder) {
  const std::int64_t count = spec.shape[0];
  for (std::int64_t i = 0; i < count; ++i) builder.AddMember(Place{static_cast<double>(i), 1});
  const NodeIndex hub = builder.AddSwitch("s0", Place{static_cast<double>(count - 1) / 2, 0});
  for (std::int64_t i = 0; i < count; ++i) builder.Connect(NodeAt(i), hub, Rational(1));
  return absl::OkStatus();
}

// Adds leaf switches with `hosts` members each, in the order of members, and returns the leaves.
std::vector<NodeIndex> BuildLeaves(std::int64_t leaves, std::int64_t hosts,
                                   TopologyBuilder& builder) {
  for (std::int64_t i = 0; i < leaves * hosts; ++i)
    builder.AddMember(Place{static_cast<double>(i) + static_cast<double>(i / hosts), 2});
  std::vector<NodeIndex> result;
  for (std::int64_t leaf = 0; leaf < leaves; ++leaf) {
    const double middle =
        static_cast<double>(leaf * (hosts + 1)) + static_cast<double>(hosts - 1) / 2;
    result.push_back(builder.AddSwitch(fmt::format("leaf{}", leaf), Place{middle, 1}));
    for (std::int64_t i = 0; i < hosts; ++i)
      builder.Connect(NodeAt(leaf * hosts + i), result.back(), Rational(1));
  }
  return result;
}

absl::Status BuildFatTree(const Spec& spec, TopologyBuilder& builder) {
  const std::int64_t leaf_count = spec.shape[0], hosts = spec.shape[1];
  const Rational factor = spec.oversubscription.value_or(Rational(1));
  const auto capacity = Rational::Make(factor.denominator(), factor.numerator());
  const std::vector<NodeIndex> leaves = BuildLeaves(leaf_count, hosts, builder);
  const double span = static_cast<double>(leaf_count * (hosts + 1) - 2);
  const std::int64_t spines = spec.spines.value_or(hosts);
  if (2 * leaf_count * (hosts + spines) > static_cast<std::int64_t>(kLinksMax))
    return Bad(spec, fmt::format("the topology has more than {} links", kLinksMax));
  for (std::int64_t i = 0; i < spines; ++i) {
    const double x = span * (static_cast<double>(i) + 0.5) / static_cast<double>(spines);
    const NodeIndex spine = builder.AddSwitch(fmt::format("spine{}", i), Place{x, 0});
    for (const NodeIndex leaf : leaves) builder.Connect(leaf, spine, *capacity);
  }
  return absl::OkStatus();
}

absl::Status BuildRacks(const Spec& spec, TopologyBuilder& builder) {
  const std::int64_t rack_count = spec.shape[0], hosts = spec.shape[1];
  const Rational factor = spec.oversubscription.value_or(Rational(1));
  const auto uplink = Rational::Make(Wide{hosts} * factor.denominator(), factor.numerator());
  const std::vector<NodeIndex> leaves = BuildLeaves(rack_count, hosts, builder);
  const double middle = static_cast<double>(rack_count * (hosts + 1) - 2) / 2;
  const NodeIndex core = builder.AddSwitch("core", Place{middle, 0});
  for (const NodeIndex leaf : leaves) builder.Connect(leaf, core, *uplink);
  return absl::OkStatus();
}

absl::Status BuildBiGraph(const Spec& spec, TopologyBuilder& builder) {
  const std::int64_t hosts = spec.shape[0], switch_count = spec.shape[1];
  if (switch_count % 2 != 0) return Bad(spec, "the number of switches must be even");
  const std::int64_t half = switch_count / 2;
  std::vector<NodeIndex> switches;
  for (std::int64_t i = 0; i < hosts * switch_count; ++i) {
    const bool is_upper = i / hosts < half;
    const std::int64_t column = i - (is_upper ? 0 : half * hosts);
    builder.AddMember(Place{static_cast<double>(column + column / hosts), is_upper ? 0.0 : 3.0});
  }
  for (std::int64_t i = 0; i < switch_count; ++i) {
    const bool is_upper = i < half;
    const double x =
        static_cast<double>((i % half) * (hosts + 1)) + static_cast<double>(hosts - 1) / 2;
    switches.push_back(
        builder.AddSwitch(fmt::format("{}{}", is_upper ? "upper" : "lower", i % half),
                          Place{x, is_upper ? 1.0 : 2.0}));
    for (std::int64_t j = 0; j < hosts; ++j)
      builder.Connect(NodeAt(i * hosts + j), switches.back(), Rational(1));
  }
  for (std::int64_t upper = 0; upper < half; ++upper)
    for (std::int64_t lower = half; lower < switch_count; ++lower)
      builder.Connect(switches[static_cast<std::size_t>(upper)],
                      switches[static_cast<std::size_t>(lower)], Rational(1));
  return absl::OkStatus();
}

absl::Status BuildFredNetwork(const Spec& spec, TopologyBuilder& builder) {
  const absl::Status status =
      BuildFred({static_cast<std::uint32_t>(spec.shape[0]), spec.middles}, builder);
  return status.ok() ? status : Bad(spec, std::string(status.message()));
}

absl::Status BuildRandom(const Spec& spec, TopologyBuilder& builder) {
  BuildRandomTopology({.members = spec.shape[0],
                       .switches = spec.switches.value_or((spec.shape[0] + 3) / 4),
                       .seed = spec.seed,
                       .aggregate = spec.aggregate},
                      builder);
  return absl::OkStatus();
}

struct Family {
  std::string_view name;
  std::size_t dimensions;  // 0: any number
  bool takes_oversubscription;
  bool has_switches;
  absl::Status (*build)(const Spec&, TopologyBuilder&);
};

constexpr std::array kFamilies = {
    Family{"ring", 1, false, false,
           [](const Spec& s, TopologyBuilder& b) { return BuildGrid(s, true, b); }},
    Family{"mesh", 0, false, false,
           [](const Spec& s, TopologyBuilder& b) { return BuildGrid(s, false, b); }},
    Family{"torus", 0, false, false,
           [](const Spec& s, TopologyBuilder& b) { return BuildGrid(s, true, b); }},
    Family{"switch", 1, false, true, BuildSwitch},
    Family{"fattree", 2, true, true, BuildFatTree},
    Family{"racks", 2, true, true, BuildRacks},
    Family{"bigraph", 2, false, true, BuildBiGraph},
    Family{"random", 1, false, true, BuildRandom},
    Family{"fred", 1, false, true, BuildFredNetwork},
};

absl::Status CheckShape(const Spec& spec, const Family& family) {
  if (family.dimensions != 0 && spec.shape.size() != family.dimensions)
    return Bad(spec, fmt::format("{}: the shape must have {} number(s), separated by x",
                                 family.name, family.dimensions));
  if (spec.oversubscription && !family.takes_oversubscription)
    return Bad(spec, fmt::format("{}: oversubscription (@) is not supported", family.name));
  if (spec.aggregate && !family.has_switches)
    return Bad(
        spec, fmt::format("{}: 'aggregate' needs switches, and this family has none", family.name));
  Wide members = 1;
  for (const std::int64_t size : spec.shape) members *= size;
  if (members > static_cast<Wide>(kMembersMax) || members < 2)
    return Bad(spec, fmt::format("the number of members must be from 2 to {}", kMembersMax));
  return absl::OkStatus();
}

}  // namespace

std::optional<std::int64_t> ParseBandwidth(std::string_view text) {
  constexpr std::string_view kPerSecond = "/s";
  constexpr std::string_view kBit = "bit";
  if (!text.ends_with(kPerSecond)) return std::nullopt;
  text.remove_suffix(kPerSecond.size());
  const bool is_bits = text.ends_with(kBit);
  std::string amount(text);
  if (is_bits) {
    amount.resize(amount.size() - kBit.size());
    amount += 'B';  // "100G" + "B": parsed as bytes, divided by 8 below
  }
  const std::optional<std::uint64_t> parsed = ParseBytes(amount);
  if (!parsed || (is_bits && *parsed % 8 != 0)) return std::nullopt;
  const std::uint64_t bytes = is_bits ? *parsed / 8 : *parsed;
  if (bytes < 1 || bytes > static_cast<std::uint64_t>(kUnitBytesPerSecondMax)) return std::nullopt;
  return static_cast<std::int64_t>(bytes);
}

absl::StatusOr<Topology> Generate(std::string_view text) {
  absl::StatusOr<Spec> spec = ParseSpec(text);
  if (!spec.ok()) return spec.status();
  std::vector<std::string> names;
  for (const Family& family : kFamilies) {
    names.emplace_back(family.name);
    if (family.name != spec->family) continue;
    if (absl::Status status = CheckShape(*spec, family); !status.ok()) return status;
    TopologyBuilder builder(std::string(text), spec->bandwidth, spec->latency_ns, spec->aggregate);
    if (absl::Status status = family.build(*spec, builder); !status.ok()) return status;
    absl::StatusOr<Topology> topology = builder.Build();
    if (!topology.ok()) return Bad(*spec, std::string(topology.status().message()));
    return topology;
  }
  return Bad(*spec,
             fmt::format("unknown family '{}' (known: {})", spec->family, fmt::join(names, ", ")));
}

}  // namespace phub::plan
