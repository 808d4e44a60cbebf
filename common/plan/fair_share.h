// Max-min fair rates of flows that share links, by progressive filling (Bertsekas and Gallager,
// "Data Networks", section 6.5.2): the flows of the narrowest link get equal shares of it; then
// those flows and the link are removed, and so on. One thread; part of the simulator.
//
// Invariant after Update: every flow has a *bottleneck*, a full link on which no flow has a higher
// rate. Rates are max-min fair if and only if this holds, and they are unique. After a change,
// Update therefore recomputes only flows whose bottleneck may be affected:
//  - new flows;
//  - flows with the highest rate on a full link that lost or gained a flow, or that carries a
//    recomputed flow;
//  - flows with a rate above the share of a link that becomes a bottleneck; the filling then
//    restarts.
// Update never recomputes flows with rates below both the lowest rate of a removed flow and the
// lowest rate that a new flow is certain to get: up to there, the filling is the same as before.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "common/plan/forest.h"

namespace phub::plan {

class FairShare {
 public:
  using Flow = std::uint32_t;  // returned by Add; reused after Remove

  FairShare(std::vector<double> link_bytes_per_s, const std::vector<Path>& paths);

  // Adds `weight` equal flows over one path; rate() is the rate of each.
  Flow Add(PathIndex path, std::uint32_t weight);
  void Remove(Flow flow);
  // Recomputes rates after calls of Add and Remove. Returns the flows whose rate changed, in a
  // deterministic order, with their old rates. Valid until the next call.
  struct Change {
    Flow flow;
    double rate_before;
  };
  std::span<const Change> Update();
  double rate(Flow flow) const { return rate_[flow]; }
  // What all updates have cost so far: flows and links visited.
  std::uint64_t work() const { return work_; }
  std::size_t flow_count() const { return route_.size() - free_flows_.size(); }

 private:
  struct Use {  // one flow on one link
    Flow flow;
    std::uint32_t hop;
  };
  struct Route {
    std::uint32_t path = 0;
    std::uint32_t weight = 0;
  };
  static constexpr double kUnknown = std::numeric_limits<double>::infinity();

  std::span<const std::uint32_t> LinksOf(Flow flow) const {
    const std::uint32_t path = route_[flow].path;
    return std::span(path_links_)
        .subspan(path_start_[path], path_start_[path + 1] - path_start_[path]);
  }
  bool IsFull(std::uint32_t link) const;
  double RateLeast(std::uint32_t link) const;
  void CollectChanged(double rate_removed_least);
  void CollectThroughFullLinks();
  void Collect(std::uint32_t link, double least);
  void Fill();
  void Narrow(std::uint32_t link, double share);
  bool CollectAboveBottlenecks(bool all);
  void Commit();

  std::vector<double> capacity_;           // by link
  std::vector<std::uint32_t> path_links_;  // the links of all paths, concatenated
  std::vector<std::size_t> path_start_;
  std::size_t path_links_max_ = 1;

  std::vector<Route> route_;  // by flow
  std::vector<double> rate_;  // by flow; 0: new
  std::vector<Flow> free_flows_;
  std::vector<std::uint32_t> place_;    // flow, hop -> index in its link's uses
  std::vector<std::vector<Use>> uses_;  // by link
  std::vector<double> load_;            // by link: the sum of its flows' rates

  // Changes since the last Update.
  std::vector<std::uint32_t> dirty_;
  double rate_removed_least_ = kUnknown;

  mutable std::uint64_t work_ = 0;

  // The state of the current Update. A mark is set if it equals round_ or fill_.
  std::uint32_t round_ = 0;
  std::uint32_t fill_ = 0;
  double unchanged_below_ = 0;
  std::size_t passed_ = 0;                    // number of touched_links_ already examined
  std::vector<std::uint32_t> touched_round_;  // by link: it carries a recomputed flow
  std::vector<std::uint32_t> flow_round_;     // by flow: it is recomputed
  std::vector<std::uint32_t> unfixed_fill_;   // by flow: it has no new rate yet
  std::vector<std::uint32_t> touched_links_;
  std::vector<Flow> touched_flows_;
  struct Bottleneck {
    std::uint32_t link;
    double share;
  };
  std::vector<Bottleneck> bottlenecks_;
  std::vector<double> new_rate_;        // by flow
  std::vector<double> left_;            // by link: free bandwidth
  std::vector<std::uint32_t> unfixed_;  // by link: weight of its flows without a new rate
  std::vector<Change> changes_;
};

}  // namespace phub::plan
