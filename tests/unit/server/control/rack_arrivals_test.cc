// Ranks of other racks that have not joined, or were refused: the ranks that wait hear of them.
#include "server/control/racks/rack_arrivals.h"

#include "server/control/ranks/arrivals.h"
#include "tests/unit/server/control/rack_jobs_fixture.h"

namespace phub::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr DurationNs kNotice =
    Arrivals::kFirstNotice + RackArrivals::kReportsAwaited + 100 * kMillisecond;

class RackArrivalsTest : public RackJobsTest {
 protected:
  std::vector<v1::RanksMissing> Notices(std::uint32_t rank) {
    std::vector<v1::RanksMissing> notices;
    for (const v1::SessionEvent& event : NodeOf(rank).sinks[sessions[rank]]->events) {
      if (event.has_missing()) notices.push_back(event.missing());
    }
    return notices;
  }
  std::vector<v1::RankRefused> Refusals(std::uint32_t rank) {
    std::vector<v1::RankRefused> refusals;
    for (const v1::SessionEvent& event : NodeOf(rank).sinks[sessions[rank]]->events) {
      if (event.has_refused()) refusals.push_back(event.refused());
    }
    return refusals;
  }
  std::uint64_t RefusedAt(std::uint32_t rack) {
    return node(rack).Counter("phub_peers_refused_place_total");
  }
};

TEST_F(RackArrivalsTest, AllRacksHearOnceWhoIsMissingInAll) {
  Enter({0, 1, 2});
  Advance(kNotice);
  for (const std::uint32_t rank : {0u, 2u}) {  // no rank of rack 0 itself is missing
    ASSERT_EQ(Notices(rank).size(), 1u) << rank;
    EXPECT_THAT(Notices(rank)[0].ranks(), ElementsAre(3, 4, 5)) << rank;
    EXPECT_GE(Notices(rank)[0].waiting_ns(), Arrivals::kFirstNotice);
  }
  Enter({3});
  Advance(Arrivals::kNoticeInterval);
  ASSERT_EQ(Notices(0).size(), 2u);
  EXPECT_THAT(Notices(0)[1].ranks(), ElementsAre(4, 5));
  Enter({4, 5});
  Advance(2 * Arrivals::kNoticeInterval);
  EXPECT_EQ(Notices(0).size(), 2u);
}

TEST_F(RackArrivalsTest, AJobWithoutAPlanHearsThatItIsOfOneRack) {
  set_options = [](v1::JobOptions& options) { options.clear_plan(); };
  Enter({0});
  Advance(kNotice);
  ASSERT_EQ(Notices(0).size(), 1u);
  EXPECT_THAT(Notices(0)[0].hints(),
              ElementsAre(AllOf(HasSubstr("one of 3 racks"), HasSubstr("plan=auto"))));
}

TEST_F(RackArrivalsTest, ARefusalInAnotherRackIsReportedAtOnceAndInTheNotice) {
  Enter({0, 1});
  v1::JoinRequest wrong = JoinOf(3);
  wrong.mutable_options()->set_chunk_bytes(8192);
  const auto refused = node(1).Join(wrong);
  Settle();
  EXPECT_THAT(refused->message(), HasSubstr("chunk_bytes 8192"));
  for (const std::uint32_t rank : {0u, 1u}) {
    ASSERT_EQ(Refusals(rank).size(), 1u) << rank;
    EXPECT_EQ(Refusals(rank)[0].rank(), 3u);
    EXPECT_EQ(Refusals(rank)[0].host(), "node3");
    EXPECT_EQ(Refusals(rank)[0].message(), refused->message());
  }
  Advance(kNotice);
  ASSERT_EQ(Notices(0).size(), 1u);
  EXPECT_THAT(Notices(0)[0].hints(), ElementsAre(HasSubstr("rank 3 (node3) was refused: ")));
}

TEST_F(RackArrivalsTest, AMistypedNameIsFoundInTheOtherRack) {
  Enter({0, 1, 2, 3, 4});
  const auto mistyped = Join(5, "digist");
  Settle();
  ASSERT_TRUE(mistyped->ok()) << mistyped->message();
  sessions[5] = mistyped->response.session_id();
  ASSERT_TRUE(node(2).Commit(sessions[5])->ok());
  Advance(kNotice);
  ASSERT_EQ(Notices(0).size(), 1u);
  EXPECT_THAT(Notices(0)[0].hints(),
              ElementsAre(HasSubstr("job digist of the same tenant also waits, and has rank 5")));
}

TEST_F(RackArrivalsTest, ReportsAboutRanksOfOtherRacksAreRefused) {
  Enter({0, 1, 2, 3, 4});
  v1::PeerMessage missing;
  missing.mutable_ranks_missing()->mutable_missing()->add_ranks(3);  // of rack 1
  Say(2, 0, incarnation, missing);
  v1::PeerMessage refused;
  refused.mutable_rank_refused()->mutable_refused()->set_rank(77);
  Say(2, 0, incarnation, refused);
  Settle();
  EXPECT_EQ(RefusedAt(0), 2u);
  Advance(kSecond);
  EXPECT_TRUE(Notices(0).empty());
  EXPECT_TRUE(Refusals(0).empty());
}

}  // namespace
}  // namespace phub::server
