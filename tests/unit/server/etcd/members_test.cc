#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/status_text.h"
#include "phub/store/records.pb.h"
#include "server/etcd/members/cluster_members.h"
#include "server/etcd/members/known_endpoints.h"
#include "server/etcd/members/member_records.h"

namespace phub::server::etcd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr std::int64_t kViewRevision = 7;

view::View TwoRacks(std::int64_t number = 3) {
  return {.number = number, .racks = {{"north", 1}, {"south", 1}}, .topology = "probe"};
}

ClusterMember DaemonB() {
  return {.place = {"north", 0},
          .daemon = "b",
          .instance = "i",
          .host = "node2",
          .endpoint = "10.0.0.2:7700",
          .version = "1",
          .started_at = 5};
}

class MembersTest : public ::testing::Test {
 protected:
  struct Written {
    std::string value;
    std::int64_t revision = 0;
    AuditNote note;
  };
  void Put(const std::string& key, const std::string& value, std::int64_t revision = 1) {
    mirror_.Put({key, revision, value});
  }
  void PutView(const view::View& view) { Put("/view", SealView(records_, view), kViewRevision); }
  void SetUp() override { mirror_.SetMemberFollower(members_); }

  const Records records_{std::string(32, 'k'), "cluster"};
  std::vector<Written> written_;
  absl::Status committed_;
  std::vector<Item> items_;  // in etcd
  ClusterMembers members_{
      records_,
      "north/0",
      {.commit =
           [this](const std::string& value, std::int64_t revision, const AuditNote& note) {
             written_.push_back({value, revision, note});
             return committed_;
           },
       .claim = [] { return absl::OkStatus(); },
       .read = [this] { return items_; }}};
  Mirror mirror_{records_};
};

TEST_F(MembersTest, RecordsAreReadAsTheyWereWrittenAndBelongToTheirKeys) {
  view::View view = TwoRacks();
  EXPECT_EQ(*OpenView(records_, SealView(records_, view)), view);
  view.aggregators = {"spine"};
  view.topology = "";
  EXPECT_EQ(*OpenView(records_, SealView(records_, view)), view);
  const std::string key = PlaceKey({"north", 0});
  EXPECT_EQ(key, "/places/north/0");
  const std::string value = SealMember(records_, key, DaemonB());
  const auto read = OpenMember(records_, key, value);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->place, DaemonB().place);
  EXPECT_EQ(read->daemon, "b");
  EXPECT_EQ(read->instance, "i");
  EXPECT_EQ(read->host, "node2");
  EXPECT_EQ(read->endpoint, "10.0.0.2:7700");
  EXPECT_EQ(read->version, "1");
  EXPECT_EQ(read->started_at, 5);
  EXPECT_FALSE(OpenMember(records_, PlaceKey({"north", 1}), value).ok());
  EXPECT_FALSE(OpenMember(records_, EndpointKey({"north", 0}), value).ok());
  for (std::size_t i = 0; i < value.size(); ++i)
    EXPECT_FALSE(OpenMember(records_, key, value.substr(0, i)).ok()) << i;
}

// A newer phubd may have other limits; its views have a valid tag.
TEST_F(MembersTest, AViewThatThisPhubdCannotUseIsRefused) {
  view::View view = TwoRacks();
  view.racks[1].daemons = 65;
  EXPECT_THAT(std::string(MessageOf(OpenView(records_, SealView(records_, view)).status())),
              HasSubstr("probably a newer one has written it: rack[1].daemons is 65"));
  EXPECT_TRUE(absl::IsFailedPrecondition(OpenView(records_, SealView(records_, {})).status()) ||
              absl::IsDataLoss(OpenView(records_, SealView(records_, {})).status()));
  phub::store::v1::Record newer;
  newer.set_version(kRecordVersion + 1);
  EXPECT_THAT(std::string(MessageOf(OpenView(records_, newer.SerializeAsString()).status())),
              HasSubstr("a newer phubd has written it"));
}

TEST_F(MembersTest, FollowTheRecords) {
  EXPECT_EQ(members_.DeclaredView()->number, 0);
  EXPECT_THAT(members_.List(), IsEmpty());
  PutView(TwoRacks());
  EXPECT_EQ(*members_.DeclaredView(), TwoRacks());
  const std::string endpoint = EndpointKey({"north", 0});
  const std::string place = PlaceKey({"north", 0});
  Put(endpoint, SealMember(records_, endpoint, DaemonB()));
  ASSERT_THAT(members_.List(), SizeIs(1));
  EXPECT_FALSE(members_.List()[0].claims);
  Put(place, SealMember(records_, place, DaemonB()));
  ASSERT_THAT(members_.List(), SizeIs(1));
  EXPECT_TRUE(members_.List()[0].claims);
  // The lease ends: the daemon is gone, and the view is as before.
  mirror_.Remove(place, 9);
  ASSERT_THAT(members_.List(), SizeIs(1));
  EXPECT_FALSE(members_.List()[0].claims);
  EXPECT_EQ(members_.DeclaredView()->number, 3);
  mirror_.Remove("/view", 10);
  EXPECT_EQ(members_.DeclaredView()->number, 0);
}

TEST_F(MembersTest, DamagedRecordsAreNotUsed) {
  Put(PlaceKey({"north", 0}), "by hand");
  Put(EndpointKey({"north", 0}), "");
  EXPECT_THAT(members_.List(), IsEmpty());
  Put("/view", "[[rack]]", kViewRevision);
  EXPECT_THAT(std::string(MessageOf(members_.DeclaredView().status())),
              StartsWith("/view in etcd"));
  view::View view = TwoRacks(0);
  EXPECT_THAT(std::string(MessageOf(members_.Declare(view, std::nullopt, {}))),
              StartsWith("the view was not changed: /view in etcd was not written by phub"));
  EXPECT_THAT(written_, IsEmpty());
}

TEST_F(MembersTest, AChangeIsMadeOfTheRevisionThatItWasDecidedOn) {
  view::View view = TwoRacks(0);
  ASSERT_TRUE(members_.Declare(view, 0, {"admin", "", "view.set", "", ""}).ok());
  EXPECT_EQ(view.number, 1);
  ASSERT_THAT(written_, SizeIs(1));
  EXPECT_EQ(written_[0].revision, 0);
  EXPECT_EQ(written_[0].note.actor, "admin");
  EXPECT_EQ(written_[0].note.subject, "view 1");
  EXPECT_EQ(OpenView(records_, written_[0].value)->number, 1);

  PutView(TwoRacks());
  view = {.racks = {{"north", 2}}};
  EXPECT_TRUE(absl::IsAborted(members_.Declare(view, 2, {})));
  EXPECT_THAT(written_, SizeIs(1));
  ASSERT_TRUE(members_.Declare(view, 3, {}).ok());
  EXPECT_EQ(view.number, 4);
  ASSERT_THAT(written_, SizeIs(2));
  EXPECT_EQ(written_[1].revision, kViewRevision);

  committed_ = absl::AbortedError("the view was changed by another daemon meanwhile");
  EXPECT_TRUE(absl::IsAborted(members_.Declare(view, std::nullopt, {})));
}

TEST_F(MembersTest, AViewThatChangesNothingKeepsItsNumber) {
  PutView(TwoRacks());
  view::View view = TwoRacks(0);
  EXPECT_TRUE(members_.Declare(view, std::nullopt, {}).ok());
  EXPECT_EQ(view.number, 3);
  EXPECT_THAT(written_, IsEmpty());
}

TEST_F(MembersTest, AnInvalidViewIsNotDeclared) {
  view::View view;
  EXPECT_TRUE(absl::IsInvalidArgument(members_.Declare(view, std::nullopt, {})));
  EXPECT_THAT(written_, IsEmpty());
}

ClusterMember At(const view::Place& place, const std::string& endpoint, WallTimeNs started_at,
                 bool claims) {
  return {.place = place,
          .daemon = endpoint,
          .instance = "",
          .host = "",
          .endpoint = endpoint,
          .version = "",
          .started_at = started_at,
          .claims = claims};
}

TEST(KnownEndpoints, AreThoseOfDaemonsThatAreOrWereThere) {
  const view::View view{.number = 1, .racks = {{"north", 2}, {"south", 2}}};
  const auto known =
      FindEndpoints(view, {At({"north", 0}, "a:1", 1, true), At({"north", 1}, "b:1", 1, false),
                           At({"south", 0}, "c:1", 1, true)});
  EXPECT_EQ(known.endpoints,
            (std::map<view::Place, std::string>{
                {{"north", 0}, "a:1"}, {{"north", 1}, "b:1"}, {{"south", 0}, "c:1"}}));
  EXPECT_THAT(known.missing, ElementsAre("south/1"));
}

// A host that was at one place and is at another now: its old place waits for another daemon.
TEST(KnownEndpoints, AnEndpointIsOfOnePlace) {
  const view::View view{.number = 1, .racks = {{"north", 2}}};
  auto known =
      FindEndpoints(view, {At({"north", 0}, "a:1", 9, false), At({"north", 1}, "a:1", 5, true)});
  EXPECT_EQ(known.endpoints, (std::map<view::Place, std::string>{{{"north", 1}, "a:1"}}));
  EXPECT_THAT(known.missing, ElementsAre("north/0 (a:1 is now at north/1)"));
  known =
      FindEndpoints(view, {At({"north", 0}, "a:1", 9, false), At({"north", 1}, "a:1", 5, false)});
  EXPECT_THAT(known.missing, ElementsAre("north/1 (a:1 is now at north/0)"));
  // Places of an earlier view count, too.
  known = FindEndpoints(view, {At({"north", 0}, "a:1", 9, false), At({"old", 0}, "a:1", 5, true)});
  EXPECT_THAT(known.missing, ElementsAre("north/0 (a:1 is now at old/0)", "north/1"));
}

TEST_F(MembersTest, AStartingDaemonReadsWhatEtcdHas) {
  const std::string place = PlaceKey({"north", 0});
  const std::string endpoint = EndpointKey({"north", 0});
  ClusterMember before = DaemonB();
  before.endpoint = "10.0.0.9:7700";
  items_ = {{"/view", 1, SealView(records_, TwoRacks())},
            {place, 1, SealMember(records_, place, DaemonB())},
            {PlaceKey({"south", 0}), 1, "damaged"},
            {endpoint, 1, SealMember(records_, endpoint, before)}};
  auto known = members_.Read();
  ASSERT_TRUE(known.ok()) << known.status();
  EXPECT_EQ(known->view, TwoRacks());
  EXPECT_EQ(known->endpoints,
            (std::map<view::Place, std::string>{{{"north", 0}, "10.0.0.2:7700"}}));
  EXPECT_THAT(known->missing, ElementsAre("south/0"));
  items_[0].value = "damaged";
  EXPECT_TRUE(absl::IsDataLoss(members_.Read().status()));
  items_.clear();
  EXPECT_EQ(members_.Read()->view.number, 0);
}

TEST_F(MembersTest, ReportThatAPlaceHasAnotherEndpoint) {
  std::vector<std::string> moved;
  members_.UseView(
      {.view = TwoRacks(), .endpoints = {{{"north", 0}, "10.0.0.2:7700"}}, .missing = {}});
  EXPECT_EQ(members_.used_view(), 3);
  members_.OnEndpoints([&](const view::Place& place, const std::string& endpoint) {
    moved.push_back(ToString(place) + " " + endpoint);
    EXPECT_EQ(members_.used_view(), 3);  // it may call the members
  });
  const std::string key = EndpointKey({"north", 0});
  Put(key, SealMember(records_, key, DaemonB()), 1);
  EXPECT_THAT(moved, IsEmpty());
  ClusterMember other = DaemonB();
  other.endpoint = "10.0.0.7:7700";
  Put(key, SealMember(records_, key, other), 2);
  EXPECT_THAT(moved, ElementsAre("north/0 10.0.0.7:7700"));
  const std::string place = PlaceKey({"north", 0});
  Put(place, SealMember(records_, place, other), 3);
  EXPECT_THAT(moved, SizeIs(1));
}

}  // namespace
}  // namespace phub::server::etcd
