// Tokens, certificates and sessions, right and wrong, against a real daemon.
#include <thread>

#include "tests/process/identity_fixture.h"

namespace phub::process {
namespace {

TEST_F(IdentityTest, WrongTokensAreUnauthenticatedAndCounted) {
  const std::string path = daemon_->IssueToken("wrong", {"--tenant", "acme"});
  const std::string right = TextOf(path);
  EXPECT_EQ(CodeOfToken(right), grpc::StatusCode::OK);
  EXPECT_EQ(CodeOfToken(right + "\n"), grpc::StatusCode::OK);
  const std::uint64_t before = Counted("phub_calls_refused_token_total");
  std::string forged = right;
  forged.back() = forged.back() == 'a' ? 'b' : 'a';
  EXPECT_EQ(CodeOfToken(forged), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(CodeOfToken("phub_" + std::string(16, '0') + "_" + std::string(64, '0')),
            grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(CodeOfToken("not-a-token"), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_TRUE(CountReaches("phub_calls_refused_token_total", before + 3));
  const std::string id = right.substr(5, 16);
  EXPECT_EQ(daemon_->AskAsRoot({"token", "revoke", id, "--yes"}).exit, Exit::WithCode(0));
  EXPECT_EQ(CodeOfToken(right), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_TRUE(CountReaches("phub_calls_refused_revoked_total", 1));
  const std::string brief =
      TextOf(daemon_->IssueToken("brief", {"--tenant", "acme", "--lifetime", "1ms"}));
  EXPECT_EQ(CodeOfToken(brief), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_TRUE(CountReaches("phub_calls_refused_expired_total", 1));
  EXPECT_EQ(Counted("phub_calls_refused_token_total"), before + 3);
  EXPECT_EQ(Counted("phub_calls_refused_revoked_total"), 1u);
  EXPECT_EQ(Counted("phub_calls_refused_expired_total"), 1u);
}

TEST_F(IdentityTest, ATokenIsRotatedUnderARunningChannel) {
  const std::string path = daemon_->IssueToken("rotated", {"--tenant", "acme"});
  const std::string old = TextOf(path);
  const auto stub = v1::Tenants::NewStub(daemon_->Channel(daemon_->WithToken(path)));
  const auto name = [&] {
    grpc::ClientContext context;
    v1::Identity identity;
    const grpc::Status status = stub->WhoAmI(&context, {}, &identity);
    return status.ok() ? identity.name() : status.error_message();
  };
  EXPECT_THAT(name(), HasSubstr(old.substr(5, 16)));
  daemon_->IssueToken("rotated", {"--replaces", old.substr(5, 16), "--grace", "1h"});
  const std::string renewed = TextOf(path);
  EXPECT_NE(renewed, old);
  EXPECT_THAT(name(), HasSubstr(renewed.substr(5, 16)));
  EXPECT_EQ(CodeOfToken(old), grpc::StatusCode::OK);  // still valid during its grace period
  EXPECT_EQ(daemon_->AskAsRoot({"token", "revoke", old.substr(5, 16), "--yes"}).exit,
            Exit::WithCode(0));
  EXPECT_EQ(CodeOfToken(old), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_THAT(name(), HasSubstr("acme"));
}

TEST_F(IdentityTest, WrongCertificatesOpenNothing) {
  v1::Identity identity;
  const auto right = OfCertificate(daemon_->IssueCertificate("tenant", "acme"));
  ASSERT_TRUE(WhoAmI(right, &identity).ok());
  EXPECT_EQ(identity.tenant(), "acme");
  // The tenant does not exist, the trust domain is another one, or there is no identity. TLS
  // accepts these certificates, but the daemon does not.
  for (const auto& [name, uri] : {std::pair("gone", "spiffe://rack.test/tenant/gone"),
                                  std::pair("foreign", "spiffe://other.test/tenant/acme"),
                                  std::pair("role", "spiffe://rack.test/root/acme"),
                                  std::pair("web", "https://rack.test/tenant/acme")}) {
    const std::string path = MakeOdd(name, {.uri = uri, .hosts = {}, .days = 1});
    EXPECT_EQ(WhoAmI(OfCertificate(path)).error_code(), grpc::StatusCode::UNAUTHENTICATED) << name;
  }
  // Expired: TLS refuses the connection.
  const std::string over = MakeOdd(
      "over", {.uri = "spiffe://rack.test/tenant/acme", .hosts = {}, .days = 0, .seconds = -60});
  EXPECT_EQ(WhoAmI(OfCertificate(over)).error_code(), grpc::StatusCode::UNAVAILABLE);
  // From another authority.
  const std::string other = daemon_->folder() + "/other";
  ASSERT_EQ(RunToEnd(kPhubctl, {"pki", "init", other, "--trust-domain", "rack.test"}).exit,
            Exit::WithCode(0));
  ASSERT_EQ(RunToEnd(kPhubctl, {"pki", "issue", other, "admin", "eve"}).exit, Exit::WithCode(0));
  EXPECT_EQ(WhoAmI(OfCertificate(other + "/admin-eve")).error_code(),
            grpc::StatusCode::UNAVAILABLE);
  // A token of one tenant over the connection of another.
  auto mixed = right;
  mixed.token_file = daemon_->IssueToken("mixed", {"--tenant", "zeta"});
  EXPECT_EQ(WhoAmI(mixed).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  // Another authority certifies the daemon, so the client refuses to talk to it.
  auto deceived = daemon_->WithToken(mixed.token_file);
  deceived.ca_file = other + "/ca.crt";
  EXPECT_EQ(WhoAmI(deceived).error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(IdentityTest, NewCertificatesAreTakenUpWithoutARestart) {
  const auto serial = [&] {
    const auto stub = v1::Tenants::NewStub(daemon_->Channel(daemon_->WithToken("")));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    v1::Identity identity;
    stub->WhoAmI(&context, {}, &identity);
    const auto connection = context.auth_context();
    if (connection == nullptr) return std::string();
    const auto pem = connection->FindPropertyValues(GRPC_X509_PEM_CERT_PROPERTY_NAME);
    return pem.empty() ? std::string() : std::string(pem[0].data(), pem[0].size());
  };
  const std::string before = serial();
  ASSERT_NE(before, "");
  daemon_->IssueCertificate("server", "node");
  std::string after = before;
  for (int i = 0; i < 100 && (after == before || after.empty()); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    after = serial();
  }
  EXPECT_NE(after, before);
  EXPECT_NE(after, "");
}

TEST_F(IdentityTest, ASessionIsItsTenantsAlone) {
  const auto acme =
      daemon_->Channel(daemon_->WithToken(daemon_->IssueToken("owner", {"--tenant", "acme"})));
  const auto zeta =
      daemon_->Channel(daemon_->WithToken(daemon_->IssueToken("thief", {"--tenant", "zeta"})));
  v1::JoinResponse joined;
  grpc::ClientContext joining;
  const grpc::Status status =
      v1::Session::NewStub(acme)->Join(&joining, JoinOf("stolen", 1), &joined);
  ASSERT_TRUE(status.ok()) << status.error_message();
  const auto thief = v1::Session::NewStub(zeta);
  const auto steal = [&](auto method, auto request, auto response) {
    grpc::ClientContext context;
    request.set_session_id(joined.session_id());
    return (thief.get()->*method)(&context, request, &response).error_code();
  };
  using Stub = v1::Session::Stub;
  constexpr auto kDenied = grpc::StatusCode::PERMISSION_DENIED;
  EXPECT_EQ(steal(&Stub::Commit, v1::CommitRequest(), v1::CommitResponse()), kDenied);
  EXPECT_EQ(steal(&Stub::AddKeys, v1::AddKeysRequest(), v1::AddKeysResponse()), kDenied);
  EXPECT_EQ(steal(&Stub::OpenLanes, v1::OpenLanesRequest(), v1::OpenLanesResponse()), kDenied);
  EXPECT_EQ(steal(&Stub::Barrier, v1::BarrierRequest(), v1::BarrierResponse()), kDenied);
  EXPECT_EQ(steal(&Stub::GetVersions, v1::GetVersionsRequest(), v1::GetVersionsResponse()),
            kDenied);
  EXPECT_EQ(steal(&Stub::GetLoadedState, v1::GetLoadedStateRequest(), v1::LoadedState()), kDenied);
  EXPECT_EQ(steal(&Stub::Leave, v1::LeaveRequest(), v1::LeaveResponse()), kDenied);
  grpc::ClientContext attending;
  const auto stream = thief->Attend(&attending);
  v1::Heartbeat heartbeat;
  heartbeat.set_session_id(joined.session_id());
  stream->Write(heartbeat);
  EXPECT_EQ(stream->Finish().error_code(), kDenied);
  grpc::ClientContext loading;
  v1::LoadStateResponse loaded;
  const auto load = thief->LoadState(&loading, &loaded);
  v1::LoadStateRequest part;
  part.set_session_id(joined.session_id());
  load->Write(part);
  load->WritesDone();
  EXPECT_EQ(load->Finish().error_code(), kDenied);
  EXPECT_TRUE(CountReaches("phub_calls_refused_tenant_total", 9));
  // Expect: the owner is not disturbed, and the other tenant cannot see the job.
  grpc::ClientContext committing;
  v1::CommitRequest commit;
  commit.set_session_id(joined.session_id());
  v1::CommitResponse committed;
  EXPECT_TRUE(v1::Session::NewStub(acme)->Commit(&committing, commit, &committed).ok());
  EXPECT_THAT(daemon_->Ask(daemon_->folder() + "/thief.token", {"job", "list"}).output,
              Not(HasSubstr("stolen")));
  EXPECT_THAT(daemon_->Ask(daemon_->folder() + "/owner.token", {"job", "list"}).output,
              HasSubstr("stolen"));
  EXPECT_EQ(daemon_->Ask(daemon_->folder() + "/thief.token", {"job", "get", "stolen"}).exit,
            Exit::WithCode(3));
}

}  // namespace
}  // namespace phub::process
