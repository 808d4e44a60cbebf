// The cluster that a seed decides; cluster.h runs it. One object per run; one thread.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "common/base/random.h"
#include "tests/sim/cluster.h"
#include "tests/sim/script.h"
#include "tests/sim/sim_daemon.h"
#include "tests/sim/sim_network.h"
#include "tests/sim/sim_peer_network.h"
#include "tests/sim/sim_saver.h"
#include "tests/sim/sim_worker.h"

namespace phub::sim {

constexpr NodeId kNodesPerDaemon = 10;

class Cluster {
 public:
  Cluster(Layout layout, std::uint64_t seed, oracle::Order order);
  ~Cluster();

  Outcome Run();

 private:
  // A rank of a job with its processes. The last one is alive, or was the last to live.
  struct Seat {
    std::vector<std::unique_ptr<SimWorker>> processes;
    bool awaited = false;  // a process died, and another one will replace it
    SimWorker& worker() const { return *processes.back(); }
  };
  struct Job : SimJob {
    std::vector<Seat> seats;
    std::uint32_t first_rack = 0;
    TimeNs crashed_at = 0;  // by its fate
  };

  // Defined in cluster.cc.
  void BuildRack();
  void DrawJobs();
  void AddJob(JobScript script, std::uint32_t first_rack);
  void StartWorkers();
  void AddProcess(Job& job, std::uint32_t rank);
  void StartSavers();
  void Tick();
  void ScheduleBreak();
  void ScheduleCrashes(Job& job);
  void CrashSomebody(Job& job);
  void Advance();
  void BringFates();
  void BringDaemonDeath();
  bool Finished() const;
  template <typename Visit>
  void ForEachSeat(const Visit& visit) const {
    for (const auto& job : jobs_) {
      for (const Seat& seat : job->seats) visit(*job, seat);
    }
  }

  // Defined in cluster_dumps.cc.
  void StartDumps();
  void ScheduleDump();
  std::string JudgeDumps() const;

  // Defined in cluster_outages.cc.
  void DrawOutages();
  bool AllTrain() const;
  void BringOutage();

  // Defined in cluster_racks.cc.
  void BuildRacks();
  void DrawRackJobs();
  void CutRacks();
  void LearnPlans(Job& job, const RackPlanScript& racks);

  // Defined in cluster_judge.cc.
  std::string Judge() const;
  std::string JudgeDaemons() const;
  std::string JudgeWorker(const Job& job, const SimWorker& worker) const;
  std::string JudgeLostDaemon(const Job& job, const SimWorker& worker) const;
  std::string JudgeCut(const Job& job, const SimWorker& worker) const;
  bool NamesRacksOf(const JobScript& script, const SimWorker& worker) const;
  std::string JudgeNames(const Job& job, const SimWorker& worker) const;
  std::string JudgeAgreement(const Job& job) const;
  Coverage Measure() const;
  std::string Describe() const;

  const Layout layout_;
  const oracle::Order order_;
  SeededRandom random_;
  SimNetwork network_;
  SeededRandom control_random_;
  std::vector<std::unique_ptr<SimSaver>> savers_;  // outlive the daemons that send to them
  // Rack 0's plans for groups, by incarnation, name and ranks.
  std::map<std::tuple<std::uint64_t, std::string, std::vector<std::uint32_t>>, std::string>
      group_plans_;
  struct Dumps {
    std::uint64_t asked = 0, answered = 0;
  };
  std::vector<Dumps> dumps_;  // by daemon; they outlive the daemons, too
  std::uint32_t dumps_left_ = 0;
  std::uint64_t dumps_taken_ = 0, dump_records_ = 0, dump_silences_ = 0;
  SimRack rack_;  // all daemons; if there are several racks, those of rack 0 first
  std::vector<std::unique_ptr<SimPeerNetwork>> peer_networks_;
  std::string topology_;
  std::shared_ptr<const plan::Topology> rack_topology_;
  bool topology_is_measured_ = false;   // by rack 0; jobs wait for it
  std::uint32_t racks_with_ranks_ = 1;  // several racks: the remaining ones are aggregators
  std::uint32_t per_rack_ = 1;          // several racks: the number of daemons in each
  std::vector<std::unique_ptr<Job>> jobs_;
  NodeId next_node_ = 0;
  std::uint64_t breaks_per_second_ = 0;
  TimeNs faults_until_ = 0;
  std::uint32_t doomed_ = 0;  // the daemon that dies, if any
  TimeNs daemon_died_at_ = 0;
  std::array<std::uint32_t, 2> cut_{};  // the daemons whose lanes are cut, by index into rack_
  TimeNs racks_cut_at_ = 0;
  bool lanes_cut_ = false;  // Fate::kLanesCut has happened
  std::uint64_t crashes_ = 0;
  std::uint32_t outages_left_ = 0;  // of control
  std::uint64_t outages_ = 0;
  DurationNs outage_time_ = 0;
  std::uint64_t rounds_without_control_ = 0;
  std::string problem_;
};

}  // namespace phub::sim
