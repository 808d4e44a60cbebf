// A daemon with identities and TLS for a suite of tests, with the tenants acme and zeta.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "client/cli/certificates.h"
#include "common/base/secret_file.h"
#include "phub/v1/admin.grpc.pb.h"
#include "phub/v1/session.grpc.pb.h"
#include "phub/v1/tenants.grpc.pb.h"
#include "tests/process/identity_daemon.h"

namespace phub::process {

using ::testing::HasSubstr;
using ::testing::Not;

// A certificate of the daemon's authority that phubctl would refuse to issue. Returns the path
// without ".crt".
inline std::string MakeOddCertificate(const IdentityDaemon& daemon, const std::string& name,
                                      const client::cli::CertificateRequest& asked) {
  const auto read = [](const std::string& path) {
    std::ifstream file(path);
    return std::string{std::istreambuf_iterator<char>(file), {}};
  };
  const auto made = client::cli::MakeCertificate(
      {read(daemon.pki() + "/ca.crt"), read(daemon.pki() + "/ca.key")}, asked);
  EXPECT_TRUE(made.ok());
  const std::string path = daemon.folder() + "/" + name;
  EXPECT_TRUE(WriteFileDurably(path + ".key", made->key, kSecretFileMode, true).ok());
  EXPECT_TRUE(WriteFileDurably(path + ".crt", made->certificate, 0644, true).ok());
  return path;
}

class IdentityTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    // The sessions of these tests send no heartbeats.
    daemon_ = new IdentityDaemon({.tls = true, .arguments = {"--liveness-timeout", "30s"}});
    ASSERT_NE(daemon_->endpoint(), "") << daemon_->process().Outputs();
    for (const char* tenant : {"acme", "zeta"}) {
      ASSERT_EQ(daemon_->AskAsRoot({"tenant", "create", tenant}).exit, Exit::WithCode(0));
    }
  }
  static void TearDownTestSuite() {
    // No secret was ever logged.
    EXPECT_THAT(daemon_->process().Outputs(), Not(HasSubstr("phub_")));
    delete daemon_;
    daemon_ = nullptr;
  }
  static grpc::Status WhoAmI(const client::Credentials& credentials, v1::Identity* identity) {
    const auto stub = v1::Tenants::NewStub(daemon_->Channel(credentials));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    return stub->WhoAmI(&context, {}, identity);
  }
  static grpc::Status WhoAmI(const client::Credentials& credentials) {
    v1::Identity identity;
    return WhoAmI(credentials, &identity);
  }
  static grpc::StatusCode CodeOfToken(const std::string& text) {
    const std::string path = daemon_->folder() + "/any.token";
    EXPECT_TRUE(WriteFileDurably(path, text, kSecretFileMode, true).ok());
    return WhoAmI(daemon_->WithToken(path)).error_code();
  }
  static std::string TextOf(const std::string& path) {
    const auto read = ReadSecretFile(path);
    return read->substr(0, read->find('\n'));
  }
  static std::uint64_t Counted(const std::string& counter) {
    const Finished stats = daemon_->AskAsRoot({"stats", "--all"});
    const std::size_t at = stats.output.find(counter);
    EXPECT_NE(at, std::string::npos) << counter;
    const std::size_t end = stats.output.find('\n', at);
    const std::size_t number = stats.output.rfind(' ', end) + 1;
    return std::stoull(stats.output.substr(number, end - number));
  }
  // The front, and calls that it refuses, are counted a moment after the answer.
  static bool CountReaches(const std::string& counter, std::uint64_t value) {
    for (int i = 0; i < 300 && Counted(counter) < value; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    return Counted(counter) >= value;
  }
  static v1::JoinRequest JoinOf(const std::string& job, std::uint32_t world_size) {
    v1::JoinRequest request;
    request.set_protocol_version_min(1);
    request.set_protocol_version_max(1);
    request.set_job(job);
    request.mutable_options()->set_world_size(world_size);
    request.set_host("node");
    return request;
  }
  static client::Credentials OfCertificate(const std::string& path) {
    client::Credentials credentials;
    credentials.ca_file = daemon_->pki() + "/ca.crt";
    credentials.certificate = path + ".crt";
    credentials.key = path + ".key";
    return credentials;
  }
  static std::string MakeOdd(const std::string& name,
                             const client::cli::CertificateRequest& asked) {
    return MakeOddCertificate(*daemon_, name, asked);
  }

  static inline IdentityDaemon* daemon_ = nullptr;
};

}  // namespace phub::process
