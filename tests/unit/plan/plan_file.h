// Recomputes figures of a plan from its file alone, with none of the product's code for plans.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace phub::plan {

// A plan file and a topology file (phub.plan.v1, phub.topology.v1), by names.
struct PlanFile {
  using Ends = std::pair<std::string, std::string>;
  struct FileEdge {
    std::string from, to;
    std::vector<std::string> nodes;  // of its path
  };
  struct FileTree {
    std::string home;
    double share = 0;
    std::vector<FileEdge> reduce, gather;
  };

  static double Number(const nlohmann::json& value) {
    if (value.is_number()) return value.get<double>();
    const std::string text = value.get<std::string>();
    const std::size_t slash = text.find('/');
    const double numerator = std::atof(text.c_str());
    return slash == std::string::npos ? numerator : numerator / std::atof(text.c_str() + slash + 1);
  }

  explicit PlanFile(const std::string& text) {
    const nlohmann::json json = nlohmann::json::parse(text);
    for (const auto& entry : json.at("trees")) {
      FileTree& tree = trees.emplace_back();
      tree.home = entry.at("home");
      tree.share = Number(entry.at("share"));
      for (const bool reduces : {true, false})
        for (const auto& edge : entry.at(reduces ? "reduce" : "gather"))
          (reduces ? tree.reduce : tree.gather)
              .push_back({edge.at("from"), edge.at("to"),
                          json.at("paths").at(edge.at("path").get<std::size_t>())});
    }
  }

  // The parts of all data that each link carries, in both phases.
  std::map<Ends, double> Loads() const {
    std::map<Ends, double> loads;
    for (const FileTree& tree : trees)
      for (const auto* edges : {&tree.reduce, &tree.gather})
        for (const FileEdge& edge : *edges)
          for (std::size_t i = 0; i + 1 < edge.nodes.size(); ++i)
            loads[{edge.nodes[i], edge.nodes[i + 1]}] += tree.share;
    return loads;
  }

  std::vector<FileTree> trees;
};

// Bandwidths in unit links, by the names of the ends.
inline std::map<PlanFile::Ends, double> Bandwidths(const std::string& topology_json) {
  std::map<PlanFile::Ends, double> bandwidths;
  const nlohmann::json json = nlohmann::json::parse(topology_json);
  for (const auto& link : json.at("links"))
    bandwidths[{link.at("from"), link.at("to")}] = PlanFile::Number(link.at("bandwidth"));
  return bandwidths;
}

// The time of the busiest link, from bandwidth only. The unit is all data on a unit link.
inline double BusiestTime(const PlanFile& plan, const std::string& topology_json) {
  double busiest = 0;
  const auto bandwidths = Bandwidths(topology_json);
  for (const auto& [ends, load] : plan.Loads())
    busiest = std::max(busiest, load / bandwidths.at(ends));
  return busiest;
}

}  // namespace phub::plan
