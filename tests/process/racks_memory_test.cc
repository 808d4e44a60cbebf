// The daemons' memory that exchanges read and write, as they count it, against the formula that
// phubctl computes from the job's plan.
#include <fmt/format.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>
#include <phub/client.h>

#include <barrier>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "common/plan/generators.h"
#include "common/plan/topology_json.h"
#include "phub/v1/admin.pb.h"
#include "tests/process/rack_process.h"
#include "tests/support/temporary_folder.h"

namespace phub::process {
namespace {

struct MemoryCase {
  const char* planner;
  const char* topology;
};

void PrintTo(const MemoryCase& of, std::ostream* out) {
  *out << of.planner << " on " << of.topology;
}

// Read and written by "landing", "sums", ...; and "uplink": sent and received.
using BytesByWork = std::map<std::string, std::pair<std::uint64_t, std::uint64_t>>;

BytesByWork CountedBy(const RackProcess& racks, std::size_t rack, const std::string& job,
                      std::string* plan) {
  v1::JobInfo info;
  const Finished shown = racks.Ask(rack, {"job", "get", job, "-o", "json"});
  EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(shown.output, &info).ok())
      << shown.output;
  BytesByWork bytes;
  for (const v1::ExchangeMemory& memory : info.exchange().memory()) {
    bytes[memory.work()] = {memory.read_bytes(), memory.written_bytes()};
  }
  for (const v1::ExchangeLink& link : info.exchange().links()) {
    bytes["uplink"].first += link.partial_bytes_sent() + link.result_bytes_sent();
    bytes["uplink"].second += link.partial_bytes_received() + link.result_bytes_received();
  }
  *plan = info.exchange().plan();
  return bytes;
}

class RackMemory : public ::testing::TestWithParam<MemoryCase> {
 protected:
  static constexpr const char* kJob = "memory";
  static constexpr std::uint32_t kRacks = 4;
  static constexpr std::uint32_t kRanks = 8;
  static constexpr std::uint64_t kChunkBytes = 4096;
  static constexpr std::uint64_t kBytes = 24 * kChunkBytes;  // as many chunks for each tree
  static constexpr std::uint64_t kRounds = 5;

  RackMemory()
      : racks_(kRacks,
               {"--cores", "1", "--pin", "off", "--chunk-bytes", std::to_string(kChunkBytes),
                "--topology", WriteTopology()},
               RackProcess::Kind::kManyRacks) {}

  std::string WriteTopology() {
    const auto topology = plan::Generate(GetParam().topology);
    EXPECT_TRUE(topology.ok()) << topology.status();
    return folder_.Write("topology.json", plan::TopologyToJson(*topology));
  }
  // Trains between two pauses, in which the main thread looks at the counters.
  Status Train(std::uint32_t rank, std::barrier<>& pause) {
    struct Leaver {  // a rank that fails holds up nobody
      std::barrier<>& pause;
      ~Leaver() { pause.arrive_and_drop(); }
    } leaver{pause};
    auto session = Connect(racks_.endpoint(rank / (kRanks / kRacks)));
    if (!session.ok()) return session.status();
    auto job = session->Join({.job = kJob,
                              .rank = rank,
                              .world_size = kRanks,
                              .transport = TransportChoice::kTcp,
                              .plan = GetParam().planner});
    if (!job.ok()) return job.status();
    auto key = job->AddKey("w", f32, kBytes / sizeof(float),
                           Momentum{.learning_rate = 0.1, .momentum = 0.9});
    if (!key.ok()) return key.status();
    const std::vector<float> initial(kBytes / sizeof(float), 1.0f);
    Status status = job->Initialize(*key, initial);
    if (status.ok()) status = job->Barrier();
    pause.arrive_and_wait();
    pause.arrive_and_wait();
    for (std::uint64_t round = 0; status.ok() && round < kRounds; ++round) {
      status = key->PushPull().Wait();
    }
    if (status.ok()) status = job->Barrier();
    pause.arrive_and_wait();
    pause.arrive_and_wait();
    return status.ok() ? job->Leave() : status;
  }
  // [rack]: the bytes of all rounds.
  std::vector<BytesByWork> CountRounds(std::string* plan) {
    std::vector<BytesByWork> counted(kRacks);
    std::mutex mutex;
    std::barrier pause(kRanks + 1);
    std::vector<std::thread> ranks;
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      ranks.emplace_back([&, rank] {
        const Status status = Train(rank, pause);
        const std::lock_guard lock(mutex);
        EXPECT_TRUE(status.ok()) << rank << ": " << ToString(status);
      });
    }
    for (const bool after : {false, true}) {
      pause.arrive_and_wait();
      for (std::size_t rack = 0; rack < kRacks; ++rack) {
        for (const auto& [work, bytes] : CountedBy(racks_, rack, kJob, plan)) {
          auto& [read, written] = counted[rack][work];
          read = after ? bytes.first - read : bytes.first;
          written = after ? bytes.second - written : bytes.second;
        }
      }
      pause.arrive_and_wait();
    }
    pause.arrive_and_drop();
    for (std::thread& rank : ranks) rank.join();
    return counted;
  }

  TemporaryFolder folder_;
  RackProcess racks_;
};

// Expect: every byte that the formula has, by the kind of work, and no more.
TEST_P(RackMemory, DaemonsTouchTheMemoryThatTheFormulaOfThePlanHas) {
  ASSERT_TRUE(racks_.serving()) << racks_.Outputs();
  std::string plan;
  const std::vector<BytesByWork> counted = CountRounds(&plan);
  const Finished computed = RunToEnd(
      kPhubctl, {"plan", "memory", folder_.Write("plan.json", plan), "-t", GetParam().topology,
                 "--size", std::to_string(kBytes), "--ranks", std::to_string(kRanks / kRacks),
                 "--optimizer", "momentum", "-o", "json"});
  const auto formula = nlohmann::json::parse(computed.output, nullptr, false);
  ASSERT_TRUE(formula.contains("daemons")) << computed.output << computed.error;
  for (std::size_t rack = 0; rack < kRacks; ++rack) {
    const nlohmann::json& of = formula["daemons"][rack];
    const auto expect = [&, &bytes = counted[rack]](const char* work, std::uint64_t read,
                                                    std::uint64_t written) {
      EXPECT_EQ(bytes.at(work).first, kRounds * read) << rack << ": " << work;
      EXPECT_EQ(bytes.at(work).second, kRounds * written) << rack << ": " << work;
    };
    for (const char* work : {"landing", "sums", "update", "sending"}) {
      expect(work, of[work]["read_bytes"], of[work]["written_bytes"]);
    }
    expect("copies", 0, 0);
    expect("uplink", of["uplink_sent_bytes"], of["uplink_received_bytes"]);
    std::uint64_t all = 0;
    for (const auto& [work, bytes] : counted[rack]) {
      if (work != "uplink") all += bytes.first + bytes.second;
    }
    EXPECT_EQ(all, kRounds * of["memory_bytes"].get<std::uint64_t>());
    const std::string wide = racks_.Ask(rack, {"job", "get", kJob, "-o", "wide"}).output;
    EXPECT_NE(wide.find("PER UPLINK BYTE"), std::string::npos) << wide;
  }
}

INSTANTIATE_TEST_SUITE_P(Plans, RackMemory,
                         ::testing::Values(MemoryCase{"sharded-star", "switch:4"},
                                           MemoryCase{"ring", "switch:4"},
                                           MemoryCase{"halving-doubling", "switch:4"},
                                           MemoryCase{"double-binary-tree", "switch:4"},
                                           MemoryCase{"hierarchical", "racks:2x2"}));

}  // namespace
}  // namespace phub::process
