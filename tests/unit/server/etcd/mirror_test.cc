#include "server/etcd/mirror.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "server/etcd/client.h"

namespace phub::server::etcd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Writes down what it hears.
class Follower : public StoreFollower {
 public:
  void TenantChanged(const Tenant& tenant) override {
    heard.push_back((tenant.suspended ? "suspended " : "active ") + tenant.name);
  }
  void TenantRemoved(const std::string& name) override { heard.push_back("removed " + name); }
  void TokenChanged(const Token& token) override { heard.push_back("token " + token.id); }
  void TokenRemoved(const std::string& id) override { heard.push_back("no token " + id); }
  std::vector<std::string> Take() { return std::exchange(heard, {}); }
  std::vector<std::string> heard;
};

class MirrorTest : public ::testing::Test {
 protected:
  Item Of(const std::string& name, std::int64_t revision, bool suspended = false) const {
    const Tenant tenant{.name = name, .suspended = suspended};
    return {TenantKey(name), revision, records_.OfTenant(tenant)};
  }
  Item OfToken(const std::string& id, std::int64_t revision) const {
    const Token token{.id = id, .tenant = "acme", .hash = "h"};
    return {TokenKey(token), revision, records_.OfToken(token)};
  }
  void SetUp() override { mirror_.SetFollower(&follower_); }

  const Records records_{std::string(32, 'k'), "cluster"};
  Follower follower_;
  Mirror mirror_{records_};
};

TEST_F(MirrorTest, TheNewestRevisionCountsInWhateverOrderTheyArrive) {
  mirror_.Put(Of("acme", 7, true));
  mirror_.Put(Of("acme", 5));  // the watch is behind this daemon's own change
  mirror_.Put(Of("acme", 7, true));
  EXPECT_THAT(follower_.Take(), ElementsAre("suspended acme"));
  mirror_.Remove(TenantKey("acme"), 9);
  mirror_.Put(Of("acme", 8));  // does not come back
  EXPECT_THAT(follower_.Take(), ElementsAre("removed acme"));
  EXPECT_EQ(mirror_.RevisionOf(TenantKey("acme")), 0);
  mirror_.AdvanceTo(9);
  mirror_.Put(Of("acme", 10));  // created again
  EXPECT_THAT(follower_.Take(), ElementsAre("active acme"));
}

TEST_F(MirrorTest, ATenantTakesItsTokens) {
  mirror_.Put(Of("acme", 1));
  mirror_.Put(OfToken("aa", 2));
  mirror_.Put(OfToken("bb", 3));
  follower_.Take();
  mirror_.RemoveTokensOf("acme", 4);
  EXPECT_THAT(follower_.Take(), ElementsAre("no token aa", "no token bb"));
  EXPECT_THAT(mirror_.Tokens(), IsEmpty());
}

TEST_F(MirrorTest, WhatCannotBeReadPermitsNothing) {
  mirror_.Put(Of("acme", 1));
  mirror_.Put(OfToken("aa", 2));
  follower_.Take();
  mirror_.Put({TenantKey("acme"), 3, "by hand"});
  mirror_.Put({OfToken("aa", 0).key, 4, OfToken("aa", 0).value.substr(0, 9)});
  mirror_.Put({TenantKey("new"), 5, ""});
  EXPECT_THAT(follower_.Take(), ElementsAre("suspended acme", "no token aa", "suspended new"));
  EXPECT_THAT(std::string(mirror_.FaultOf(TenantKey("acme")).message()),
              HasSubstr("/tenants/acme"));
  mirror_.Put(Of("acme", 6));  // restored
  EXPECT_THAT(follower_.Take(), ElementsAre("active acme"));
  EXPECT_TRUE(mirror_.FaultOf(TenantKey("acme")).ok());
}

TEST_F(MirrorTest, AListReplacesEverythingButLaterChanges) {
  mirror_.Put(Of("acme", 1));
  mirror_.Put(Of("gone", 2));
  mirror_.Put(Of("mine", 9));  // made by this daemon after the list was read
  follower_.Take();
  mirror_.Replace({Of("acme", 3, true)}, 5, /*went_back=*/false);
  EXPECT_THAT(follower_.Take(), ElementsAre("removed gone", "suspended acme"));
  EXPECT_THAT(mirror_.Tenants(), SizeIs(2));
  // A restored backup counts, whatever its revisions are.
  mirror_.Replace({Of("acme", 1)}, 2, /*went_back=*/true);
  EXPECT_THAT(follower_.Take(), ElementsAre("removed mine", "active acme"));
  EXPECT_EQ(mirror_.revision(), 2);
}

TEST_F(MirrorTest, WithoutAReadableHeadThereAreNoChanges) {
  std::int64_t revision = 0;
  mirror_.Put({std::string(kHeadKey), 4, records_.OfHead({12, "chain"})});
  EXPECT_EQ(mirror_.Head(revision)->sequence, 12);
  EXPECT_EQ(revision, 4);
  mirror_.Put({std::string(kHeadKey), 5, records_.OfHead({12, "chain"}).substr(1)});
  EXPECT_FALSE(mirror_.Head(revision).ok());
  mirror_.Put({std::string(kHeadKey), 6, records_.OfHead({13, "chain"})});
  EXPECT_EQ(mirror_.Head(revision)->sequence, 13);
  mirror_.Remove(std::string(kHeadKey), 7);
  EXPECT_FALSE(mirror_.Head(revision).ok());
}

TEST(Endpoints, AreUrlsWithAPort) {
  EXPECT_THAT(*ParseEndpoints("https://a:2379,http://[::1]:1"),
              ElementsAre("https://a:2379", "http://[::1]:1"));
  for (const char* wrong : {"", "a:2379", "https://a", "https://a:2379/x", "https://:2379"}) {
    EXPECT_FALSE(ParseEndpoints(wrong).ok()) << wrong;
  }
}

}  // namespace
}  // namespace phub::server::etcd
