// Flows that share links max-min fairly (progressive filling): the flows of the narrowest link get
// equal shares of it, then they and the link are set aside, and so on. After a change only the
// flows that it can touch are computed again: those on the links that changed, and from there on
// through links that are full, because the share of a flow is decided by a full link alone. A link
// that was not full and becomes so draws in its flows too. One thread; part of the simulator.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/plan/topology.h"

namespace phub::plan {

class FairShare {
 public:
  using Flow = std::uint32_t;  // the caller's number, below flow_count

  FairShare(std::vector<double> link_bytes_per_s, std::size_t flow_count,
            std::size_t path_links_max);

  // `path` must stay where it is until Remove.
  void Add(Flow flow, std::span<const LinkIndex> path);
  void Remove(Flow flow);
  // Computes again what the calls since the last Update changed; the flows whose rate is another
  // now, in a fixed order, with the rate they had. Lent until the next call.
  struct Change {
    Flow flow;
    double rate_before;
  };
  std::span<const Change> Update();
  double rate(Flow flow) const { return rate_[flow]; }

 private:
  struct Use {  // one flow on one link
    std::uint32_t slot;
    std::uint32_t hop;
  };
  struct Slot {
    Flow flow = 0;
    std::span<const LinkIndex> path;
  };

  void Collect(LinkIndex link);
  void CollectThrough(bool all);
  bool Fill();
  void Narrow(std::uint32_t link, double share);
  void Commit();
  bool IsFull(LinkIndex link) const;

  std::vector<double> capacity_;
  std::size_t path_links_max_;
  std::vector<double> rate_;            // by flow
  std::vector<std::uint32_t> slot_of_;  // by flow
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_slots_;
  std::vector<std::uint32_t> place_;    // slot, hop -> where in its link's uses
  std::vector<std::vector<Use>> uses_;  // by link
  std::vector<LinkIndex> dirty_;

  std::vector<double> load_;  // by link: the sum of its flows' rates

  // What the current Update computes again. Marks belong to the round that is in them.
  std::uint32_t round_ = 0;
  std::uint32_t fill_ = 0;
  std::vector<std::uint32_t> whole_round_;    // by link: all of its flows are computed again
  std::vector<std::uint32_t> touched_round_;  // by link: some are
  std::vector<std::uint32_t> slot_round_;
  std::vector<std::uint32_t> fixed_fill_;  // by slot
  std::vector<LinkIndex> whole_, touched_, became_full_;
  std::vector<std::uint32_t> touched_slots_;
  std::vector<double> new_rate_;        // by slot
  std::vector<double> left_;            // by link
  std::vector<std::uint32_t> unfixed_;  // by link
  std::vector<Change> changes_;
};

}  // namespace phub::plan
