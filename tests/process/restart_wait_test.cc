// Policy wait without a restart: broken lanes reconnect without loss or duplication, and the error
// of a worker that does not come back names it on every rank.
#include <arpa/inet.h>
#include <dirent.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>

#include <atomic>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "common/base/random.h"
#include "tests/process/rack_process.h"
#include "tests/process/trainer.h"
#include "tests/process/training_process.h"

namespace phub::process {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

// The daemon's port for data lanes, from the first line of its log.
std::uint16_t DataPortOf(const Process& daemon) {
  constexpr std::string_view kWords = "data lanes on 127.0.0.1:";
  const std::string said = daemon.StandardOutput() + daemon.StandardError();
  const std::size_t at = said.find(kWords);
  if (at == std::string::npos) return 0;
  return static_cast<std::uint16_t>(std::atoi(said.c_str() + at + kWords.size()));
}

// The sockets of this process that are connected to that port.
std::vector<int> SocketsTo(std::uint16_t port) {
  std::vector<int> sockets;
  DIR* const folder = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(folder)) {
    const int descriptor = std::atoi(entry->d_name);
    sockaddr_in address{};
    socklen_t bytes = sizeof address;
    if (getpeername(descriptor, reinterpret_cast<sockaddr*>(&address), &bytes) == 0 &&
        address.sin_family == AF_INET && ntohs(address.sin_port) == port)
      sockets.push_back(descriptor);
  }
  closedir(folder);
  return sockets;
}

// The daemons and their transport.
struct WaitLayout {
  const char* name;
  std::size_t daemons = 1;  // in each rack
  std::size_t racks = 1;
  std::string plan = {};
  bool tls = false;  // TLS lanes
};

RackProcess Start(const WaitLayout& layout, std::vector<std::string> arguments) {
  if (layout.tls) arguments.insert(arguments.end(), {"--data-tls", "on"});
  if (layout.racks == 1) return RackProcess(layout.daemons, arguments);
  return RackProcess(layout.daemons * layout.racks, arguments, RackProcess::Kind::kManyRacks,
                     /*aggregator_count=*/0, layout.daemons);
}

class Waiting : public ::testing::TestWithParam<WaitLayout> {
 protected:
  Waiting()
      : rack_(Start(GetParam(),
                    {"--cores", "2", "--pin", "off", "--shm", "off", "--liveness-timeout", "1s"})) {
    for (std::size_t rack = 0; rack < GetParam().racks; ++rack) {
      endpoints_.push_back(rack_.endpoint(rack * GetParam().daemons));
    }
  }
  void SetUp() override { ASSERT_TRUE(rack_.serving()) << rack_.Outputs(); }
  void CutLanes(JobOptions options);
  RackProcess rack_;
  std::vector<std::string> endpoints_;  // by rack
};

JobOptions OptionsOfWaiting(Apply apply) {
  return {.job = "cut",
          .world_size = 3,
          .chunk_bytes = 4096,
          .on_loss = LossPolicy::kWait,
          .wait_timeout = 30s,
          .apply = apply,
          .transport = TransportChoice::kTcp};
}

TEST_P(Waiting, LanesThatAreCutComeBackAndTheBitsAreTheSame) {
  CutLanes(OptionsOfWaiting(Apply::kChunk));
}

class WaitingForIterations : public Waiting {};
class WaitingToJoin : public Waiting {};

TEST_P(WaitingForIterations, LanesThatAreCutComeBackAndIterationsAreWhole) {
  JobOptions options = OptionsOfWaiting(Apply::kIteration);
  options.clip_norm = 50.0;
  CutLanes(options);
}

// Workers are threads of this process, so the test can shut down their sockets. That ends the
// connection for both sides, as when a middlebox drops it.
void Waiting::CutLanes(JobOptions options) {
  constexpr std::uint64_t kIterations = 400;
  options.plan = GetParam().plan;
  if (GetParam().racks > 1) options.world_size = static_cast<std::uint32_t>(2 * GetParam().racks);
  const Trained expected = TrainUndisturbed(endpoints_, options, kIterations);
  ASSERT_EQ(expected.problem, "") << rack_.Outputs();

  const std::uint32_t cuts_wanted = std::getenv("PHUB_TEST_LONG") != nullptr ? 200 : 10;
  std::uint32_t cuts = 0;
  SeededRandom random(7);
  while (cuts < cuts_wanted) {
    std::atomic<bool> over = false;
    Trained trained;
    std::thread training([&] {
      trained = TrainUndisturbed(endpoints_, options, kIterations);
      over = true;
    });
    while (!over && cuts < cuts_wanted) {
      Sleep(static_cast<DurationNs>(random.Below(100'000)) * kMicrosecond);
      const std::size_t daemon = random.Below(rack_.size());
      const std::vector<int> sockets = SocketsTo(DataPortOf(rack_.daemon(daemon)));
      if (sockets.empty()) continue;  // no rank has joined yet, or all have left
      if (shutdown(sockets[random.Below(sockets.size())], SHUT_RDWR) == 0) ++cuts;
    }
    training.join();
    ASSERT_EQ(trained.problem, "") << rack_.Outputs();
    ASSERT_EQ(trained.parameters, expected.parameters);
  }
}

// A single rank, one of whose lanes is cut as soon as it appears, often before the daemon has
// answered the hello.
TEST_P(WaitingToJoin, LanesThatAreCutWhileTheyAreOpenedAreOpenedAgain) {
  const int joins_wanted = std::getenv("PHUB_TEST_LONG") != nullptr ? 1000 : 20;
  JobOptions options = OptionsOfWaiting(Apply::kChunk);
  options.world_size = 1;
  const Trained expected = TrainUndisturbed(endpoints_, options, 3);
  const std::uint16_t port = DataPortOf(rack_.daemon(0));
  int cuts = 0;
  for (int i = 0; i < joins_wanted; ++i) {
    std::atomic<bool> over = false;
    std::thread cutter([&] {
      bool cut = false;
      while (!over && !cut) {
        for (const int socket : SocketsTo(port)) cut |= shutdown(socket, SHUT_RDWR) == 0;
      }
      cuts += cut;
    });
    const Trained trained = TrainUndisturbed(endpoints_, options, 3);
    over = true;
    cutter.join();
    ASSERT_EQ(trained.problem, "") << "join " << i << "\n" << rack_.Outputs();
    ASSERT_EQ(trained.parameters, expected.parameters);
  }
  EXPECT_GT(cuts, joins_wanted / 2);
}

const auto kNameOf = [](const auto& parameters) { return std::string(parameters.param.name); };

INSTANTIATE_TEST_SUITE_P(Daemons, Waiting,
                         ::testing::Values(WaitLayout{"1"}, WaitLayout{"2", 2},
                                           WaitLayout{"2Racks", 1, 2, "ring"},
                                           WaitLayout{"3Racks", 1, 3, "sharded-star"},
                                           WaitLayout{"2RacksOf2", 2, 2, "sharded-star"}),
                         kNameOf);
INSTANTIATE_TEST_SUITE_P(Daemons, WaitingForIterations,
                         ::testing::Values(WaitLayout{"1"}, WaitLayout{"2", 2}), kNameOf);
INSTANTIATE_TEST_SUITE_P(Daemons, WaitingToJoin,
                         ::testing::Values(WaitLayout{"1"}, WaitLayout{"2", 2},
                                           WaitLayout{"Tls", 1, 1, "", true}),
                         kNameOf);

// The job waits one second. Rank 1's process is killed and not replaced.
TEST(WaitingInVain, EverybodyIsToldByNameWhoDidNotComeBack) {
  for (const bool restart : {false, true}) {
    RackProcess rack(2, {"--cores", "1", "--pin", "off"});
    ASSERT_TRUE(rack.serving()) << rack.Outputs();
    TrainerProcessOptions options{.endpoint = rack.endpoint(0),
                                  .job = "patient",
                                  .world_size = 3,
                                  .iterations = 1'000'000,
                                  .more = {"--wait-timeout-ms", "1500"}};
    if (restart) options.more.push_back("--restart");
    std::vector<Process> trainers = StartTrainers(options);
    ASSERT_TRUE(WaitForIteration(trainers[1], 20, 20 * kSecond)) << trainers[1].Outputs();
    trainers[1].Signal(SIGKILL);
    Sleep(kSecond);
    EXPECT_TRUE(trainers[0].IsRunning()) << trainers[0].Outputs();
    for (const std::size_t rank : {0u, 2u}) {
      ASSERT_EQ(trainers[rank].Wait(8 * kSecond), Exit::WithCode(1)) << trainers[rank].Outputs();
      const std::string said = VerdictOf(trainers[rank]);
      EXPECT_THAT(said, HasSubstr("rank 1 "));
      EXPECT_THAT(said, HasSubstr("patient"));
      EXPECT_THAT(said, HasSubstr("wait_timeout"));
    }
  }
}

TEST(WaitingInVain, EveryRackIsToldForWhomItWaitsAndWhoDidNotComeBack) {
  const RackProcess racks =
      Start({"3Racks", 1, 3}, {"--cores", "1", "--pin", "off", "--liveness-timeout", "1s"});
  ASSERT_TRUE(racks.serving()) << racks.Outputs();
  std::vector<Process> trainers;
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    trainers.push_back(
        StartTrainer({.endpoint = racks.endpoint(rank),
                      .job = "patient",
                      .rank = rank,
                      .world_size = 3,
                      .iterations = 1'000'000,
                      .more = {"--wait-timeout-ms", "3000", "--restart", "--plan", "ring"}}));
  }
  ASSERT_TRUE(WaitForIteration(trainers[1], 20, 20 * kSecond)) << trainers[1].Outputs();
  trainers[1].Signal(SIGKILL);
  std::string told;
  for (int tries = 0; tries < 20 && told.find("in another rack") == std::string::npos; ++tries) {
    Sleep(100 * kMillisecond);
    told = racks.Ask(2, {"job", "get", "patient"}).output;
  }
  EXPECT_THAT(told, ContainsRegex(
                        "waiting for +rank 1 \\(.*\\), at most .* more: .* \\(in another rack\\)"));
  EXPECT_TRUE(trainers[0].IsRunning()) << trainers[0].Outputs();
  for (const std::size_t rank : {0u, 2u}) {
    ASSERT_EQ(trainers[rank].Wait(8 * kSecond), Exit::WithCode(1)) << trainers[rank].Outputs();
    EXPECT_THAT(VerdictOf(trainers[rank]), AllOf(HasSubstr("rank 1 "), HasSubstr("wait_timeout")));
    EXPECT_THAT(trainers[rank].StandardError(), HasSubstr("event=rank_awaited"));
  }
}

}  // namespace
}  // namespace phub::process
