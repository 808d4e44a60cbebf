// phubctl plan probe against phubd in several racks: its output and files, the required
// permissions, and racks that die, hang or are unreachable during a probe.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "common/plan/survey.h"
#include "common/transport/tcp/tcp_dial.h"
#include "phub/v1/probe.grpc.pb.h"
#include "server/core/exchange/rack_plan.h"
#include "tests/process/rack_authority.h"
#include "tests/process/rack_process.h"
#include "tests/process/training_process.h"
#include "tests/support/temporary_folder.h"

namespace phub::process {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using Json = nlohmann::json;

// Ranks from kPeerRankBase on are lanes of other daemons. The lanes of probes begin here.
constexpr std::uint32_t kProbeRankBase = server::kPeerRankBase + 4096;

class ProbeTest : public ::testing::Test {
 protected:
  void Start(std::size_t count, const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = {"--cores", "1", "--pin", "off"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    racks_ = std::make_unique<RackProcess>(count, arguments, RackProcess::Kind::kManyRacks);
    ASSERT_TRUE(racks_->serving()) << racks_->Outputs();
  }
  std::unique_ptr<v1::Probe::Stub> StubOf(std::size_t rack) const {
    return v1::Probe::NewStub(
        grpc::CreateChannel(racks_->endpoint(rack), grpc::InsecureChannelCredentials()));
  }
  Process Ask(std::size_t rack, std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {"-e", racks_->endpoint(rack), "plan", "probe"});
    return Process::Start(kPhubctl, arguments);
  }
  // Rack 0's description of itself, as rack 1 expects it.
  v1::PeerProbeRequest FromRack0() const {
    grpc::ClientContext context;
    v1::RacksInfo info;
    EXPECT_TRUE(StubOf(0)->GetRacks(&context, {}, &info).ok());
    v1::PeerProbeRequest request;
    request.mutable_from()->set_protocol_version(1);
    request.mutable_from()->set_configuration(info.configuration());
    request.mutable_from()->set_to_rack(1);
    request.mutable_from()->set_daemon_count(1);
    request.mutable_probe()->set_to_rack(1);
    return request;
  }
  grpc::Status Grant(const v1::PeerProbeRequest& request, v1::ProbeGrant& grant) const {
    grpc::ClientContext context;
    return StubOf(1)->GrantProbe(&context, request, &grant);
  }

  std::unique_ptr<RackProcess> racks_;
  const SystemClock clock_;
};

TEST_F(ProbeTest, ShowsEveryPairAndWritesWhatOthersRead) {
  ASSERT_NO_FATAL_FAILURE(Start(4));
  const TemporaryFolder folder;
  const std::string topology = folder.path() + "/topology.json",
                    plan = folder.path() + "/plan.json";
  const Finished probed = racks_->Ask(2, {"plan", "probe", "--duration", "60ms", "--topology-out",
                                          topology, "--plan-out", plan, "-o", "json"});
  ASSERT_EQ(probed.exit, Exit::WithCode(0)) << probed.error << racks_->Outputs();
  const Json json = Json::parse(probed.output);
  for (std::size_t a = 0; a < 4; ++a) {
    EXPECT_EQ(json["racks"][a], racks_->endpoint(a));
    for (std::size_t b = 0; b < 4; ++b) {
      if (a == b) continue;
      EXPECT_GT(json["round_trip_s"][a][b], 0.0);
      EXPECT_LT(json["round_trip_s"][a][b], 1.0);
      EXPECT_GT(json["bytes_per_s"][a][b], 1e6);
    }
  }
  const auto order = json["order"].get<std::set<int>>();
  EXPECT_EQ(order, (std::set<int>{0, 1, 2, 3}));
  EXPECT_GE(json["gain"], 1.0);
  EXPECT_EQ(json["topology"]["format"], "phub.topology.v1");

  const Finished compared = RunToEnd(kPhubctl, {"plan", "compare", "--topology", topology});
  EXPECT_EQ(compared.exit, Exit::WithCode(0)) << compared.error;
  const std::string list = fmt::format("{},{},{},{}", racks_->endpoint(0), racks_->endpoint(1),
                                       racks_->endpoint(2), racks_->endpoint(3));
  const Finished checked = RunToEnd(kPhubd, {"--listen", racks_->endpoint(0), "--racks", list,
                                             "--topology", topology, "--check-config"});
  EXPECT_EQ(checked.exit, Exit::WithCode(0)) << checked.error;
  const Finished verified = RunToEnd(kPhubctl, {"plan", "verify", plan, "--topology", "switch:4"});
  EXPECT_EQ(verified.exit, Exit::WithCode(0)) << verified.error;

  // A new job takes the plan, and its daemons are those that were probed.
  std::vector<Process> trainers;
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    trainers.push_back(StartTrainer({.endpoint = racks_->endpoint(rank),
                                     .job = "planned",
                                     .rank = rank,
                                     .world_size = 4,
                                     .iterations = 20,
                                     .more = {"--plan", plan}}));
  }
  for (Process& trainer : trainers) {
    EXPECT_EQ(trainer.Wait(20 * kSecond), Exit::WithCode(0)) << trainer.Outputs();
  }
  EXPECT_THAT(racks_->Ask(0, {"job", "get", "planned"}).output, HasSubstr("requested: file"));
  const std::string stats = racks_->Ask(0, {"stats", "--all"}).output;
  EXPECT_THAT(stats, AllOf(HasSubstr("phub_probes_total"), HasSubstr("phub_probe_bytes_total")));
}

TEST_F(ProbeTest, PrintsBothMatricesForPeople) {
  ASSERT_NO_FATAL_FAILURE(Start(2));
  const Finished probed = racks_->Ask(0, {"plan", "probe", "--duration", "20ms", "--repeat", "1"});
  ASSERT_EQ(probed.exit, Exit::WithCode(0)) << probed.error;
  EXPECT_EQ(probed.error, "");
  EXPECT_THAT(probed.output, AllOf(HasSubstr("ROUND TRIP"), HasSubstr("BANDWIDTH"),
                                   HasSubstr("bit/s"), HasSubstr("Groups: none"),
                                   HasSubstr("Order of racks: 0 1"), HasSubstr("as configured")));
}

TEST_F(ProbeTest, RefusesWhatIsNoProbeAndNamesIt) {
  ASSERT_NO_FATAL_FAILURE(Start(2));
  const auto ask = [&](std::uint32_t from, std::uint32_t to, std::int64_t duration) {
    v1::ProbePairRequest request;
    request.set_from_rack(from);
    request.set_to_rack(to);
    request.set_duration_ns(duration);
    grpc::ClientContext context;
    v1::ProbePairResponse response;
    return StubOf(0)->ProbePair(&context, request, &response);
  };
  for (const auto& [status, word] :
       {std::pair(ask(0, 7, 0), "no rack 7"), std::pair(ask(7, 0, 0), "no rack 7"),
        std::pair(ask(1, 1, 0), "both are rack 1"), std::pair(ask(0, 1, -1), "duration"),
        std::pair(ask(0, 1, kSecond * 3600), "duration")}) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr(word));
  }
  const Finished wrong = racks_->Ask(0, {"plan", "probe", "--duration", "1h"});
  EXPECT_EQ(wrong.exit, Exit::WithCode(2)) << wrong.error;
  EXPECT_EQ(racks_->Ask(0, {"plan", "probe", "--duration", "soon"}).exit, Exit::WithCode(2));
  const DaemonProcess alone;
  const Finished refused = alone.Ask({"plan", "probe"});
  EXPECT_EQ(refused.exit, Exit::WithCode(1));
  EXPECT_THAT(refused.error, HasSubstr("no other racks"));
}

TEST_F(ProbeTest, GrantsToItsRacksOnlyAndOneAtATime) {
  ASSERT_NO_FATAL_FAILURE(Start(2));
  v1::ProbeGrant grant;
  v1::PeerProbeRequest stranger = FromRack0();
  stranger.mutable_from()->set_configuration("another");
  EXPECT_EQ(Grant(stranger, grant).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  v1::PeerProbeRequest other = FromRack0();
  other.mutable_probe()->set_from_rack(1);
  other.mutable_probe()->set_to_rack(0);
  EXPECT_EQ(Grant(other, grant).error_code(), grpc::StatusCode::INVALID_ARGUMENT);

  ASSERT_TRUE(Grant(FromRack0(), grant).ok());
  const grpc::Status second = Grant(FromRack0(), grant);
  EXPECT_EQ(second.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(second.error_message(), AllOf(HasSubstr("rack 1"), HasSubstr("with rack 0")));
  // Knowing the probe's number does not open a lane without the nonce.
  wire::LaneHello hello;
  hello.rank = Rank{kProbeRankBase};
  hello.incarnation = Incarnation{grant.probe()};
  const auto port = static_cast<std::uint16_t>(grant.endpoint().port());
  const auto guessed = transport::DialTcp("127.0.0.1", port, hello, kSecond);
  EXPECT_EQ(guessed.status().code(), absl::StatusCode::kPermissionDenied);
  // A rack that was granted a lane and did not open it keeps its place only for seconds.
  std::this_thread::sleep_for(std::chrono::milliseconds(3200));
  ASSERT_TRUE(Grant(FromRack0(), grant).ok());
  hello.incarnation = Incarnation{grant.probe()};
  std::copy_n(reinterpret_cast<const std::byte*>(grant.grant().nonce().data()), hello.nonce.size(),
              hello.nonce.begin());
  EXPECT_TRUE(transport::DialTcp("127.0.0.1", port, hello, kSecond).ok());
  EXPECT_EQ(transport::DialTcp("127.0.0.1", port, hello, kSecond).status().code(),
            absl::StatusCode::kPermissionDenied);  // the nonce works once
  // The lane was opened and closed, so the place is free soon.
  grpc::Status free;
  const TimeNs deadline = clock_.Now() + 3 * kSecond;
  while (!(free = Grant(FromRack0(), grant)).ok() && clock_.Now() < deadline) {
  }
  EXPECT_TRUE(free.ok()) << free.error_message();
}

TEST_F(ProbeTest, ARackThatIsKilledMeanwhileIsNamed) {
  ASSERT_NO_FATAL_FAILURE(Start(2));
  Process asking = Ask(0, {"--duration", "10s", "--repeat", "100"});
  ASSERT_TRUE(racks_->daemon(0).WaitForOutput("event=probe_asked", 5 * kSecond));
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  racks_->daemon(1).Signal(SIGKILL);
  ASSERT_EQ(asking.Wait(5 * kSecond), Exit::WithCode(1)) << asking.Outputs();
  EXPECT_THAT(asking.StandardError(), HasSubstr(fmt::format("rack 1 ({})", racks_->endpoint(1))));
  EXPECT_EQ(asking.StandardOutput(), "");
  // And a rack that is unreachable.
  Process again = Ask(0, {});
  ASSERT_EQ(again.Wait(10 * kSecond), Exit::WithCode(1)) << again.Outputs();
  EXPECT_THAT(again.StandardError(), AllOf(HasSubstr("rack 1"), HasSubstr("does not answer")));
  // The place is free for the next probe.
  racks_->Restart(1);
  ASSERT_TRUE(racks_->serving());
  EXPECT_EQ(Ask(0, {"--duration", "20ms"}).Wait(20 * kSecond), Exit::WithCode(0));
}

TEST_F(ProbeTest, ARackThatHangsMeanwhileIsNamed) {
  ASSERT_NO_FATAL_FAILURE(Start(2));
  Process asking = Ask(0, {"--duration", "1s", "--repeat", "100"});
  ASSERT_TRUE(racks_->daemon(0).WaitForOutput("event=probe_asked", 5 * kSecond));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  racks_->daemon(1).Signal(SIGSTOP);
  const auto exit = asking.Wait(15 * kSecond);
  racks_->daemon(1).Signal(SIGCONT);
  ASSERT_EQ(exit, Exit::WithCode(1)) << asking.Outputs();
  EXPECT_THAT(
      asking.StandardError(),
      AllOf(HasSubstr("rack 1"), AnyOf(HasSubstr("in time"), HasSubstr("does not answer"))));
}

TEST_F(ProbeTest, StoppingADaemonEndsItsProbes) {
  ASSERT_NO_FATAL_FAILURE(Start(3));
  // Rack 0 relays the probes of the other racks, which measure and answer.
  for (const std::size_t rack : {2u, 1u, 0u}) {
    Process asking = Ask(0, {"--duration", "10s", "--repeat", "100"});
    std::this_thread::sleep_for(std::chrono::milliseconds(400));
    racks_->daemon(rack).Signal(SIGTERM);
    EXPECT_EQ(racks_->daemon(rack).Wait(5 * kSecond), Exit::WithCode(0)) << racks_->Outputs();
    asking.Signal(SIGKILL);
    asking.Wait(kSecond);
    if (rack == 0) break;
    racks_->Restart(rack);
    ASSERT_TRUE(racks_->serving());
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
}

TEST_F(ProbeTest, IsForOperatorsAndEncryptedAsLanesAre) {
  const RackAuthority authority;
  ASSERT_NO_FATAL_FAILURE(Start(3, authority.DaemonArguments()));
  authority.MakeTenant(*racks_);
  const Finished tenant = racks_->Ask(0, {"plan", "probe"}, authority.Environment());
  EXPECT_EQ(tenant.exit, Exit::WithCode(4)) << tenant.error;
  EXPECT_THAT(tenant.error, HasSubstr("operator"));
  const Finished nobody =
      racks_->Ask(0, {"plan", "probe"}, {authority.Environment().front()});  // the authority only
  EXPECT_EQ(nobody.exit, Exit::WithCode(4)) << nobody.error;
  const Finished root =
      RunToEnd(kPhubctl, {"-e", authority.ControlSocket(0), "plan", "probe", "--duration", "60ms"});
  EXPECT_EQ(root.exit, Exit::WithCode(0)) << root.error << racks_->Outputs();
  EXPECT_THAT(racks_->Outputs(), HasSubstr("lane=\"tcp+tls "));
}

// Only daemons set passed_on, and an operator's request is logged where it was made. An operator
// who sets it must appear in the audit log all the same.
TEST_F(ProbeTest, ATopologyThatSaysItWasPassedOnIsInTheAuditLogAllTheSame) {
  const RackAuthority authority;
  ASSERT_NO_FATAL_FAILURE(Start(2, authority.DaemonArguments()));
  const std::string socket = authority.ControlSocket(0);
  const auto stub =
      v1::Probe::NewStub(grpc::CreateChannel(socket, grpc::InsecureChannelCredentials()));
  v1::ApplyTopologyRequest request;
  request.set_topology("{}");
  request.set_passed_on(true);
  grpc::ClientContext context;
  v1::RacksInfo info;
  EXPECT_FALSE(stub->ApplyTopology(&context, request, &info).ok());
  const Finished log = RunToEnd(kPhubctl, {"-e", socket, "audit", "tail"});
  EXPECT_EQ(log.exit, Exit::WithCode(0)) << log.error;
  EXPECT_THAT(log.output, HasSubstr("racks.topology"));
}

TEST(ProbeRounds, HaveEveryPairOnceAndNobodyTwiceInOne) {
  for (std::uint32_t count = 2; count < 20; ++count) {
    std::set<plan::RankPair> all;
    const auto rounds = plan::Tournament(count);
    EXPECT_EQ(rounds.size(), count - 1 + count % 2);
    for (const auto& pairs : rounds) {
      std::set<std::uint32_t> seen;
      for (const auto& [a, b] : pairs) {
        EXPECT_LT(a, b);
        EXPECT_LT(b, count);
        EXPECT_TRUE(seen.insert(a).second && seen.insert(b).second);
        EXPECT_TRUE(all.insert({a, b}).second);
      }
    }
    EXPECT_EQ(all.size(), count * (count - 1) / 2);
  }
}

}  // namespace
}  // namespace phub::process
