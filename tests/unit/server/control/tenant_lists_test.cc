// Lists of thousands of tenants and tokens, over a real loopback channel.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "phub/v1/tenants.grpc.pb.h"
#include "server/control/rpc/grpc_server.h"
#include "server/tenant/directory.h"
#include "tests/unit/server/control/control_fixture.h"

namespace phub::server {
namespace {

using ::testing::HasSubstr;

constexpr int kTenants = 3000;
constexpr int kTokens = 5000;

class TenantListsTest : public ::testing::Test {
 protected:
  TenantListsTest()
      : control_(clock_, random_, {{&core_.queues, &core_.counters, {}}}, {}),
        thread_(control_, clock_) {
    EXPECT_TRUE(thread_.Start().ok());
    auto server = GrpcServer::Create(thread_, {.directory = &directory_});
    EXPECT_TRUE(server.ok()) << server.status().message();
    server_ = std::move(*server);
    stub_ = v1::Tenants::NewStub(grpc::CreateChannel("127.0.0.1:" + std::to_string(server_->port()),
                                                     grpc::InsecureChannelCredentials()));
  }
  ~TenantListsTest() override {
    server_->Shutdown();
    thread_.Stop();
  }
  struct Context : grpc::ClientContext {
    Context() {
      set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
      set_wait_for_ready(true);
    }
  };
  static std::string Name(int i) { return fmt::format("t{:04}", i); }
  // Ten tokens of each time; their ids do not follow the order of the list.
  static std::string Id(int i) { return fmt::format("{:016x}", kTokens - i); }
  void AddTenants() {
    for (int i = 0; i < kTenants; ++i) directory_.SetTenant({.name = Name(i)});
  }
  void AddTokens() {
    for (int i = 0; i < kTokens; ++i) {
      directory_.SetToken(
          {.id = Id(i), .tenant = i % 2 == 0 ? "even" : "odd", .created_at = 1000 + i / 10});
    }
  }
  grpc::Status List(const v1::ListTenantsRequest& request, v1::ListTenantsResponse& response) {
    Context context;
    return stub_->ListTenants(&context, request, &response);
  }
  grpc::Status List(const v1::ListTokensRequest& request, v1::ListTokensResponse& response) {
    Context context;
    return stub_->ListTokens(&context, request, &response);
  }

  SystemClock clock_;
  SystemRandom random_;
  FakeCore core_;
  Control control_;
  ControlThread thread_;
  Directory directory_;
  std::unique_ptr<GrpcServer> server_;
  std::unique_ptr<v1::Tenants::Stub> stub_;
};

TEST_F(TenantListsTest, TenantsAreListedInPages) {
  AddTenants();
  v1::ListTenantsRequest request;
  request.set_page_size(1000);
  std::vector<std::string> names;
  int pages = 0;
  do {
    v1::ListTenantsResponse page;
    const grpc::Status status = List(request, page);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_LE(page.tenants_size(), static_cast<int>(TurnBudget().jobs));
    for (const v1::TenantInfo& tenant : page.tenants()) names.push_back(tenant.name());
    // The last tenant of this page is deleted, and another one later in the list.
    if (++pages == 1) {
      directory_.RemoveTenant(names.back());
      directory_.RemoveTenant(Name(kTenants - 1));
    }
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  ASSERT_EQ(names.size(), kTenants - 1u);
  for (std::size_t i = 0; i < names.size(); ++i) EXPECT_EQ(names[i], Name(static_cast<int>(i)));
  request.set_tenant(Name(7));
  v1::ListTenantsResponse one;
  EXPECT_TRUE(List(request, one).ok());
  ASSERT_EQ(one.tenants_size(), 1);
  EXPECT_EQ(one.tenants(0).name(), Name(7));
  EXPECT_EQ(one.next_page_token(), "");
}

// Older clients do not request pages.
TEST_F(TenantListsTest, AWholeListIsCompleteOrRefused) {
  AddTenants();
  AddTokens();
  v1::ListTenantsResponse tenants;
  ASSERT_TRUE(List(v1::ListTenantsRequest(), tenants).ok());
  ASSERT_EQ(tenants.tenants_size(), kTenants);
  for (int i = 0; i < kTenants; ++i) EXPECT_EQ(tenants.tenants(i).name(), Name(i));
  EXPECT_EQ(tenants.next_page_token(), "");
  v1::ListTokensResponse tokens;
  ASSERT_TRUE(List(v1::ListTokensRequest(), tokens).ok());
  EXPECT_EQ(tokens.tokens_size(), kTokens);
  EXPECT_EQ(tokens.next_page_token(), "");
  // Expect: more than 16 MiB are refused, and the message says what to do.
  const std::string padding(20'000, 'x');
  for (int i = 0; i < 1000; ++i) {
    directory_.SetTenant({.name = fmt::format("u{:04}{}", i, padding)});
    directory_.SetToken({.id = fmt::format("u{:04}", i), .label = padding});
  }
  for (const grpc::Status& status :
       {List(v1::ListTenantsRequest(), tenants), List(v1::ListTokensRequest(), tokens)}) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_THAT(status.error_message(), HasSubstr("request pages (page_size)"));
  }
}

TEST_F(TenantListsTest, TokensAreListedInPagesOldestFirst) {
  AddTokens();
  v1::ListTokensRequest request;
  request.set_page_size(300);
  for (const std::string tenant : {"", "odd"}) {
    request.set_tenant(tenant);
    std::vector<std::pair<std::int64_t, std::string>> found;
    do {
      v1::ListTokensResponse page;
      const grpc::Status status = List(request, page);
      ASSERT_TRUE(status.ok()) << status.error_message();
      EXPECT_LE(page.tokens_size(), 300);
      for (const v1::TokenInfo& token : page.tokens())
        found.emplace_back(token.created_at_ns(), token.id());
      request.set_page_token(page.next_page_token());
    } while (!request.page_token().empty());
    EXPECT_EQ(found.size(), tenant.empty() ? kTokens : kTokens / 2u);
    EXPECT_TRUE(std::ranges::is_sorted(found));
    EXPECT_EQ(std::ranges::adjacent_find(found), found.end());
  }
}

TEST_F(TenantListsTest, LongTokensMakeShortPages) {
  for (int i = 0; i < 100; ++i)
    directory_.SetToken({.id = Id(i), .label = std::string(20'000, 'x')});
  v1::ListTokensRequest request;
  request.set_page_size(100);
  v1::ListTokensResponse page;
  ASSERT_TRUE(List(request, page).ok());
  EXPECT_LT(page.ByteSizeLong(), 300u << 10);
  EXPECT_NE(page.next_page_token(), "");
}

TEST_F(TenantListsTest, ForeignPageTokensAreRefused) {
  AddTokens();
  for (const char* const token : {"x", "17", "17x:00", ":"}) {
    v1::ListTokensRequest request;
    request.set_page_token(token);
    v1::ListTokensResponse page;
    EXPECT_EQ(List(request, page).error_code(), grpc::StatusCode::INVALID_ARGUMENT) << token;
  }
}

}  // namespace
}  // namespace phub::server
