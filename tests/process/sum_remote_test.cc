// A phub-aggregator on another host (in another network namespace), which a real daemon calls over
// TLS: which callers it takes, whose leases are whose, and the bits of a job.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <array>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/process/sum_streams_fixture.h"
#include "tests/process/two_networks.h"
#include "tests/support/temporary_folder.h"

namespace phub::process {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Read(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// An authority, and certificates of its own for the aggregator and for daemons.
class Authority {
 public:
  explicit Authority(const std::string& trust_domain = "phub") {
    Run({"pki", "init", folder(), "--trust-domain", trust_domain});
    Run({"pki", "issue", folder(), "server", "aggregator", "--host", TwoNetworks::kItsAddress});
    for (const char* name : {"one", "two"})
      Run({"pki", "issue", folder(), "server", name, "--host", TwoNetworks::kDataAddress});
    Run({"pki", "issue", folder(), "tenant", "acme"});
  }
  std::string folder() const { return folder_.path() + "/pki"; }
  std::vector<std::string> Options(const std::string& name) const {
    return {"--tls-certificate", folder() + "/" + name + ".crt",
            "--tls-key",         folder() + "/" + name + ".key",
            "--tls-client-ca",   folder() + "/ca.crt"};
  }
  // Empty: without a certificate.
  std::shared_ptr<grpc::ChannelCredentials> Credentials(const std::string& name) const {
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = Read(folder() + "/ca.crt");
    if (name.empty()) return grpc::SslCredentials(options);
    options.pem_cert_chain = Read(folder() + "/" + name + ".crt");
    options.pem_private_key = Read(folder() + "/" + name + ".key");
    return grpc::SslCredentials(options);
  }

 private:
  static void Run(const std::vector<std::string>& arguments) {
    const Finished end = RunToEnd(kPhubctl, arguments);
    ASSERT_EQ(end.exit, Exit::WithCode(0)) << end.error;
  }
  const TemporaryFolder folder_;
};

class SumRemote : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!networks_.problem().empty()) GTEST_SKIP() << networks_.problem();
    std::vector<std::string> arguments = authority_.Options("server-aggregator");
    arguments.insert(arguments.end(),
                     {"--control-listen", std::string(TwoNetworks::kItsAddress) + ":7702"});
    aggregator_ = std::make_unique<AggregatorProcess>(
        std::string(TwoNetworks::kItsAddress) + ":7701", arguments,
        [this](const std::string& program, const std::vector<std::string>& all) {
          return networks_.StartInOther(program, all);
        });
    control_ = std::string(TwoNetworks::kItsAddress) + ":7702";
  }
  std::unique_ptr<v1::Aggregator::Stub> Stub(
      const std::shared_ptr<grpc::ChannelCredentials>& credentials) const {
    return v1::Aggregator::NewStub(grpc::CreateChannel(control_, credentials));
  }
  // A deadline that is reached would be another error.
  static void SetPatience(grpc::ClientContext& context) {
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  }
  static grpc::Status Grant(v1::Aggregator::Stub& stub, std::uint32_t& number) {
    grpc::ClientContext context;
    SetPatience(context);
    v1::GrantLeaseRequest request;
    request.set_tenant("acme");
    request.set_slot_count(4);
    request.set_count_max(350);
    request.set_keep_alive_ms(600'000);
    request.set_core_loop("10.2.0.9:9");
    request.add_workers("10.2.0.9:10");
    v1::GrantLeaseResponse response;
    const grpc::Status status = stub.Grant(&context, request, &response);
    number = response.number();
    return status;
  }
  static grpc::Status End(v1::Aggregator::Stub& stub, std::uint32_t number) {
    grpc::ClientContext context;
    SetPatience(context);
    v1::EndLeaseRequest request;
    request.set_number(number);
    v1::EndLeaseResponse response;
    return stub.End(&context, request, &response);
  }
  static bool Renew(v1::Aggregator::Stub& stub, std::uint32_t number) {
    grpc::ClientContext context;
    SetPatience(context);
    v1::RenewLeasesRequest request;
    request.add_numbers(number);
    v1::RenewLeasesResponse response;
    const grpc::Status status = stub.Renew(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.unknown_size() == 0;
  }
  static v1::ListLeasesResponse List(v1::Aggregator::Stub& stub) {
    grpc::ClientContext context;
    SetPatience(context);
    v1::ListLeasesResponse response;
    const grpc::Status status = stub.List(&context, {}, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }

  TwoNetworks networks_;
  Authority authority_;
  std::unique_ptr<AggregatorProcess> aggregator_;
  std::string control_;
};

// A daemon that uses the aggregator of the other host, and this process and phubctl as its tenant.
class SumRemoteJobs : public SumRemote {
 protected:
  // `more`: aggregators in front of it, with a comma.
  void StartDaemon(const std::string& more = {}) {
    const std::string address = TwoNetworks::kDataAddress;
    std::vector<std::string> arguments = authority_.Options("server-one");
    arguments.insert(arguments.end(),
                     {"--cores", "2", "--pin", "off", "--listen", address + ":0", "--data-tls",
                      "off", "--insecure", "--sum-aggregator", more + control_, "--state-dir",
                      state_.path() + "/state", "--control-socket", state_.path() + "/control"});
    daemon_ = std::make_unique<DaemonProcess>(arguments);
    ASSERT_FALSE(daemon_->endpoint().empty()) << daemon_->process().Outputs();
    const Finished made = RunToEnd(
        kPhubctl, {"-e", "unix:" + state_.path() + "/control", "tenant", "create", "acme"});
    ASSERT_EQ(made.exit, Exit::WithCode(0)) << made.error;
    for (const auto& [name, file] : kVariables) {
      setenv(name, (authority_.folder() + file).c_str(), 1);
      environment_.push_back(std::string(name) + "=" + authority_.folder() + file);
    }
    endpoint_ = address + daemon_->endpoint().substr(daemon_->endpoint().rfind(':'));
  }
  void TearDown() override { ForgetIdentity(); }
  static void ForgetIdentity() {
    for (const auto& [name, file] : kVariables) unsetenv(name);
  }
  // The last answer of `phubctl job get`, once a stream is open on every core loop.
  std::string AwaitStreams() {
    std::string way;
    const auto is_open = [&] {
      way = RunToEnd(kPhubctl, {"--endpoint", endpoint_, "job", "get", "job"}, environment_).output;
      return way.find("aggregator ") != std::string::npos && way.find("tcp: ") == std::string::npos;
    };
    for (int i = 0; i < 300 && !is_open(); ++i) Sleep(100 * kMillisecond);
    return way;
  }
  // Trains the same job over tcp.
  static void ExpectBitsOfTcp(const Training& job, int iterations) {
    ForgetIdentity();
    DaemonProcess plain({"--cores", "1", "--pin", "off"});
    Training expected(plain.endpoint(), Options("job"));
    expected.Train(iterations);
    for (std::size_t rank = 0; rank < kRanks; ++rank)
      ASSERT_EQ(job.Parameters(rank), expected.Parameters(rank)) << "rank " << rank;
  }

  static constexpr std::array<std::pair<const char*, const char*>, 3> kVariables = {
      {{"PHUB_CA_FILE", "/ca.crt"},
       {"PHUB_CERTIFICATE", "/tenant-acme.crt"},
       {"PHUB_KEY", "/tenant-acme.key"}}};
  const TemporaryFolder state_;
  std::unique_ptr<DaemonProcess> daemon_;
  std::vector<std::string> environment_;  // of phubctl; this process has it, too
  std::string endpoint_;
};

TEST_F(SumRemoteJobs, HaveTheBitsOfTcpAlsoIfTheAggregatorIsKilled) {
  ASSERT_NO_FATAL_FAILURE(StartDaemon());
  Training job(endpoint_, Options("job"));
  ASSERT_THAT(AwaitStreams(), HasSubstr("aggregator 10.2.0.2:7701"))
      << daemon_->process().Outputs();
  job.Train(10);
  EXPECT_EQ(aggregator_->Counter("verdicts_total/add_last"), 10 * kBlocks);
  const v1::ListLeasesResponse list = aggregator_->List();
  ASSERT_GE(list.leases_size(), 1);
  EXPECT_EQ(list.leases(0).daemon(), "spiffe://phub/server/one");

  aggregator_->process().Signal(SIGSTOP);
  job.Begin();
  aggregator_->process().Signal(SIGKILL);
  ASSERT_NO_FATAL_FAILURE(job.End());
  aggregator_->Restart();
  EXPECT_THAT(AwaitStreams(), HasSubstr("aggregator 10.2.0.2:7701"));
  job.Train(10);
  EXPECT_GT(aggregator_->Counter("verdicts_total/add_last"), 0u);
  ExpectBitsOfTcp(job, 21);
}

// Each of the two sends to the address at which this host reaches it.
TEST_F(SumRemoteJobs, MayAlsoUseAnAggregatorOfTheDaemonsHost) {
  AggregatorProcess local;
  ASSERT_NO_FATAL_FAILURE(StartDaemon(local.control() + ","));
  Training job(endpoint_, Options("job"));
  EXPECT_THAT(AwaitStreams(), AllOf(HasSubstr("aggregator 10.2.0.2:7701 (10.2.0.2:7702)"),
                                    HasSubstr("(" + local.control() + ")")))
      << daemon_->process().Outputs();
  job.Train(10);
  const auto sums = [](AggregatorProcess& each) { return each.Counter("verdicts_total/add_last"); };
  EXPECT_GE(sums(*aggregator_), 10u);
  EXPECT_GE(sums(local), 10u);
  EXPECT_EQ(sums(*aggregator_) + sums(local), 10 * kBlocks);
  const v1::ListLeasesResponse of_remote = aggregator_->List();
  const v1::ListLeasesResponse of_local = local.List();
  ASSERT_EQ(of_remote.leases_size(), 1);
  ASSERT_EQ(of_local.leases_size(), 1);
  EXPECT_EQ(of_remote.leases(0).daemon(), "spiffe://phub/server/one");
  EXPECT_EQ(of_local.leases(0).daemon(), "local");
  ExpectBitsOfTcp(job, 10);
}

TEST_F(SumRemote, ALeaseBelongsToTheDaemonThatGotIt) {
  const auto one = Stub(authority_.Credentials("server-one"));
  const auto two = Stub(authority_.Credentials("server-two"));
  std::uint32_t number = 0;
  const grpc::Status granted = Grant(*one, number);
  ASSERT_TRUE(granted.ok()) << granted.error_message();
  EXPECT_EQ(End(*two, number).error_code(), grpc::NOT_FOUND);
  EXPECT_FALSE(aggregator_->End(number)) << "nor may a process of its own host";
  EXPECT_FALSE(Renew(*two, number));
  EXPECT_EQ(List(*two).leases_size(), 0);
  EXPECT_EQ(aggregator_->List().leases_size(), 1);
  ASSERT_EQ(List(*one).leases_size(), 1);
  EXPECT_EQ(List(*one).leases(0).daemon(), "spiffe://phub/server/one");
  EXPECT_TRUE(Renew(*one, number));
  EXPECT_TRUE(End(*one, number).ok());
}

TEST_F(SumRemote, OnlyDaemonsOfTheAuthorityMayCall) {
  std::uint32_t number = 0;
  const auto refused = [&](const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
    return Grant(*Stub(credentials), number);
  };
  const grpc::Status tenant = refused(authority_.Credentials("tenant-acme"));
  EXPECT_EQ(tenant.error_code(), grpc::PERMISSION_DENIED);
  EXPECT_THAT(tenant.error_message(),
              AllOf(HasSubstr("role server"), HasSubstr("spiffe://phub/tenant/acme")));
  EXPECT_EQ(aggregator_->Counter("calls_refused_total"), 1u);
  // These do not complete their handshake.
  EXPECT_EQ(refused(authority_.Credentials("")).error_code(), grpc::UNAVAILABLE);
  const Authority other;
  EXPECT_EQ(refused(other.Credentials("server-one")).error_code(), grpc::UNAVAILABLE);
  EXPECT_EQ(refused(grpc::InsecureChannelCredentials()).error_code(), grpc::UNAVAILABLE);
  EXPECT_EQ(aggregator_->List().leases_size(), 0);
  // Expect: nobody was harmed.
  const grpc::Status granted = Grant(*Stub(authority_.Credentials("server-one")), number);
  EXPECT_TRUE(granted.ok()) << granted.error_message();
}

TEST_F(SumRemote, SetupsThatCannotWorkAreRefusedWithAReason) {
  const auto aggregator = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"--listen", "127.0.0.1:0", "--control",
                                         authority_.folder() + "/control.sock"});
    const Finished end = RunToEnd(kAggregator, arguments);
    EXPECT_EQ(end.exit, Exit::WithCode(2));
    return end.error;
  };
  EXPECT_THAT(aggregator({"--control-listen", "127.0.0.1:0"}),
              HasSubstr("--control-listen needs --tls-certificate, --tls-key and --tls-client-ca"));
  EXPECT_THAT(aggregator({"--tls-key", "/tmp/key"}), HasSubstr("need --control-listen"));
  std::vector<std::string> mixed = authority_.Options("server-one");
  mixed[3] = authority_.folder() + "/server-two.key";
  mixed.insert(mixed.end(), {"--control-listen", "127.0.0.1:0"});
  EXPECT_THAT(aggregator(mixed), HasSubstr("is not the private key of"));
  mixed[3] = authority_.folder() + "/server-one.key";
  mixed.back() = "127.0.0.1:7702";
  AggregatorProcess first(mixed);
  mixed.insert(mixed.begin(),
               {"--listen", "127.0.0.1:0", "--control", authority_.folder() + "/control.sock"});
  const Finished second = RunToEnd(kAggregator, mixed);
  EXPECT_EQ(second.exit, Exit::WithCode(1));
  EXPECT_THAT(second.error, HasSubstr("--control-listen: cannot listen on 127.0.0.1:7702"));
  const auto daemon = [](const std::vector<std::string>& arguments) {
    return RunToEnd(kPhubd, arguments).error;
  };
  EXPECT_THAT(daemon({"--sum-aggregator", "10.0.0.9:7702"}),
              AllOf(HasSubstr("on another host"), HasSubstr("tls_client_ca")));
  EXPECT_THAT(daemon({"--sum-aggregator", "relative.sock"}), HasSubstr("begins with /"));
}

}  // namespace
}  // namespace phub::process
