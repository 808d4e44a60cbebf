// Flows that share links max-min fairly (progressive filling; Bertsekas and Gallager, "Data
// Networks", section 6.5.2): the flows of the narrowest link get equal shares of it, then they and
// the link are set aside, and so on. One thread; part of the simulator.
//
// Invariant after Update: every flow has a *bottleneck*, a link that is full and on which no flow
// has a higher rate. That is what makes rates max-min fair, and only one set of rates has it. So
// after a change only those flows are computed again whose bottleneck it can touch:
//  - the flows that are new, and those with the highest rate on a full link that lost or gained a
//    flow, or on which a flow is computed again;
//  - where a link becomes a bottleneck below the rate of a flow that was left alone, that flow too,
//    from the start;
//  - but none below the least rate that a flow that left had, or that a new flow must at least get:
//    up to there the filling goes as it went before.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "common/plan/forest.h"

namespace phub::plan {

class FairShare {
 public:
  using Flow = std::uint32_t;  // given by Add, and given again after Remove

  FairShare(std::vector<double> link_bytes_per_s, const std::vector<Path>& paths);

  // As many equal flows as `weight` says over one path; rate() is that of each.
  Flow Add(PathIndex path, std::uint32_t weight);
  void Remove(Flow flow);
  // Computes again what the calls since the last Update changed; the flows whose rate is another
  // now, in a fixed order, with the rate they had. Lent until the next call.
  struct Change {
    Flow flow;
    double rate_before;
  };
  std::span<const Change> Update();
  double rate(Flow flow) const { return rate_[flow]; }
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
  std::vector<std::uint32_t> path_links_;  // of all paths, one after the other
  std::vector<std::size_t> path_start_;
  std::size_t path_links_max_ = 1;

  std::vector<Route> route_;  // by flow, as the next two
  std::vector<double> rate_;  // 0: new
  std::vector<Flow> free_flows_;
  std::vector<std::uint32_t> place_;    // flow, hop -> where in its link's uses
  std::vector<std::vector<Use>> uses_;  // by link
  std::vector<double> load_;            // by link: the sum of its flows' rates

  // What changed since the last Update.
  std::vector<std::uint32_t> dirty_;
  double rate_removed_least_ = kUnknown;

  // What the current Update computes again. Marks belong to the round, or the fill, in them.
  std::uint32_t round_ = 0;
  std::uint32_t fill_ = 0;
  double unchanged_below_ = 0;
  std::size_t passed_ = 0;                    // of touched_links_: their full ones were looked at
  std::vector<std::uint32_t> touched_round_;  // by link: it has such flows
  std::vector<std::uint32_t> flow_round_;     // by flow: it is one
  std::vector<std::uint32_t> unfixed_fill_;   // by flow: it has no new rate yet
  std::vector<std::uint32_t> touched_links_;
  std::vector<Flow> touched_flows_;
  struct Bottleneck {
    std::uint32_t link;
    double share;
  };
  std::vector<Bottleneck> bottlenecks_;
  std::vector<double> new_rate_;        // by flow
  std::vector<double> left_;            // by link
  std::vector<std::uint32_t> unfixed_;  // by link: weight of its flows without a new rate
  std::vector<Change> changes_;
};

}  // namespace phub::plan
