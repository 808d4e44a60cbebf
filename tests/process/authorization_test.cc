// Calls every method of the control plane with every role and several tenants on a real daemon. The
// result must match the table, and a method that is not in the table must be refused.
#include "server/tenant/authorization.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/impl/client_unary_call.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <set>
#include <thread>

#include "common/base/secret_file.h"
#include "phub/v1/admin.pb.h"
#include "phub/v1/cluster.pb.h"
#include "phub/v1/peer.pb.h"
#include "phub/v1/probe.pb.h"
#include "phub/v1/session.pb.h"
#include "phub/v1/tenants.grpc.pb.h"
#include "tests/process/identity_daemon.h"

namespace phub::process {
namespace {

using server::MethodRule;
using server::Role;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<const google::protobuf::MethodDescriptor*> AllMethods() {
  std::vector<const google::protobuf::MethodDescriptor*> methods;
  for (const google::protobuf::FileDescriptor* file :
       {v1::JoinRequest::descriptor()->file(), v1::GetServerRequest::descriptor()->file(),
        v1::WhoAmIRequest::descriptor()->file(), v1::PeerEnvelope::descriptor()->file(),
        v1::ProbePairRequest::descriptor()->file(), v1::GetClusterRequest::descriptor()->file()}) {
    for (int i = 0; i < file->service_count(); ++i) {
      for (int j = 0; j < file->service(i)->method_count(); ++j) {
        methods.push_back(file->service(i)->method(j));
      }
    }
  }
  return methods;
}

std::string NameOf(const google::protobuf::MethodDescriptor& method) {
  return fmt::format("{}/{}", method.service()->full_name(), method.name());
}

TEST(AuthorizationTable, HasARowForEveryMethodAndNoOther) {
  std::set<std::string> methods;
  for (const auto* method : AllMethods()) methods.insert(NameOf(*method));
  std::set<std::string> rows;
  for (const MethodRule& rule : server::MethodRules()) rows.insert(std::string(rule.method));
  EXPECT_EQ(methods, rows);
  EXPECT_GT(methods.size(), 30u);
}

class AuthorizationTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    daemon_ = new IdentityDaemon({.tls = true});
    ASSERT_NE(daemon_->endpoint(), "") << daemon_->process().Outputs();
    for (const char* tenant : {"acme", "zeta"}) {
      const Finished made = daemon_->AskAsRoot({"tenant", "create", tenant});
      ASSERT_EQ(made.exit, Exit::WithCode(0)) << made.error;
    }
  }
  static void TearDownTestSuite() {
    delete daemon_;
    daemon_ = nullptr;
  }
  static client::Credentials WithCertificate(const std::string& role, const std::string& name) {
    const std::string path = daemon_->IssueCertificate(role, name);
    client::Credentials credentials;
    credentials.ca_file = daemon_->pki() + "/ca.crt";
    credentials.certificate = path + ".crt";
    credentials.key = path + ".key";
    return credentials;
  }
  // Sends one message to a method of any kind (unary or streaming), then closes the stream. Returns
  // the status.
  static grpc::Status Call(const std::shared_ptr<grpc::Channel>& channel,
                           const google::protobuf::MethodDescriptor& method,
                           const google::protobuf::Message& message) {
    const std::string bytes = message.SerializeAsString();
    const grpc::Slice slice(bytes);
    const grpc::ByteBuffer request(&slice, 1);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    grpc::GenericStub stub(channel);
    grpc::CompletionQueue queue;
    const auto next = [&] {
      void* tag = nullptr;
      bool ok = false;
      return queue.Next(&tag, &ok) && ok;
    };
    auto call = stub.PrepareCall(&context, fmt::format("/{}", NameOf(method)), &queue);
    call->StartCall(nullptr);
    next();
    call->WriteLast(request, grpc::WriteOptions(), nullptr);
    next();
    grpc::ByteBuffer answer;
    for (bool more = true; more;) {
      call->Read(&answer, nullptr);
      more = next();
    }
    grpc::Status status;
    call->Finish(&status, nullptr);
    next();
    return status;
  }
  // A request message for the method. It names the tenant if it has a field for that.
  static std::unique_ptr<google::protobuf::Message> RequestOf(
      const google::protobuf::MethodDescriptor& method, const std::string& tenant) {
    std::unique_ptr<google::protobuf::Message> message(
        google::protobuf::MessageFactory::generated_factory()
            ->GetPrototype(method.input_type())
            ->New());
    const auto* field = method.input_type()->FindFieldByName("tenant");
    if (field != nullptr && !tenant.empty()) {
      message->GetReflection()->SetString(message.get(), field, tenant);
    }
    return message;
  }
  static bool IsDenied(const grpc::Status& status) {
    return status.error_code() == grpc::StatusCode::PERMISSION_DENIED ||
           status.error_code() == grpc::StatusCode::UNAUTHENTICATED;
  }

  static IdentityDaemon* daemon_;
};
IdentityDaemon* AuthorizationTest::daemon_ = nullptr;

// Every role with a certificate and with a token, since they are checked by different code.
TEST_F(AuthorizationTest, EveryMethodForEveryRole) {
  std::map<std::string, std::pair<Role, std::shared_ptr<grpc::Channel>>> callers;
  for (const Role role : {Role::kOperator, Role::kAdmin, Role::kServer}) {
    const std::string name = server::ToString(role);
    callers["certificate of " + name] = {role, daemon_->Channel(WithCertificate(name, "someone"))};
    callers["token of " + name] = {
        role, daemon_->Channel(daemon_->WithToken(daemon_->IssueToken(name, {"--role", name})))};
  }
  callers["certificate of a tenant"] = {Role::kTenant,
                                        daemon_->Channel(WithCertificate("tenant", "acme"))};
  callers["token of a tenant"] = {
      Role::kTenant,
      daemon_->Channel(daemon_->WithToken(daemon_->IssueToken("acme", {"--tenant", "acme"})))};
  callers["nobody"] = {Role::kNone, daemon_->Channel(daemon_->WithToken(""))};
  int cells = 0;
  for (const auto* method : AllMethods()) {
    const MethodRule& rule = *server::FindMethodRule(NameOf(*method));
    if (method->name() == "DrainServer") continue;  // it would end the test; see below
    for (const auto& [name, caller] : callers) {
      const grpc::Status status = Call(caller.second, *method, *RequestOf(*method, ""));
      const std::string cell =
          fmt::format("{} by {}: {} {}", rule.method, name, static_cast<int>(status.error_code()),
                      status.error_message());
      EXPECT_EQ(IsDenied(status), !rule.Allows(caller.first)) << cell;
      if (caller.first == Role::kNone) {
        EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED) << cell;
      }
      ++cells;
    }
  }
  EXPECT_EQ(cells, static_cast<int>((AllMethods().size() - 1) * callers.size()));
}

TEST_F(AuthorizationTest, ATenantNamingAnotherIsDeniedOnEveryMethodThatNamesOne) {
  const auto acme = daemon_->Channel(WithCertificate("tenant", "acme"));
  int methods = 0;
  for (const auto* method : AllMethods()) {
    const MethodRule& rule = *server::FindMethodRule(NameOf(*method));
    if (!rule.Allows(Role::kTenant)) continue;
    if (method->input_type()->FindFieldByName("tenant") == nullptr) continue;
    if (method->name() == "GetRack") continue;  // concerns the daemon; the tenant is not checked
    const grpc::Status foreign = Call(acme, *method, *RequestOf(*method, "zeta"));
    EXPECT_EQ(foreign.error_code(), grpc::StatusCode::PERMISSION_DENIED)
        << rule.method << ": " << foreign.error_message();
    const grpc::Status own = Call(acme, *method, *RequestOf(*method, "acme"));
    EXPECT_FALSE(IsDenied(own)) << rule.method << ": " << own.error_message();
    ++methods;
  }
  EXPECT_GE(methods, 9);
}

// Daemons of other racks forward requests for jobs that span racks. They have no permission for
// jobs of one rack.
TEST_F(AuthorizationTest, DaemonsOfOtherRacksSaveAndLoadOnlyWhatSpansRacks) {
  const auto daemon = daemon_->Channel(WithCertificate("server", "node"));
  for (const auto* method : AllMethods()) {
    const std::set<std::string> passed_on = {"GetJobVersions", "BeginSnapshot", "ReadSnapshot",
                                             "ReportSavedState", "LoadState"};
    if (!passed_on.contains(method->name())) continue;
    const grpc::Status status = Call(daemon, *method, *RequestOf(*method, "acme"));
    EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION) << NameOf(*method);
    EXPECT_THAT(status.error_message(), HasSubstr("jobs that span racks only"));
  }
}

TEST_F(AuthorizationTest, WhatHasNoRowIsUnknownAndReflectionIsOff) {
  const auto admin = daemon_->Channel(WithCertificate("admin", "ada"));
  for (const char* method : {"/phub.v1.Admin/Explode", "/phub.v1.Nothing/AtAll",
                             "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"}) {
    grpc::ClientContext context;
    const grpc::Slice nothing("");
    const grpc::ByteBuffer request(&nothing, 1);
    grpc::ByteBuffer response;
    const grpc::internal::RpcMethod called(method, grpc::internal::RpcMethod::NORMAL_RPC);
    const grpc::Status status =
        grpc::internal::BlockingUnaryCallImpl<grpc::ByteBuffer, grpc::ByteBuffer>(
            admin.get(), called, &context, request, &response)
            .status();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED) << method;
  }
}

TEST_F(AuthorizationTest, DrainingIsForOperatorsAndAttemptsAreInTheLog) {
  // The calls above may have used up the burst of audit records; then one record per second
  // remains.
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  const std::string tenant = daemon_->IssueToken("drainer", {"--tenant", "acme"});
  const Finished refused = daemon_->Ask(tenant, {"server", "drain"});
  EXPECT_EQ(refused.exit, Exit::WithCode(4)) << refused.error;
  const std::string night = daemon_->IssueToken("night", {"--role", "operator"});
  EXPECT_EQ(daemon_->Ask(night, {"server", "drain"}).exit, Exit::WithCode(0));
  EXPECT_EQ(daemon_->Ask(night, {"server", "undrain"}).exit, Exit::WithCode(0));
  const Finished log = daemon_->AskAsRoot({"audit", "tail"});
  EXPECT_THAT(log.output, HasSubstr("phub.v1.Admin/DrainServer"));
  EXPECT_THAT(log.output, HasSubstr("of tenant acme"));
  EXPECT_THAT(log.output, HasSubstr("refused"));
  EXPECT_THAT(log.output, HasSubstr("server.undrain"));
  EXPECT_THAT(log.output, HasSubstr("(operator)"));
}

// A token belongs to a call. The connection has no identity.
TEST_F(AuthorizationTest, TwoTenantsOnOneConnectionAreKeptApart) {
  const auto channel = daemon_->Channel(daemon_->WithToken(""));
  const auto stub = v1::Tenants::NewStub(channel);
  const auto text = [](const std::string& path) {
    const auto read = ReadSecretFile(path);
    return read->substr(0, read->find('\n'));
  };
  const std::string acme = text(daemon_->IssueToken("one", {"--tenant", "acme"}));
  const std::string zeta = text(daemon_->IssueToken("two", {"--tenant", "zeta"}));
  for (int i = 0; i < 20; ++i) {
    for (const auto& [token, tenant] : {std::pair(acme, "acme"), std::pair(zeta, "zeta")}) {
      grpc::ClientContext context;
      context.AddMetadata("authorization", "Bearer " + token);
      v1::Identity identity;
      ASSERT_TRUE(stub->WhoAmI(&context, {}, &identity).ok());
      EXPECT_EQ(identity.tenant(), tenant);
    }
    grpc::ClientContext context;
    v1::Identity identity;
    EXPECT_EQ(stub->WhoAmI(&context, {}, &identity).error_code(),
              grpc::StatusCode::UNAUTHENTICATED);
  }
}

}  // namespace
}  // namespace phub::process
