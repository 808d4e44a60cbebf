// Ranks that have not joined: the others are notified, and join_timeout ends the job.
#include "server/control/ranks/arrivals.h"

#include "tests/unit/server/control/control_fixture.h"

namespace phub::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ArrivalsTest : public ControlTest {
 protected:
  std::string Enter(std::uint32_t rank, DurationNs join_timeout = 0) {
    v1::JoinRequest request = JoinOf(rank, 4);
    request.mutable_options()->set_join_timeout_ns(join_timeout);
    return EnterAs(request);
  }
  // Time passes while these ranks send heartbeats.
  void BeatFor(DurationNs duration, const std::vector<std::string>& sessions) {
    for (const TimeNs end = clock.now + duration; clock.now < end;) {
      for (const std::string& session : sessions) Heartbeat(session);
      Advance(std::min(kSecond / 4, end - clock.now));
    }
  }
  std::vector<v1::RanksMissing> Notices(const std::string& session) {
    std::vector<v1::RanksMissing> notices;
    for (const v1::SessionEvent& event : sinks[session]->events) {
      if (event.has_missing()) notices.push_back(event.missing());
    }
    return notices;
  }
};

TEST_F(ArrivalsTest, ThoseThatWaitHearWhoIsMissing) {
  const std::string first = Enter(0);
  const std::string third = Enter(2);
  BeatFor(Arrivals::kFirstNotice - kMillisecond, {first, third});
  EXPECT_EQ(Notices(first).size(), 0u);
  BeatFor(2 * kMillisecond, {first, third});
  for (const std::string& session : {first, third}) {
    ASSERT_EQ(Notices(session).size(), 1u);
    EXPECT_THAT(Notices(session)[0].ranks(), ElementsAre(1, 3));
    EXPECT_GE(Notices(session)[0].waiting_ns(), Arrivals::kFirstNotice);
  }
  const std::string second = Enter(1);
  BeatFor(Arrivals::kNoticeInterval, {first, second, third});
  ASSERT_EQ(Notices(first).size(), 2u);
  EXPECT_THAT(Notices(first)[1].ranks(), ElementsAre(3));
  const std::string fourth = Enter(3);
  BeatFor(3 * Arrivals::kNoticeInterval, {first, second, third, fourth});
  EXPECT_EQ(Notices(first).size(), 2u);
}

TEST_F(ArrivalsTest, ThoseThatWaitHearWhoWasRefusedAndWhy) {
  const std::string first = Enter(0);
  v1::JoinRequest wrong = JoinOf(1, 4);
  wrong.mutable_options()->set_chunk_bytes(8192);
  wrong.set_host("node7");
  EXPECT_EQ(Join(wrong)->code(), absl::StatusCode::kInvalidArgument);
  wrong.mutable_options()->set_chunk_bytes(1);  // never valid
  EXPECT_EQ(Join(wrong)->code(), absl::StatusCode::kInvalidArgument);
  std::vector<v1::RankRefused> refused;
  for (const v1::SessionEvent& event : sinks[first]->events) {
    if (event.has_refused()) refused.push_back(event.refused());
  }
  ASSERT_EQ(refused.size(), 2u);
  for (const v1::RankRefused& each : refused) {
    EXPECT_EQ(each.rank(), 1u);
    EXPECT_EQ(each.host(), "node7");
    EXPECT_THAT(each.message(), HasSubstr("chunk_bytes"));
  }
}

// A client that does not read its events must not cost what another one sends.
TEST_F(ArrivalsTest, ARefusedHostIsNotSentWhole) {
  const std::string first = Enter(0);
  v1::JoinRequest wrong = JoinOf(1, 4);
  wrong.set_host(std::string(1 << 20, 'h'));
  EXPECT_EQ(Join(wrong)->code(), absl::StatusCode::kInvalidArgument);
  std::size_t refusals = 0;
  for (const v1::SessionEvent& event : sinks[first]->events) {
    if (!event.has_refused()) continue;
    ++refusals;
    EXPECT_LT(event.ByteSizeLong(), 8192u);
    EXPECT_THAT(event.refused().host(), HasSubstr("hhhh"));
  }
  EXPECT_EQ(refusals, 1u);
}

TEST_F(ArrivalsTest, ASecondProcessOfARankThatIsThereConcernsNobody) {
  const std::string first = Enter(0);
  EXPECT_EQ(Join(JoinOf(0, 4))->code(), absl::StatusCode::kAlreadyExists);
  for (const v1::SessionEvent& event : sinks[first]->events) EXPECT_FALSE(event.has_refused());
}

TEST_F(ArrivalsTest, NoticesNameASecondProcessOfARank) {
  const std::string first = Enter(0);
  v1::JoinRequest twin = JoinOf(0, 4);
  twin.set_host("node7");
  twin.set_pid(77);
  EXPECT_EQ(Join(twin)->code(), absl::StatusCode::kAlreadyExists);
  BeatFor(Arrivals::kFirstNotice + kMillisecond, {first});
  ASSERT_EQ(Notices(first).size(), 1u);
  EXPECT_THAT(Notices(first)[0].hints(),
              ElementsAre(HasSubstr("a second process (node7, pid 77) wanted to be rank 0")));
  v1::GetJobRequest get;
  get.set_job("digits");
  EXPECT_THAT(GetJob(get)->response.waiting_hints(), ElementsAre(HasSubstr("pid 77")));
  // Expect: no hint once it has joined as another rank.
  twin.set_rank(1);
  const std::string second = EnterAs(twin);
  BeatFor(Arrivals::kNoticeInterval + kMillisecond, {first, second});
  ASSERT_EQ(Notices(first).size(), 2u);
  EXPECT_THAT(Notices(first)[1].hints(), ElementsAre());
}

TEST_F(ArrivalsTest, NoticesRepeatWhyAMissingRankWasRefused) {
  v1::JoinRequest wrong = JoinOf(1, 4);
  wrong.mutable_options()->set_chunk_bytes(8192);
  wrong.set_host("node7");
  const std::string first = Enter(0);
  EXPECT_EQ(Join(wrong)->code(), absl::StatusCode::kInvalidArgument);
  const std::string third = Enter(2);
  BeatFor(Arrivals::kFirstNotice + kMillisecond, {first, third});
  ASSERT_EQ(Notices(third).size(), 1u);
  EXPECT_THAT(Notices(third)[0].hints(), ElementsAre(AllOf(HasSubstr("rank 1 (node7) was refused"),
                                                           HasSubstr("chunk_bytes 8192"))));
}

TEST_F(ArrivalsTest, NoticesNameAJobWithNearlyTheSameNameThatLacksTheOthers) {
  const auto enter = [&](std::uint32_t rank, const std::string& job, std::uint32_t size = 2) {
    return EnterAs(JoinOf(rank, size, job));
  };
  std::vector<std::string> sessions = {enter(0, "digits"), enter(1, "digist"),
                                       // Control group: each of these fits in one respect less.
                                       enter(0, "digitz"), enter(1, "letters"),
                                       enter(1, "digit", 3), enter(0, "alone"), enter(1, "done"),
                                       enter(0, "done")};
  BeatFor(Arrivals::kFirstNotice + kMillisecond, sessions);
  ASSERT_EQ(Notices(sessions[0]).size(), 1u);
  EXPECT_THAT(Notices(sessions[0])[0].hints(),
              ElementsAre(AllOf(HasSubstr("job digist of the same tenant also waits"),
                                HasSubstr("has rank 1, missing here"))));
  ASSERT_EQ(Notices(sessions[5]).size(), 1u);
  EXPECT_THAT(Notices(sessions[5])[0].hints(), ElementsAre());
}

TEST_F(ArrivalsTest, AfterJoinTimeoutTheJobEndsAndNamesTheMissing) {
  const std::string first = Enter(0, 20 * kSecond);
  const std::string second = Enter(1, 20 * kSecond);
  BeatFor(20 * kSecond - kMillisecond, {first, second});
  EXPECT_EQ(sinks[first]->fault(), nullptr);
  BeatFor(2 * kMillisecond, {first, second});
  for (const std::string& session : {first, second}) {
    const v1::Fault* const fault = sinks[session]->fault();
    ASSERT_NE(fault, nullptr);
    EXPECT_EQ(fault->code(), "join_timeout");
    EXPECT_THAT(fault->message(), AllOf(HasSubstr("ranks 2, 3 of 4"), HasSubstr("join_timeout")));
  }
  EXPECT_EQ(Counter("phub_joins_awaited_in_vain_total"), 1u);
}

TEST_F(ArrivalsTest, JoinTimeoutIsOverOnceAllHaveJoined) {
  std::vector<std::string> sessions;
  for (std::uint32_t rank = 0; rank < 4; ++rank) sessions.push_back(Enter(rank, 20 * kSecond));
  BeatFor(60 * kSecond, sessions);
  EXPECT_EQ(sinks[sessions[0]]->fault(), nullptr);
}

TEST_F(ArrivalsTest, JoinTimeoutMustBeEqualAndPossible) {
  Enter(0, 20 * kSecond);
  v1::JoinRequest other = JoinOf(1, 4);
  other.mutable_options()->set_join_timeout_ns(30 * kSecond);
  EXPECT_THAT(Join(other)->message(),
              AllOf(HasSubstr("join_timeout 30"), HasSubstr("created it with 20")));
  other.mutable_options()->set_join_timeout_ns(-1);
  EXPECT_THAT(Join(other)->message(), HasSubstr("join_timeout is"));
}

}  // namespace
}  // namespace phub::server
