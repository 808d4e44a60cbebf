// Daemons of one rack, each on its own, must agree.
#include "tests/unit/server/control/control_fixture.h"

namespace phub::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// One daemon of a rack.
class RackDaemon : public ControlTest {
 public:
  RackDaemon(std::uint32_t self, std::size_t core_count) : ControlTest(core_count) {
    options.rack_endpoints = {"node1:7700", "node2:7700"};
    options.rack_self = self;
    random = SeededRandom{self + 1};
  }
  void TestBody() override {}

  using ControlTest::AddKeys;
  using ControlTest::Advance;
  using ControlTest::Barrier;
  using ControlTest::Batch;
  using ControlTest::Commit;
  using ControlTest::control;
  using ControlTest::cores;
  using ControlTest::Counter;
  using ControlTest::EnterAs;
  using ControlTest::FaultAt;
  using ControlTest::GetRack;
  using ControlTest::GetServer;
  using ControlTest::Join;
  using ControlTest::JoinOf;
  using ControlTest::Key;
  using ControlTest::last_join;
  using ControlTest::Leave;
  using ControlTest::options;
  using ControlTest::Settle;
};

class RackTest : public ::testing::Test {
 protected:
  v1::JoinRequest JoinOf(std::uint32_t rank, std::uint32_t daemon, std::uint64_t incarnation) {
    v1::JoinRequest request = RackDaemon::JoinOf(rank, 2);
    request.set_configuration(anchor.GetRack({})->response.configuration());
    request.set_daemon(daemon);
    request.set_incarnation(incarnation);
    request.add_daemon_cores(2);
    request.add_daemon_cores(3);
    return request;
  }
  void RefusedAtOther(const v1::JoinRequest& request, const std::string& what) {
    const auto call = other.Join(request);
    EXPECT_EQ(call->code(), absl::StatusCode::kFailedPrecondition) << call->message();
    EXPECT_THAT(call->message(), HasSubstr(what));
  }

  RackDaemon anchor{0, 2};
  RackDaemon other{1, 3};
};

TEST_F(RackTest, EveryDaemonKnowsTheListAndItself) {
  const v1::Rack first = anchor.GetRack({})->response;
  const v1::Rack second = other.GetRack({})->response;
  ASSERT_EQ(second.daemons_size(), 2);
  EXPECT_EQ(second.daemons(0).endpoint(), "node1:7700");
  EXPECT_EQ(second.daemons(1).endpoint(), "node2:7700");
  EXPECT_EQ(second.self(), 1u);
  EXPECT_EQ(first.daemons(0).core_count(), 2u);
  EXPECT_EQ(second.daemons(1).core_count(), 3u);
  EXPECT_EQ(first.configuration(), second.configuration());
  EXPECT_EQ(first.configuration().size(), 64u);
  EXPECT_EQ(first.state(), "serving");
  const v1::ServerInfo info = other.GetServer({})->response;
  EXPECT_EQ(info.endpoint(), "node2:7700");
  EXPECT_EQ(info.rack().self(), 1u);
  EXPECT_EQ(info.memory_bytes_max(), other.options.memory_bytes_max);
}

TEST_F(RackTest, TheConfigurationIsTheListAndWhatJobsAreCutBy) {
  const auto hash = [](const std::function<void(ControlOptions&)>& change) {
    RackDaemon daemon(0, 2);
    change(daemon.options);
    return daemon.GetRack({})->response.configuration();
  };
  const std::string base = hash([](auto&) {});
  EXPECT_EQ(hash([](auto& options) { options.liveness_timeout = kSecond; }), base);
  EXPECT_NE(hash([](auto& options) { options.chunk_bytes = 4096; }), base);
  EXPECT_NE(hash([](auto& options) { options.staging_bytes_per_lane = 1 << 16; }), base);
  EXPECT_NE(hash([](auto& options) { options.rack_endpoints.push_back("node3:7700"); }), base);
  const auto swapped = [](ControlOptions& options) {
    std::swap(options.rack_endpoints[0], options.rack_endpoints[1]);
  };
  EXPECT_NE(hash(swapped), base);
}

TEST_F(RackTest, AllDaemonsPlaceAlikeAndBuildTheirOwnPart) {
  const std::string at_anchor = anchor.EnterAs(JoinOf(0, 0, 0));
  const std::uint64_t incarnation = anchor.last_join.incarnation();
  const std::string at_other = other.EnterAs(JoinOf(0, 1, incarnation));
  EXPECT_EQ(other.last_join.incarnation(), incarnation);
  const auto keys = {RackDaemon::Key("a", 20 * 256), RackDaemon::Key("b", 3)};
  const auto first = anchor.AddKeys(RackDaemon::Batch(at_anchor, 0, keys));
  const auto second = other.AddKeys(RackDaemon::Batch(at_other, 0, keys));
  anchor.Settle();
  other.Settle();
  ASSERT_TRUE(first->ok() && second->ok()) << first->message() << second->message();
  EXPECT_EQ(first->response.SerializeAsString(), second->response.SerializeAsString());
  // Expect: five bins with four chunks each, and every chunk only at the core of its bin.
  std::vector<std::size_t> counts(5);
  for (const v1::KeyPlacement& placed : first->response.placements()) {
    for (const std::uint32_t bin : placed.chunk_bins()) ++counts.at(bin);
  }
  EXPECT_THAT(counts, ::testing::Contains(5u).Times(1));  // the small key
  for (std::uint32_t bin = 0; bin < 5; ++bin) {
    FakeCore& core = bin < 2 ? *anchor.cores[bin] : *other.cores[bin - 2];
    const KeyBatch& batch = *core.Executed(Command::Kind::kAddKeys).at(0).batch;
    EXPECT_EQ(batch.keys.size(), 2u);
    EXPECT_EQ(batch.chunks.size(), counts[bin]) << bin;
  }
}

TEST_F(RackTest, AVerdictFromElsewhereEndsTheJobHereForEveryRank) {
  anchor.EnterAs(JoinOf(0, 0, 0));
  const std::uint64_t incarnation = anchor.last_join.incarnation();
  const std::string first = other.EnterAs(JoinOf(0, 1, incarnation));
  const std::string second = other.EnterAs(JoinOf(1, 1, incarnation));
  v1::LeaveRequest request;
  request.set_session_id(first);
  request.set_verdict("daemon node1:7700 died\n(job digits)");
  absl::Status left = absl::UnknownError("not answered");
  other.control().seats().Leave(
      request, [&](const absl::Status& status, const v1::LeaveResponse&) { left = status; });
  other.Settle();
  EXPECT_TRUE(left.ok()) << left.ToString();
  ASSERT_NE(other.FaultAt(second), nullptr);
  EXPECT_EQ(other.FaultAt(second)->message(), "daemon node1:7700 died?(job digits)");
  EXPECT_EQ(other.FaultAt(second)->code(), "failed_elsewhere");
}

TEST_F(RackTest, LargeRacksHaveSmallerChunksByDefault) {
  v1::JoinRequest request = JoinOf(0, 0, 0);
  request.mutable_options()->clear_chunk_bytes();
  request.set_daemon_cores(1, 40);
  anchor.EnterAs(request);
  EXPECT_EQ(anchor.last_join.chunk_bytes(), 32u * 1024);
}

TEST_F(RackTest, JoinsThatDoNotFitTheRackAreRefusedNamingBothSides) {
  v1::JoinRequest request = JoinOf(0, 1, 7);
  request.set_configuration("0123456789abcdef");
  RefusedAtOther(request, "0123456789ab");
  RefusedAtOther(request, other.GetRack({})->response.configuration().substr(0, 12));
  // Expect: clients that send the first daemon's settings get both values instead of hashes.
  RackDaemon changed{0, 2};
  changed.options.chunk_bytes = 4096;
  request.set_configuration(changed.GetRack({})->response.configuration());
  *request.mutable_settings() = changed.GetRack({})->response.settings();
  RefusedAtOther(request,
                 "chunk_bytes is 131072 at daemon 1 (node2:7700) and 4096 at the first daemon of "
                 "the worker's rack; the daemons of a rack must have the same");
  request = JoinOf(0, 1, 7);
  request.clear_configuration();
  RefusedAtOther(request, "has none");
  request = JoinOf(0, 1, 7);
  request.clear_daemon_cores();
  RefusedAtOther(request, "belongs to a rack of 2 daemons");
  RefusedAtOther(JoinOf(0, 0, 7), "expects daemon 0 of the rack, but this is daemon 1");
  RefusedAtOther(JoinOf(0, 1, 0), "needs the incarnation");
  request = JoinOf(0, 1, 7);
  request.set_daemon_cores(1, 4);
  RefusedAtOther(request, "to have 4 core loops, but it has 3");
  request = JoinOf(0, 1, 7);
  request.set_daemon_cores(0, 0);
  RefusedAtOther(request, "0, 3");
  request = JoinOf(0, 1, 7);
  request.add_daemon_cores(1);
  RefusedAtOther(request, "expects 3 daemons in the rack");
  EXPECT_EQ(other.Counter("phub_joins_refused_rack_total"), 10u);
  EXPECT_EQ(other.control().job_count(), 0u);
  const auto call = anchor.Join(JoinOf(0, 0, 7));
  EXPECT_THAT(call->message(), HasSubstr("draws the incarnation itself"));
}

TEST_F(RackTest, RanksThatCountTheRacksCoresDifferentlyAreRefused) {
  anchor.EnterAs(JoinOf(0, 0, 0));
  v1::JoinRequest request = JoinOf(1, 0, 0);
  request.set_daemon_cores(1, 4);
  const auto call = anchor.Join(request);
  EXPECT_EQ(call->code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(call->message(),
              AllOf(HasSubstr("2, 4 core loops"), HasSubstr("rank 0 (node0)"), HasSubstr("2, 3")));
}

TEST_F(RackTest, ANewRunAtTheAnchorEndsTheOldOneElsewhere) {
  const std::string old = other.EnterAs(JoinOf(0, 1, 7));
  other.EnterAs(JoinOf(0, 1, 8));
  ASSERT_NE(other.FaultAt(old), nullptr);
  EXPECT_EQ(other.FaultAt(old)->code(), "superseded");
  EXPECT_THAT(other.FaultAt(old)->message(),
              AllOf(HasSubstr("digits"), HasSubstr("new run"), HasSubstr("0000000000000008")));
  EXPECT_TRUE(other.last_join.created());
  EXPECT_EQ(other.Counter("phub_jobs_superseded_total"), 1u);
  // Expect: a late request of the old run does not revive it.
  const auto straggler = other.Join(JoinOf(1, 1, 7));
  EXPECT_EQ(straggler->code(), absl::StatusCode::kAborted);
  EXPECT_THAT(straggler->message(), HasSubstr("new run"));
  other.Advance(other.options.teardown_delay);
  EXPECT_EQ(other.Join(JoinOf(1, 1, 7))->code(), absl::StatusCode::kAborted);
  EXPECT_EQ(other.control().job_count(), 1u);
}

TEST_F(RackTest, TheSameIncarnationIsTheSameRun) {
  other.EnterAs(JoinOf(0, 1, 7));
  other.EnterAs(JoinOf(1, 1, 7));
  EXPECT_FALSE(other.last_join.created());
  EXPECT_EQ(other.Counter("phub_jobs_superseded_total"), 0u);
  v1::JoinRequest request = JoinOf(0, 1, 7);
  request.set_job("another");
  EXPECT_EQ(other.Join(request)->code(), absl::StatusCode::kInvalidArgument);
}

// The only process of a job died after the first daemon had committed its seat. The other daemon
// had only a reservation. The next process brings the incarnation of the run that awaits it.
TEST_F(RackTest, ARunThatNobodyUsedHereBeginsAgain) {
  const auto dead = other.Join(JoinOf(0, 1, 7));
  other.Settle();
  ASSERT_TRUE(dead->ok()) << dead->message();
  other.Advance(other.options.liveness_timeout);
  EXPECT_EQ(other.control().memory_bytes(), 0u);
  for (const std::uint32_t rank : {0u, 1u}) {
    other.EnterAs(JoinOf(rank, 1, 7));
    EXPECT_EQ(other.last_join.incarnation(), 7u);
    EXPECT_EQ(other.last_join.created(), rank == 0);
    EXPECT_FALSE(other.last_join.resumed());
  }
  EXPECT_EQ(other.control().job_count(), 1u);
}

TEST_F(RackTest, ARunThatNobodyUsedHereDoesNotEndANewerOne) {
  const auto dead = other.Join(JoinOf(0, 1, 7));
  other.Settle();
  ASSERT_TRUE(other.Leave(dead->response.session_id())->ok());
  other.Settle();
  const std::string newer = other.EnterAs(JoinOf(0, 1, 8));
  EXPECT_EQ(other.Join(JoinOf(1, 1, 7))->code(), absl::StatusCode::kAborted);
  EXPECT_EQ(other.FaultAt(newer), nullptr);
}

// The next process may come before the core loops have let the run go.
TEST_F(RackTest, AJoinWaitsUntilARunThatNobodyUsedHereIsReleased) {
  const auto dead = other.Join(JoinOf(0, 1, 7));
  other.Settle();
  ASSERT_TRUE(dead->ok()) << dead->message();
  ASSERT_TRUE(other.Leave(dead->response.session_id())->ok());
  const auto next = other.Join(JoinOf(0, 1, 7));
  EXPECT_FALSE(next->answered());
  other.Settle();
  ASSERT_TRUE(next->ok()) << next->message();
  EXPECT_TRUE(other.Commit(next->response.session_id())->ok());
  EXPECT_EQ(other.control().job_count(), 1u);
}

TEST_F(RackTest, BarriersAreHeldByTheAnchor) {
  const std::string session = other.EnterAs(JoinOf(0, 1, 7));
  const auto call = other.Barrier(session, 0);
  EXPECT_EQ(call->code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(call->message(), HasSubstr("node1:7700"));
}

TEST_F(RackTest, KeysThatArePartlyElsewhereTakeTheirOwnChunksMemoryOnly) {
  const std::string session = other.EnterAs(JoinOf(0, 1, 7));
  const std::uint64_t before = other.control().memory_bytes();
  v1::KeySpec key = RackDaemon::Key("w", 1 << 20);
  key.set_optimizer(v1::OPTIMIZER_NONE);
  const auto call = other.AddKeys(RackDaemon::Batch(session, 0, {key}));
  other.Settle();
  ASSERT_TRUE(call->ok()) << call->message();
  // Three of five bins: accumulators for their chunks, and parameters in whole pages, at most the
  // whole key.
  const std::uint64_t own_chunks = 4096 * 3 / 5;
  const std::uint64_t taken = other.control().memory_bytes() - before;
  EXPECT_GT(taken, own_chunks * 2 * 1024);
  EXPECT_LT(taken, (4 << 20) + own_chunks * (1024 + 512));
}

}  // namespace
}  // namespace phub::server
