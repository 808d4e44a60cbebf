// What requests of a tenant within its quota cost phubd while they are in flight, and that another
// tenant's job trains on.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "phub/v1/session.grpc.pb.h"
#include "tests/process/daemon_process.h"
#include "tests/process/steady_training.h"
#include "tests/support/freed_memory.h"

namespace phub::process {
namespace {

constexpr int kCallers = 8;
// Under sanitizers every key costs ten times as much.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kKeysOfRequest = 6000;
#else
constexpr int kKeysOfRequest = 60000;
#endif
// Besides what the tenant is charged for: the bytes of requests that wait, and of answers.
constexpr std::uint64_t kInFlightGrowthMax = (64u << 20) + 2 * kFreedBytesKept;

class RequestMemory : public ::testing::Test {
 protected:
  struct Context : grpc::ClientContext {
    Context() { set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(120)); }
  };
  void SetUp() override {
    ASSERT_FALSE(daemon_.endpoint().empty()) << daemon_.process().Outputs();
    ASSERT_EQ(daemon_.Ask({"tenant", "create", "acme"}).exit, Exit::WithCode(0));
    grpc::ChannelArguments large;
    large.SetMaxReceiveMessageSize(64 << 20);
    sessions_ = v1::Session::NewStub(
        grpc::CreateCustomChannel(daemon_.endpoint(), grpc::InsecureChannelCredentials(), large));
    for (std::uint32_t rank = 0; rank < kCallers; ++rank) ids_.push_back(Join(rank));
  }
  std::string Join(std::uint32_t rank) {
    v1::JoinRequest join;
    join.set_protocol_version_min(1);
    join.set_protocol_version_max(1);
    join.set_job("many");
    join.set_tenant("acme");
    join.set_rank(rank);
    join.set_host("node");
    join.mutable_options()->set_world_size(kCallers);
    v1::JoinResponse joined;
    Context context;
    grpc::Status status = sessions_->Join(&context, join, &joined);
    EXPECT_TRUE(status.ok()) << status.error_message();
    v1::CommitRequest commit;
    commit.set_session_id(joined.session_id());
    v1::CommitResponse committed;
    Context commit_context;
    status = sessions_->Commit(&commit_context, commit, &committed);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return joined.session_id();
  }
  v1::AddKeysRequest Keys(const std::string& session) const {
    v1::AddKeysRequest request;
    request.set_session_id(session);
    for (int i = 0; i < kKeysOfRequest; ++i) {
      v1::KeySpec& key = *request.add_keys();
      key.set_name("encoder.layers.norm." + std::to_string(i));
      key.set_element_count(1);
      key.set_type(v1::ELEMENT_TYPE_F32);
      key.set_operation(v1::OPERATION_SUM);
    }
    return request;
  }
  void AddKeys(std::size_t rank) {
    v1::AddKeysResponse added;
    Context context;
    const grpc::Status status = sessions_->AddKeys(&context, Keys(ids_[rank]), &added);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(added.placements_size(), kKeysOfRequest);
  }
  // By how much the daemon grows while the ranks from `first` on make a call each, all at once.
  std::uint64_t GrowthDuring(std::size_t first, const std::function<void(std::size_t)>& call) {
    const std::uint64_t before = daemon_.process().ResidentBytes();
    std::uint64_t peak = before;
    std::atomic<int> left{0};
    std::vector<std::thread> callers;
    for (std::size_t rank = first; rank < kCallers; ++rank) {
      ++left;
      callers.emplace_back([&, rank] {
        call(rank);
        --left;
      });
    }
    while (left > 0) {
      peak = std::max(peak, daemon_.process().ResidentBytes());
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    for (std::thread& caller : callers) caller.join();
    return peak - before;
  }

  DaemonProcess daemon_{{"--cores", "1", "--pin", "off", "--liveness-timeout", "120s"}};
  std::unique_ptr<v1::Session::Stub> sessions_;
  std::vector<std::string> ids_;
};

TEST_F(RequestMemory, OfLargeRequestsAtOnceIsThatOfAFew) {
  SteadyTraining victim({daemon_.endpoint()}, {.job = "victim", .world_size = 2},
                        50 * kMillisecond);
  ASSERT_TRUE(victim.WaitFor(1));
  AddKeys(0);
  const std::uint64_t charged = kCallers * Keys(ids_[0]).ByteSizeLong();
  const std::uint64_t adding = GrowthDuring(1, [&](std::size_t rank) { AddKeys(rank); });
  RecordProperty("adding_kib", static_cast<int>(adding >> 10));
  EXPECT_LE(adding, kInFlightGrowthMax + charged);
  std::atomic<std::uint64_t> answers{0};
  const std::uint64_t asking = GrowthDuring(0, [&](std::size_t rank) {
    v1::GetVersionsRequest request;
    request.set_session_id(ids_[rank]);
    v1::GetVersionsResponse versions;
    Context context;
    const grpc::Status status = sessions_->GetVersions(&context, request, &versions);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(versions.keys_size(), kKeysOfRequest);
    answers += versions.ByteSizeLong();
  });
  RecordProperty("asking_kib", static_cast<int>(asking >> 10));
  EXPECT_LE(asking, kInFlightGrowthMax + answers);
  EXPECT_EQ(victim.Finish(), "");
}

}  // namespace
}  // namespace phub::process
