// Kills a daemon (kill -9) at any instant while its control state changes. Changes that were
// acknowledged exist after a restart, other changes are complete or absent, and the audit log
// agrees.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "common/base/random.h"
#include "phub/v1/tenants.grpc.pb.h"
#include "server/tenant/sqlite_store.h"
#include "tests/process/identity_daemon.h"

namespace phub::process {
namespace {

constexpr int kKills = 6;
constexpr int kKillsLong = 300;

// The memory quota of each tenant, the only property that this test changes.
using Tenants = std::map<std::string, std::uint64_t>;

// Changes control state over the socket until the daemon is gone.
class Changer {
 public:
  Changer(const std::string& socket, SeededRandom& random, Tenants known)
      : stub_(v1::Tenants::NewStub(*client::MakeChannel(socket, {}, Arguments()))),
        random_(random),
        answered_(std::move(known)),
        in_doubt_(answered_) {}

  void Run() {
    while (Change()) {
    }
  }
  // Makes one change that is certainly complete, so that no round is empty.
  bool Change() {
    const std::string name = fmt::format("tenant-{}", random_.Below(8));
    const std::uint64_t bytes = 1 + random_.Below(1u << 20);
    in_doubt_ = answered_;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    v1::TenantInfo tenant;
    grpc::Status status;
    if (!answered_.contains(name)) {
      v1::CreateTenantRequest request;
      request.set_name(name);
      request.mutable_quota()->set_memory_bytes(bytes);
      in_doubt_[name] = bytes;
      status = stub_->CreateTenant(&context, request, &tenant);
    } else if (random_.Chance(1, 4)) {
      v1::DeleteTenantRequest request;
      request.set_tenant(name);
      v1::DeleteTenantResponse response;
      in_doubt_.erase(name);
      status = stub_->DeleteTenant(&context, request, &response);
    } else if (random_.Chance(1, 2)) {
      v1::IssueTokenRequest request;
      request.set_tenant(name);
      v1::IssuedToken issued;
      status = stub_->IssueToken(&context, request, &issued);
      if (status.ok()) tokens_.push_back({name, issued.token()});
    } else {
      v1::SetQuotaRequest request;
      request.set_tenant(name);
      request.mutable_set()->set_memory_bytes(bytes);
      in_doubt_[name] = bytes;
      status = stub_->SetQuota(&context, request, &tenant);
    }
    if (!status.ok()) {
      refusal_ = status;
      return false;
    }
    answered_ = in_doubt_;
    std::erase_if(tokens_, [&](const auto& token) { return !answered_.contains(token.first); });
    ++answers_;
    return true;
  }

  const Tenants& answered() const { return answered_; }
  const Tenants& in_doubt() const { return in_doubt_; }
  int answers() const { return answers_; }
  const grpc::Status& refusal() const { return refusal_; }
  const std::vector<std::pair<std::string, std::string>>& tokens() const { return tokens_; }

 private:
  static grpc::ChannelArguments Arguments() {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return arguments;
  }
  const std::unique_ptr<v1::Tenants::Stub> stub_;
  SeededRandom& random_;
  Tenants answered_;
  Tenants in_doubt_;
  std::vector<std::pair<std::string, std::string>> tokens_;  // tenant, token
  int answers_ = 0;
  grpc::Status refusal_;
};

Tenants TenantsOf(v1::Tenants::Stub& stub) {
  grpc::ClientContext context;
  v1::ListTenantsResponse response;
  const grpc::Status status = stub.ListTenants(&context, {}, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  Tenants tenants;
  for (const v1::TenantInfo& tenant : response.tenants()) {
    tenants[tenant.name()] = tenant.quota().memory_bytes();
  }
  return tenants;
}

std::int64_t LastAudit(v1::Tenants::Stub& stub) {
  grpc::ClientContext context;
  v1::ListAuditRequest request;
  request.set_count_max(1);
  request.set_newest(true);
  v1::ListAuditResponse response;
  EXPECT_TRUE(stub.ListAudit(&context, request, &response).ok());
  return response.entries_size() == 0 ? 0 : response.entries(0).sequence();
}

grpc::Status WhoAmI(v1::Tenants::Stub& stub, const std::string& token) {
  grpc::ClientContext context;
  context.AddMetadata("authorization", "Bearer " + token);
  v1::Identity identity;
  return stub.WhoAmI(&context, {}, &identity);
}

void Sleep(std::uint64_t microseconds) {
  std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
}

TEST(ControlStoreKill, SurvivesKillsAtAnyInstant) {
  const int kills = std::getenv("PHUB_TEST_LONG") != nullptr ? kKillsLong : kKills;
  SeededRandom random(20261121);
  IdentityDaemon daemon;
  ASSERT_NE(daemon.endpoint(), "") << daemon.process().Outputs();
  Tenants known;
  std::int64_t audited = 0;
  std::int64_t answers = 0;
  for (int round = 0; round < kills; ++round) {
    SCOPED_TRACE(round);
    Changer changer(daemon.socket(), random, known);
    ASSERT_TRUE(changer.Change()) << changer.refusal().error_message();
    std::thread thread([&] { changer.Run(); });
    Sleep(random.Below(40'000));
    daemon.Kill();
    thread.join();
    ASSERT_EQ(changer.refusal().error_code(), grpc::StatusCode::UNAVAILABLE)
        << changer.refusal().error_message();
    answers += changer.answers();
    if (random.Chance(1, 3)) {  // kills it again while it starts
      const Process starting = Process::Start(
          kPhubd, {"--listen", "127.0.0.1:0", "--state-dir", daemon.folder() + "/state",
                   "--control-socket", daemon.folder() + "/control.sock", "--cores", "1"});
      Sleep(random.Below(60'000));
      starting.Signal(SIGKILL);
    }
    if (random.Chance(1, 2)) {  // sometimes another process than the daemon recovers the log
      SystemRandom unused;
      const auto store = server::SqliteStore::Open(daemon.folder() + "/state", unused);
      ASSERT_TRUE(store.ok()) << store.status();
      ASSERT_TRUE((*store)->VerifyAudit().ok()) << (*store)->VerifyAudit();
    }
    ASSERT_TRUE(daemon.Start()) << daemon.process().Outputs();
    const auto root =
        v1::Tenants::NewStub(*client::MakeChannel(daemon.socket(), {}, grpc::ChannelArguments()));
    const Tenants found = TenantsOf(*root);
    ASSERT_TRUE(found == changer.answered() || found == changer.in_doubt());
    const std::int64_t last = LastAudit(*root);
    ASSERT_GE(last, audited + changer.answers());
    ASSERT_LE(last, audited + changer.answers() + 1);  // the change in doubt
    const auto nobody =
        v1::Tenants::NewStub(*client::MakeChannel(daemon.endpoint(), {}, grpc::ChannelArguments()));
    for (const auto& [tenant, token] : changer.tokens()) {
      if (!found.contains(tenant)) continue;  // deleted by the change in doubt
      const grpc::Status status = WhoAmI(*nobody, token);
      ASSERT_TRUE(status.ok()) << status.error_message();
    }
    known = found;
    audited = last;
  }
  RecordProperty("changes", std::to_string(answers));
  std::printf("%d kills, %lld changes answered\n", kills, static_cast<long long>(answers));
  daemon.Kill();
  SystemRandom unused;
  const auto store = server::SqliteStore::Open(daemon.folder() + "/state", unused);
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_TRUE((*store)->VerifyAudit().ok());
}

}  // namespace
}  // namespace phub::process
