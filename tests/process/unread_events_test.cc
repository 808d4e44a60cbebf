// Ranks that never read their event stream cost the daemon no memory that grows, and another job
// nothing.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <vector>

#include "phub/v1/admin.grpc.pb.h"
#include "phub/v1/session.grpc.pb.h"
#include "tests/process/daemon_process.h"
#include "tests/process/steady_training.h"
#include "tests/support/freed_memory.h"

namespace phub::process {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::uint32_t kSilentRanks = 100;
constexpr int kSaves = 1500;
// Each save sends every rank 1 KiB, so without a limit the saves cost 150 MiB. gRPC keeps a
// window of unread data for each stream.
constexpr std::uint64_t kGrowthMax = 24 << 20;

// A rank that opened its event stream, sent one heartbeat, and reads nothing.
struct SilentRank {
  v1::JoinResponse joined;
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReaderWriter<v1::Heartbeat, v1::SessionEvent>> events;
};

class UnreadEvents : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_FALSE(daemon_.endpoint().empty()) << daemon_.process().Outputs();
    const auto channel =
        grpc::CreateChannel(daemon_.endpoint(), grpc::InsecureChannelCredentials());
    sessions_ = v1::Session::NewStub(channel);
    // With its default settings, gRPC would buffer MiB for a reader that does not read.
    grpc::ChannelArguments small;
    small.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    silent_sessions_ = v1::Session::NewStub(
        grpc::CreateCustomChannel(daemon_.endpoint(), grpc::InsecureChannelCredentials(), small));
    admin_ = v1::Admin::NewStub(channel);
  }
  template <typename Stub, typename Method, typename Request, typename Response>
  static void Call(Stub& stub, Method method, const Request& request, Response* response) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    const grpc::Status status = (stub.*method)(&context, request, response);
    ASSERT_TRUE(status.ok()) << status.error_message();
  }
  void Join(std::uint32_t rank, v1::JoinResponse* joined) {
    v1::JoinRequest join;
    join.set_protocol_version_min(1);
    join.set_protocol_version_max(1);
    join.set_job("unread");
    join.set_rank(rank);
    join.set_host("node");
    join.mutable_options()->set_world_size(kSilentRanks + 1);
    Call(*sessions_, &v1::Session::Stub::Join, join, joined);
    v1::CommitRequest commit;
    commit.set_session_id(joined->session_id());
    v1::CommitResponse committed;
    Call(*sessions_, &v1::Session::Stub::Commit, commit, &committed);
  }
  void AddKey(const std::string& session) {
    v1::AddKeysRequest request;
    request.set_session_id(session);
    v1::KeySpec& key = *request.add_keys();
    key.set_name("weights");
    key.set_element_count(16);
    key.set_type(v1::ELEMENT_TYPE_F32);
    key.set_operation(v1::OPERATION_SUM);
    v1::AddKeysResponse added;
    Call(*sessions_, &v1::Session::Stub::AddKeys, request, &added);
  }
  void Save(int number) {
    v1::BeginSnapshotRequest begin;
    begin.set_job("unread");
    begin.add_targets()->set_key_index(0);
    v1::Snapshot snapshot;
    Call(*admin_, &v1::Admin::Stub::BeginSnapshot, begin, &snapshot);
    grpc::ClientContext context;
    v1::ReadSnapshotRequest read;
    read.set_snapshot_id(snapshot.snapshot_id());
    const auto parts = admin_->ReadSnapshot(&context, read);
    v1::SnapshotPart part;
    while (parts->Read(&part)) continue;
    const grpc::Status status = parts->Finish();
    ASSERT_TRUE(status.ok()) << status.error_message();
    v1::ReportSavedStateRequest report;
    report.set_job("unread");
    report.set_snapshot_id(snapshot.snapshot_id());
    report.set_host("node");
    report.set_directory(std::to_string(number) + std::string(1000, 'd'));
    v1::ReportSavedStateResponse reported;
    Call(*admin_, &v1::Admin::Stub::ReportSavedState, report, &reported);
  }

  DaemonProcess daemon_{{"--cores", "1", "--pin", "off", "--liveness-timeout", "120s"}};
  std::unique_ptr<v1::Session::Stub> sessions_;
  std::unique_ptr<v1::Session::Stub> silent_sessions_;
  std::unique_ptr<v1::Admin::Stub> admin_;
};

TEST_F(UnreadEvents, HundredRanksThatNeverReadAndOneThatSavesInALoopCostNoMemory) {
  std::vector<std::unique_ptr<SilentRank>> ranks;
  for (std::uint32_t rank = 1; rank <= kSilentRanks; ++rank) {
    ranks.push_back(std::make_unique<SilentRank>());
    SilentRank& silent = *ranks.back();
    Join(rank, &silent.joined);
    silent.events = silent_sessions_->Attend(&silent.context);
    v1::Heartbeat heartbeat;
    heartbeat.set_session_id(silent.joined.session_id());
    ASSERT_TRUE(silent.events->Write(heartbeat));
  }
  v1::JoinResponse saver;
  Join(0, &saver);
  AddKey(saver.session_id());
  SteadyTraining victim({daemon_.endpoint()}, {.job = "victim", .world_size = 2},
                        50 * kMillisecond);
  ASSERT_TRUE(victim.WaitFor(1));
  for (int i = 0; i < 50 && !HasFatalFailure(); ++i) Save(i);  // fills gRPC's windows
  const std::uint64_t before = daemon_.process().ResidentBytes();
  for (int i = 0; i < kSaves && !HasFatalFailure(); ++i) Save(i);
  const std::uint64_t after = daemon_.process().ResidentBytes();
  RecordProperty("grown_bytes", std::to_string(after - std::min(before, after)));
  EXPECT_LE(after, before + kGrowthMax + kFreedBytesKept);
  EXPECT_EQ(victim.Finish(), "");
  // Expect: a rank that reads at last gets the newest saved state.
  v1::SessionEvent event;
  std::string directory;
  while (directory.find(std::to_string(kSaves - 1) + "d") != 0 && ranks[0]->events->Read(&event)) {
    if (event.has_saved()) directory = event.saved().directory();
  }
  EXPECT_EQ(directory, std::to_string(kSaves - 1) + std::string(1000, 'd'));
  for (const auto& rank : ranks) rank->context.TryCancel();
  for (const auto& rank : ranks) (void)rank->events->Finish();
  // Expect: the replaced events are counted.
  const Finished stats = daemon_.Ask({"stats", "--all"});
  EXPECT_THAT(stats.output, HasSubstr("phub_events_replaced_total"));
  EXPECT_THAT(stats.output, Not(HasSubstr("phub_events_replaced_total 0\n")));
}

}  // namespace
}  // namespace phub::process
