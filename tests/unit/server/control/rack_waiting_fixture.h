// Jobs with policy wait that span racks, whose ranks are lost and return.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/unit/server/control/rack_planes_fixture.h"

namespace phub::server {

class RackWaitingTest : public RackJobsTest {
 public:
  static constexpr DurationNs kWait = 10 * kSecond;

  static void Waiting(v1::JobOptions& options) {
    options.set_on_loss(v1::LOSS_POLICY_WAIT);
    options.set_wait_timeout_ns(kWait);
  }
  static void WaitingWithRestart(v1::JobOptions& options) {
    Waiting(options);
    options.set_restart(true);
  }

 protected:
  static constexpr std::uint32_t kLost = 3;  // in rack 1

  RackWaitingTest() { set_options = Waiting; }

  // Its process dies.
  void Lose(std::uint32_t rank) {
    RackNode& node = NodeOf(rank);
    node.last_join.set_incarnation(incarnation);
    node.streams[sessions[rank]] = streams[rank];
    node.Die(sessions[rank], rank, Rank{rank % (kRanks / kRacks)});
    mute.insert(rank);
    Settle();
  }
  void Return(std::uint32_t rank) {
    RackNode& node = NodeOf(rank);
    node.sinks[sessions[rank]] = std::make_shared<RecordingSink>();
    const auto stream =
        node.control().liveness().AttachStream(sessions[rank], node.sinks[sessions[rank]]);
    ASSERT_TRUE(stream.ok()) << stream.status();
    streams[rank] = *stream;
    if (mute.erase(rank) > 0) node.OpenAllLanes(sessions[rank], rank);
    Settle();
  }
  v1::JobInfo InfoAt(std::uint32_t rack) {
    v1::GetJobRequest request;
    request.set_job("digits");
    return node(rack).GetJob(request)->response;
  }
  // The rank's notifications: "awaited 3", "returned 3", "restarted 3".
  std::vector<std::string> ToldTo(std::uint32_t rank) {
    std::vector<std::string> told;
    for (const v1::SessionEvent& event : NodeOf(rank).sinks[sessions[rank]]->events) {
      if (event.has_awaited()) told.push_back(fmt::format("awaited {}", event.awaited().rank()));
      if (!event.has_returned()) continue;
      told.push_back(fmt::format("{} {}", event.returned().restarted() ? "restarted" : "returned",
                                 event.returned().rank()));
    }
    return told;
  }
  void ExpectToldToAllBut(std::uint32_t rank, const std::vector<std::string>& told) {
    for (const auto& [other, session] : sessions) {
      if (other == rank) continue;
      EXPECT_EQ(ToldTo(other), told) << other;
    }
  }
  std::uint64_t RefusedAt(std::uint32_t rack) {
    return node(rack).Counter("phub_peers_refused_place_total");
  }
  static v1::PeerMessage Awaited(std::uint32_t rank, DurationNs duration = kSecond) {
    v1::PeerMessage message;
    message.mutable_rank_awaited()->set_rank(rank);
    message.mutable_rank_awaited()->set_host("somewhere");
    message.mutable_rank_awaited()->set_awaited_for_ns(duration);
    return message;
  }
  static v1::PeerMessage Returned(std::uint32_t rank) {
    v1::PeerMessage message;
    message.mutable_rank_returned()->set_rank(rank);
    return message;
  }
};

}  // namespace phub::server
