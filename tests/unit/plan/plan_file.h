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
    std::uint32_t step = 0;
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
                          json.at("paths").at(edge.at("path").get<std::size_t>()),
                          edge.at("step")});
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

// The time of an all-gather with the plan's gather trees, in seconds, in the alpha-beta model: a
// transfer occupies all links of its path for its bytes / the lowest bandwidth, and arrives after
// the sum of their latencies. A link sends one transfer at a time, in the order of steps.
inline double AllGatherSeconds(const PlanFile& plan, const std::string& topology_json,
                               double bytes) {
  struct FileLink {
    double bytes_per_s = 0, latency_s = 0, free_s = 0;
  };
  const nlohmann::json json = nlohmann::json::parse(topology_json);
  std::map<PlanFile::Ends, FileLink> links;
  for (const auto& link : json.at("links"))
    links[{link.at("from"), link.at("to")}] = {
        PlanFile::Number(link.at("bandwidth")) * PlanFile::Number(json.at("unit_bytes_per_s")),
        PlanFile::Number(link.at("latency_ns")) * 1e-9, 0};
  struct Transfer {
    std::uint32_t step;
    std::size_t tree;
    const PlanFile::FileEdge* edge;
  };
  std::vector<Transfer> transfers;
  std::map<std::pair<std::size_t, std::string>, double> has_since_s;
  for (std::size_t tree = 0; tree < plan.trees.size(); ++tree) {
    has_since_s[{tree, plan.trees[tree].home}] = 0;
    for (const auto& edge : plan.trees[tree].gather) transfers.push_back({edge.step, tree, &edge});
  }
  std::stable_sort(transfers.begin(), transfers.end(),
                   [](const Transfer& a, const Transfer& b) { return a.step < b.step; });
  double end_s = 0;
  for (const Transfer& transfer : transfers) {
    std::vector<FileLink*> path;
    double start_s = has_since_s.at({transfer.tree, transfer.edge->from});
    double slowest = 1e300, latency_s = 0;
    for (std::size_t i = 0; i + 1 < transfer.edge->nodes.size(); ++i) {
      path.push_back(&links.at({transfer.edge->nodes[i], transfer.edge->nodes[i + 1]}));
      start_s = std::max(start_s, path.back()->free_s);
      slowest = std::min(slowest, path.back()->bytes_per_s);
      latency_s += path.back()->latency_s;
    }
    const double sent_s = start_s + bytes * plan.trees[transfer.tree].share / slowest;
    for (FileLink* link : path) link->free_s = sent_s;
    has_since_s[{transfer.tree, transfer.edge->to}] = sent_s + latency_s;
    end_s = std::max(end_s, sent_s + latency_s);
  }
  return end_s;
}

}  // namespace phub::plan
