#include "server/control/shared_settings.h"

#include <fmt/format.h>
#include <openssl/sha.h>

#include <array>

#include "common/base/printable.h"
#include "common/plan/topology_json.h"
#include "common/wire/message.h"

namespace phub::server {
namespace {

// An envelope has room for the longest message and for this (kPeerMessageBytesMax).
constexpr std::size_t kSettingsMax = 1024;
constexpr std::size_t kSettingsBytesMax = 32 << 10;
constexpr std::size_t kDigestShown = 12;

std::string VersionRange(std::uint32_t min, std::uint32_t max) {
  return min == max ? fmt::format("{}", min) : fmt::format("{} to {}", min, max);
}

NamedValues CommonSettings(const ControlOptions& options) {
  return {{"control protocol", VersionRange(kProtocolVersionMin, kProtocolVersionMax)},
          {"lane protocol", VersionRange(wire::kLaneVersionMin, wire::kLaneVersion)},
          {"chunk_bytes", fmt::format("{}", options.chunk_bytes)},
          {"staging_bytes_per_lane", fmt::format("{}", options.staging_bytes_per_lane)}};
}

std::string DescribeNode(const plan::Node& node) {
  std::string text = fmt::format("{} ({})", node.name, plan::KindName(node.kind));
  if (node.place) text += fmt::format(" at {}, {}", node.place->x, node.place->y);
  return text;
}

void AddTopology(const ControlOptions& options, NamedValues& values) {
  if (options.topology_is_measured) return values.push_back({"topology", "probe"});
  const plan::Topology& topology = *options.rack_topology;
  values.push_back({"topology", topology.name()});
  values.push_back({"topology unit_bytes_per_s", fmt::format("{}", topology.unit_bytes_per_s())});
  values.push_back({"topology members_forward", fmt::format("{}", topology.members_forward())});
  for (std::size_t i = 0; i < topology.nodes().size() && values.size() < kSettingsMax; ++i) {
    values.push_back({fmt::format("topology node {}", i), DescribeNode(topology.nodes()[i])});
  }
  for (std::uint32_t i = 0; i < topology.links().size() && values.size() < kSettingsMax; ++i) {
    values.push_back({fmt::format("topology link {}", topology.LinkName(plan::LinkIndex{i})),
                      fmt::format("bandwidth {}, latency {} ns",
                                  topology.CapacityOf(plan::LinkIndex{i}).ToString(),
                                  topology.link(plan::LinkIndex{i}).latency_ns)});
  }
}

// A daemon that came back at another endpoint still agrees with the others of its view.
std::string DaemonsForHash(const ControlOptions& options,
                           const std::vector<std::string>& endpoints) {
  if (options.view != 0) return fmt::format("view {} {}\n", options.view, options.view_digest);
  std::string text;
  for (const std::string& endpoint : endpoints) text += endpoint + "\n";
  return text;
}

void AddView(const ControlOptions& options, NamedValues& values) {
  if (options.view == 0) return;
  values.push_back({"view", fmt::format("{}", options.view)});
  // Equal numbers with different contents: etcd was restored, or the view was removed.
  values.push_back({"digest of the view", options.view_digest.substr(0, kDigestShown)});
}

std::string TopologyForHash(const ControlOptions& options) {
  // Every measurement differs, so the hash only covers that the topology is measured.
  return options.topology_is_measured ? "topology measured\n"
                                      : plan::TopologyToJson(*options.rack_topology);
}

void LimitSize(NamedValues& values) {
  std::size_t bytes = 0;
  std::size_t count = 0;
  while (count < values.size() && count < kSettingsMax && bytes <= kSettingsBytesMax) {
    bytes += values[count].name.size() + values[count].value.size();
    ++count;
  }
  values.resize(count);
}

// A prefix of a hash, for messages.
std::string Shortened(const std::string& hash) {
  if (hash.empty()) return "none";
  return IsName(hash) ? hash.substr(0, 12) : "?";
}

}  // namespace

std::string Sha256Hex(std::string_view text) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest{};
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data());
  std::string hash;
  for (const unsigned char byte : digest) hash += fmt::format("{:02x}", byte);
  return hash;
}

std::string HashOfConfiguration(const ControlOptions& options) {
  std::string text =
      fmt::format("control {}..{}\nlanes {}..{}\nchunk_bytes {}\nstaging {}\n", kProtocolVersionMin,
                  kProtocolVersionMax, wire::kLaneVersionMin, wire::kLaneVersion,
                  options.chunk_bytes, options.staging_bytes_per_lane);
  text += DaemonsForHash(options, options.rack_endpoints);
  if (!options.racks.empty()) {
    text += fmt::format("rack {} of {}, aggregators {}\n", options.rack_index, options.racks.size(),
                        options.aggregator_count);
    text += TopologyForHash(options);
  }
  return Sha256Hex(text);
}

std::string HashOfRacks(const ControlOptions& options, std::size_t core_count) {
  std::string text = fmt::format(
      "control {}..{}\nlanes {}..{}\nchunk_bytes {}\nstaging {}\ncore_loops {}\n",
      kProtocolVersionMin, kProtocolVersionMax, wire::kLaneVersionMin, wire::kLaneVersion,
      options.chunk_bytes, options.staging_bytes_per_lane, core_count);
  text += fmt::format("daemon {} of {}\n", options.rack_self, options.daemons_in_rack());
  text += DaemonsForHash(options, options.racks);
  text += fmt::format("aggregators {}\n", options.aggregator_count);
  text += TopologyForHash(options);
  return Sha256Hex(text);
}

NamedValues SettingsOfRack(const ControlOptions& options) {
  NamedValues values = CommonSettings(options);
  AddView(options, values);
  for (std::size_t i = 0; i < options.rack_endpoints.size() && options.view == 0; ++i) {
    values.push_back({fmt::format("daemons[{}]", i), options.rack_endpoints[i]});
  }
  if (!options.racks.empty()) {
    values.push_back(
        {"position in racks", fmt::format("{} of {}", options.rack_index, options.racks.size())});
    values.push_back({"aggregators", fmt::format("{}", options.aggregator_count)});
    AddTopology(options, values);
  }
  LimitSize(values);
  return values;
}

NamedValues SettingsOfRacks(const ControlOptions& options, std::size_t core_count) {
  NamedValues values = CommonSettings(options);
  values.push_back({"number of core loops", fmt::format("{}", core_count)});
  AddView(options, values);
  for (std::size_t i = 0; i < options.racks.size() && options.view == 0; ++i) {
    values.push_back({fmt::format("racks[{}]", i), options.racks[i]});
  }
  values.push_back({"aggregators", fmt::format("{}", options.aggregator_count)});
  AddTopology(options, values);
  LimitSize(values);
  return values;
}

void Write(const NamedValues& values, SharedSettingList& list) {
  for (const NamedValue& each : values) {
    v1::SharedSetting& setting = *list.Add();
    // Protobuf rejects text that is not valid UTF-8, and names of nodes may be such text.
    setting.set_name(Printable(each.name));
    setting.set_value(Printable(each.value));
  }
}

NamedValues ReadSettings(const SharedSettingList& list) {
  NamedValues values;
  for (const v1::SharedSetting& each : list) {
    if (values.size() == kSettingsMax) break;
    values.push_back({each.name(), each.value()});
  }
  return values;
}

std::string DescribeDifference(const Configuration& one, const Configuration& other) {
  if (!one.values.empty() && !other.values.empty()) {
    const std::string differences =
        DescribeDifferences(one.values, one.whose, other.values, other.whose);
    if (!differences.empty()) return differences;
  }
  return fmt::format("{} has configuration {}, {} has {}", one.whose, Shortened(one.hash),
                     other.whose, Shortened(other.hash));
}

}  // namespace phub::server
