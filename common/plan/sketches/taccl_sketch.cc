#include "common/plan/sketches/taccl_sketch.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "common/base/printable.h"
#include "common/plan/json_reader.h"
#include "common/plan/sketches/taccl_profile.h"
#include "common/plan/topology.h"
#include "fmt/format.h"

namespace phub::plan {
namespace {

absl::StatusOr<const Json*> ObjectField(const Json& root, const char* field) {
  const auto found = root.find(field);
  if (found == root.end() || !found->is_object())
    return JsonError(field, found == root.end() ? "is missing" : "must be an object {...}");
  return &*found;
}

// A place within a node. Whether the node has so many GPUs is checked with the profile.
absl::StatusOr<std::uint32_t> PlaceFrom(const Json& value, std::string_view where) {
  if (!value.is_number_integer() || !(value.get<double>() >= 0) ||
      value.get<double>() >= kGpusPerNodeMax)
    return JsonError(
        where, fmt::format("must list GPUs of a node, integers from 0 to {}", kGpusPerNodeMax - 1));
  return value.get<std::uint32_t>();
}

absl::StatusOr<std::vector<std::uint32_t>> PlacesFrom(const Json& list, std::string_view where) {
  if (!list.is_array() || list.empty())
    return JsonError(where, "must be a list of GPUs that is not empty");
  std::vector<std::uint32_t> places;
  std::set<std::uint32_t> known;
  for (const Json& value : list) {
    const absl::StatusOr<std::uint32_t> place = PlaceFrom(value, where);
    if (!place.ok()) return place.status();
    if (!known.insert(*place).second)
      return JsonError(where, fmt::format("GPU {} is listed twice", *place));
    places.push_back(*place);
  }
  return places;
}

absl::StatusOr<PlaceLists> PlaceListsFrom(const Json& value, std::string_view where) {
  if (!value.is_object() || value.empty())
    return JsonError(where, "must be an object {\"SENDER\": [GPU, ...]} that is not empty");
  PlaceLists lists;
  for (const auto& [key, list] : value.items()) {
    std::uint32_t place = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), place);
    if (error != std::errc{} || place >= kGpusPerNodeMax || std::to_string(place) != key)
      return JsonError(where, fmt::format("'{}' is not the number of a GPU", Printable(key, 64)));
    const absl::StatusOr<std::vector<std::uint32_t>> places =
        PlacesFrom(list, fmt::format("{}.{}", where, place));
    if (!places.ok()) return places.status();
    lists[place] = *places;
  }
  return lists;
}

class SketchReader {
 public:
  absl::StatusOr<TacclSketch> Read(const Json& root) {
    if (absl::Status status = CheckObject(root, "",
                                          {"nnodes", "intranode_sketch", "internode_sketch",
                                           "symmetry_offsets", "hyperparameters"});
        !status.ok())
      return status;
    const absl::StatusOr<std::int64_t> nodes = IntegerField(root, "", "nnodes", 1, kMembersMax);
    if (!nodes.ok()) return nodes.status();
    sketch_.nodes = static_cast<std::uint32_t>(*nodes);
    for (absl::Status (SketchReader::*read)(const Json&) :
         {&SketchReader::ReadNode, &SketchReader::ReadRelay, &SketchReader::ReadSymmetry,
          &SketchReader::ReadHyperParameters})
      if (absl::Status status = (this->*read)(root); !status.ok()) return status;
    return std::move(sketch_);
  }

 private:
  absl::Status ReadNode(const Json& root) {
    constexpr std::string_view kWhere = "intranode_sketch";
    const absl::StatusOr<const Json*> object = ObjectField(root, "intranode_sketch");
    if (!object.ok()) return object.status();
    const absl::StatusOr<std::string> strategy = StringField(**object, kWhere, "strategy");
    if (!strategy.ok()) return strategy.status();
    if (*strategy == "switch") return ReadSwitches(**object);
    if (*strategy == "minmax") {
      sketch_.preference = PlanPreference::kLowestPeak;
    } else if (*strategy == "maxmin") {
      sketch_.preference = PlanPreference::kHighestLow;
    } else if (*strategy != "none") {
      return JsonError("intranode_sketch.strategy",
                       fmt::format("'{}' is not supported (known: none, switch, minmax, maxmin)",
                                   Printable(*strategy, 64)));
    }
    return CheckObject(**object, kWhere, {"strategy"});
  }

  absl::Status ReadSwitches(const Json& object) {
    if (absl::Status status = CheckObject(object, "intranode_sketch",
                                          {"strategy", "switches", "switch_hyperedge_strategy"});
        !status.ok())
      return status;
    const absl::StatusOr<const Json*> list = ArrayField(object, "intranode_sketch", "switches");
    if (!list.ok()) return list.status();
    if ((*list)->empty())
      return JsonError("intranode_sketch.switches", "must name at least one switch");
    std::map<std::uint32_t, std::size_t> switch_of;
    for (std::size_t i = 0; i < (*list)->size(); ++i) {
      const std::string where = fmt::format("intranode_sketch.switches[{}]", i);
      const absl::StatusOr<std::vector<std::uint32_t>> places = PlacesFrom((**list)[i], where);
      if (!places.ok()) return places.status();
      if (places->size() < 2) return JsonError(where, "a switch must connect at least 2 GPUs");
      for (const std::uint32_t place : *places)
        if (const auto [found, is_new] = switch_of.emplace(place, i); !is_new)
          return JsonError(where, fmt::format("GPU {} is also in switches[{}]; switches that "
                                              "overlap are not supported",
                                              place, found->second));
      sketch_.switches.push_back(*places);
    }
    return ReadSwitchStrategies(object);
  }

  absl::Status ReadSwitchStrategies(const Json& object) {
    constexpr std::string_view kWhere = "intranode_sketch.switch_hyperedge_strategy";
    const absl::StatusOr<const Json*> list =
        ArrayField(object, "intranode_sketch", "switch_hyperedge_strategy");
    if (!list.ok()) return list.status();
    if ((*list)->size() != sketch_.switches.size())
      return JsonError(kWhere, fmt::format("has {} entries for {} switch(es)", (*list)->size(),
                                           sketch_.switches.size()));
    for (const Json& entry : **list) {
      const std::string text =
          entry.is_string() ? entry.get<std::string>() : entry.dump(-1, ' ', true);
      if (text != "uc-min" && text != "uc-max")
        return JsonError(kWhere, fmt::format("'{}' is not supported (known: uc-min, uc-max)",
                                             Printable(text, 64)));
      const auto preference =
          text == "uc-min" ? PlanPreference::kFewestPairs : PlanPreference::kMostPairs;
      if (sketch_.preference != PlanPreference::kAny && sketch_.preference != preference)
        return JsonError(kWhere, "must be the same for all switches");
      sketch_.preference = preference;
    }
    return absl::OkStatus();
  }

  absl::Status ReadRelay(const Json& root) {
    if (sketch_.nodes == 1) {
      if (root.contains("internode_sketch"))
        return JsonError("internode_sketch", "is only for more than one node; nnodes is 1");
      return absl::OkStatus();
    }
    const absl::StatusOr<const Json*> object = ObjectField(root, "internode_sketch");
    if (!object.ok()) return object.status();
    if (absl::Status status = CheckObject(
            **object, "internode_sketch",
            {"strategy", "internode_conn", "gpus_to_sender_rev_map", "enforce_ordering"});
        !status.ok())
      return status;
    const absl::StatusOr<std::string> strategy =
        StringField(**object, "internode_sketch", "strategy");
    if (!strategy.ok()) return strategy.status();
    if (*strategy != "relay")
      return JsonError(
          "internode_sketch.strategy",
          fmt::format("'{}' is not supported (known: relay)", Printable(*strategy, 64)));
    TacclSketch::Relay& relay = sketch_.relay.emplace(TacclSketch::Relay{});
    if (absl::Status status = ReadConnections(**object, relay); !status.ok()) return status;
    return ReadSenders(**object, relay);
  }

  static absl::Status ReadConnections(const Json& object, TacclSketch::Relay& relay) {
    constexpr std::string_view kWhere = "internode_sketch.internode_conn";
    const auto found = object.find("internode_conn");
    if (found == object.end()) return JsonError(kWhere, "is missing");
    if (found->is_string()) {
      const auto text = found->get<std::string>();
      if (text != "fully-connected" && text != "direct-map")
        return JsonError(kWhere, fmt::format("'{}' is not supported (known: fully-connected, "
                                             "direct-map, or an object)",
                                             Printable(text, 64)));
      relay.connect = text == "direct-map" ? TacclSketch::Connect::kDirectMap
                                           : TacclSketch::Connect::kFullyConnected;
      return absl::OkStatus();
    }
    absl::StatusOr<PlaceLists> lists = PlaceListsFrom(*found, kWhere);
    if (!lists.ok()) return lists.status();
    const auto& [first, receivers] = *lists->begin();
    for (const auto& [sender, list] : *lists)
      if (list.size() != receivers.size())
        return JsonError(kWhere, fmt::format("GPU {} sends to {} GPU(s) and GPU {} to {}; all "
                                             "senders must have the same fan-out",
                                             first, receivers.size(), sender, list.size()));
    relay.connections = *std::move(lists);
    return absl::OkStatus();
  }

  static absl::Status ReadSenders(const Json& object, TacclSketch::Relay& relay) {
    if (const auto found = object.find("gpus_to_sender_rev_map"); found != object.end()) {
      absl::StatusOr<PlaceLists> lists =
          PlaceListsFrom(*found, "internode_sketch.gpus_to_sender_rev_map");
      if (!lists.ok()) return lists.status();
      relay.carries = *std::move(lists);
    }
    const absl::StatusOr<bool> own_first =
        FlagField(object, "internode_sketch", "enforce_ordering");
    if (!own_first.ok()) return own_first.status();
    if (*own_first && !relay.carries)
      return JsonError("internode_sketch.enforce_ordering", "needs gpus_to_sender_rev_map");
    relay.own_first = *own_first;
    return absl::OkStatus();
  }

  absl::Status ReadSymmetry(const Json& root) {
    const absl::StatusOr<const Json*> list = ArrayField(root, "", "symmetry_offsets");
    if (!list.ok()) return list.status();
    if ((*list)->size() > 64) return JsonError("symmetry_offsets", "has more than 64 entries");
    for (std::size_t i = 0; i < (*list)->size(); ++i) {
      const Json& pair = (**list)[i];
      const auto is_number = [&](const Json& value) {
        return value.is_number_integer() && value.get<double>() >= 1 &&
               value.get<double>() <= kMembersMax;
      };
      if (!pair.is_array() || pair.size() != 2 || !is_number(pair[0]) || !is_number(pair[1]) ||
          pair[0].get<std::uint32_t>() >= pair[1].get<std::uint32_t>())
        return JsonError(fmt::format("symmetry_offsets[{}]", i),
                         "must be [OFFSET, RANKS], with 1 <= OFFSET < RANKS");
      sketch_.rotations.push_back({pair[0].get<std::uint32_t>(), pair[1].get<std::uint32_t>()});
    }
    return absl::OkStatus();
  }

  absl::Status ReadHyperParameters(const Json& root) {
    const absl::StatusOr<const Json*> object = ObjectField(root, "hyperparameters");
    if (!object.ok()) return object.status();
    if (absl::Status status = CheckObject(**object, "hyperparameters", {"input_chunkup"});
        !status.ok())
      return status;
    const absl::StatusOr<std::int64_t> chunks =
        IntegerField(**object, "hyperparameters", "input_chunkup", 1, kChunksPerRankMax);
    if (!chunks.ok()) return chunks.status();
    sketch_.chunks_per_rank = static_cast<std::uint32_t>(*chunks);
    return absl::OkStatus();
  }

  TacclSketch sketch_;
};

}  // namespace

absl::StatusOr<TacclSketch> ParseTacclSketch(std::string_view text) {
  const absl::StatusOr<Json> root = ParseJson(text, kSketchTextBytesMax);
  if (!root.ok()) return root.status();
  return SketchReader().Read(*root);
}

}  // namespace phub::plan
