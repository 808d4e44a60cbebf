// phubctl job dump against the real programs: ranks that are stopped, wait, die, or answer with
// something else than a record.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "phub/client.h"
#include "phub/v1/session.grpc.pb.h"
#include "tests/process/daemon_process.h"

namespace phub::process {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr DurationNs kPatience = 60 * kSecond;

class DumpTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_FALSE(daemon_.endpoint().empty()) << daemon_.process().Outputs(); }
  Process StartRank(int rank, int world_size) {
    return Process::Start(
        PHUB_TEST_TRAINER,
        {"--endpoint", daemon_.endpoint(), "--job", "digits", "--rank", std::to_string(rank),
         "--world-size", std::to_string(world_size), "--iterations", "1000000", "--pause-ms", "1"});
  }
  Finished Dump(std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"--timeout", "60s", "job", "dump", "digits"});
    return daemon_.Ask(std::move(more));
  }
  Result<Job> Join(std::uint32_t rank, std::uint32_t world_size) {
    auto session = Connect("phub://" + daemon_.endpoint());
    if (!session.ok()) return session.status();
    return session->Join({.job = "digits", .rank = rank, .world_size = world_size});
  }

  DaemonProcess daemon_{{"--liveness-timeout", "10m"}};
};

TEST_F(DumpTest, NamesAStoppedRankAndWhatTheOthersWaitFor) {
  std::vector<Process> ranks;
  for (const int rank : {0, 1, 2}) ranks.push_back(StartRank(rank, 3));
  ASSERT_TRUE(ranks[0].WaitForOutput("iteration 3\n", kPatience)) << ranks[0].Outputs();
  // Control group: all ranks answer.
  const Finished running = Dump({"--wait", "30s"});
  EXPECT_EQ(running.exit, Exit::WithCode(0)) << running.error;
  EXPECT_THAT(running.output, AllOf(HasSubstr("job default/digits: 3 ranks\n"),
                                    HasSubstr("\nrank 2 ("), Not(HasSubstr("did not answer"))));
  ranks[2].Signal(SIGSTOP);
  // Two dumps at once share the answers.
  auto other = std::async(std::launch::async, [&] { return Dump({"-o", "json", "--wait", "1s"}); });
  Finished stopped = Dump({"--wait", "1s"});
  // The other ranks may not have pushed everything yet.
  const std::string both = "  ranks 0, 1 wait for rank 2 in ";
  for (int i = 0; i < 60 && stopped.output.find(both) == std::string::npos; ++i)
    stopped = Dump({"--wait", "1s"});
  EXPECT_EQ(stopped.exit, Exit::WithCode(0)) << stopped.error;
  EXPECT_THAT(
      stopped.output,
      AllOf(HasSubstr(both), HasSubstr("did not answer within 1.0 s; its last heartbeat was "),
            HasSubstr("\nrank 0 ("), HasSubstr("waits in "), HasSubstr(" (reduce), for ")));
  const Finished json = other.get();
  EXPECT_EQ(json.exit, Exit::WithCode(0)) << json.error;
  EXPECT_THAT(json.output, AllOf(HasSubstr("\"answered\": false"),
                                 HasSubstr("\"problem\": \"did not answer within")));
  ranks[2].Signal(SIGCONT);
  const std::string output = ranks[0].StandardOutput();
  const auto next = 1 + std::count(output.begin(), output.end(), '\n');
  EXPECT_TRUE(ranks[0].WaitForOutput("iteration " + std::to_string(next) + "\n", kPatience));
  EXPECT_THAT(Dump({"--wait", "30s"}).output, Not(HasSubstr("did not answer")));
}

TEST_F(DumpTest, ShowsBarriersAndTheProgramsRecord) {
  auto first = Join(0, 2);
  auto second = Join(1, 2);
  ASSERT_TRUE(first.ok() && second.ok());
  ASSERT_TRUE(second
                  ->SetRecorder([](std::size_t) {
                    return DumpRecord{.headline = "reads a file \x1b[31mslowly",
                                      .text = "line one\nRANKS\n",
                                      .json = R"({"file": "data"})"};
                  })
                  .ok());
  std::thread waiting([&] { EXPECT_TRUE(first->Barrier().ok()); });
  std::string text;
  for (int i = 0; i < 100 && text.find("in barrier 0") == std::string::npos; ++i)
    text = Dump({"--wait", "30s"}).output;
  EXPECT_THAT(text, AllOf(HasSubstr("  rank 0 waits for rank 1 in barrier 0, for "),
                          HasSubstr(") reads a file ?[31mslowly; has no round in flight"),
                          HasSubstr("waits in Barrier for "),
                          HasSubstr("  | line one\n  | RANKS\n"), Not(HasSubstr("\x1b"))));
  EXPECT_THAT(Dump({"-o", "json", "--wait", "30s"}).output,
              HasSubstr(R"("json": "{\"file\": \"data\"}")"));
  EXPECT_TRUE(second->Barrier().ok());
  waiting.join();
}

// With the default liveness timeout.
TEST(Dump, EndsWhenTheJobEndsMeanwhile) {
  const DaemonProcess daemon;
  ASSERT_FALSE(daemon.endpoint().empty());
  Process rank =
      Process::Start(PHUB_TEST_TRAINER, {"--endpoint", daemon.endpoint(), "--job", "digits",
                                         "--iterations", "1000000", "--pause-ms", "1"});
  ASSERT_TRUE(rank.WaitForOutput("iteration 3\n", kPatience)) << rank.Outputs();
  rank.Signal(SIGSTOP);  // the daemon ends the job after the liveness timeout
  const Finished ended = daemon.Ask({"--timeout", "20s", "job", "dump", "digits", "--wait", "25s"});
  EXPECT_EQ(ended.exit, Exit::WithCode(1)) << ended.output;
  EXPECT_THAT(ended.error, HasSubstr("job digits"));
  EXPECT_THAT(ended.error, HasSubstr("rank 0"));
  EXPECT_EQ(daemon.Ask({"job", "dump", "digits"}).exit, Exit::WithCode(1));
  EXPECT_EQ(daemon.Ask({"job", "dump", "nothing"}).exit, Exit::WithCode(3));
}

// A rank with another libphub: it speaks gRPC itself.
class OtherRank {
 public:
  OtherRank(const std::string& endpoint, std::uint32_t rank, std::uint32_t world_size, bool dumps)
      : stub_(v1::Session::NewStub(
            grpc::CreateChannel(endpoint, grpc::InsecureChannelCredentials()))) {
    v1::JoinRequest join;
    join.set_protocol_version_min(1);
    join.set_protocol_version_max(1);
    join.set_job("digits");
    join.set_rank(rank);
    join.set_host("node");
    join.set_dumps(dumps);
    join.mutable_options()->set_world_size(world_size);
    v1::JoinResponse joined;
    Call(&v1::Session::Stub::Join, join, &joined);
    session_ = joined.session_id();
    v1::CommitRequest commit;
    commit.set_session_id(session_);
    v1::CommitResponse committed;
    Call(&v1::Session::Stub::Commit, commit, &committed);
    events_ = stub_->Attend(&context_);
    v1::Heartbeat heartbeat;
    heartbeat.set_session_id(session_);
    EXPECT_TRUE(events_->Write(heartbeat));
  }
  ~OtherRank() {
    context_.TryCancel();
    (void)events_->Finish();
  }
  std::uint64_t AwaitDump() {
    v1::SessionEvent event;
    while (events_->Read(&event)) {
      if (event.has_dump()) return event.dump().number();
    }
    ADD_FAILURE() << "the stream has ended";
    return 0;
  }
  grpc::Status Report(std::uint64_t number, const v1::RankRecord& record) {
    v1::ReportDumpRequest request;
    request.set_session_id(session_);
    request.set_number(number);
    *request.mutable_record() = record;
    v1::ReportDumpResponse response;
    grpc::ClientContext context;
    return stub_->ReportDump(&context, request, &response);
  }

 private:
  template <typename Method, typename Request, typename Response>
  void Call(Method method, const Request& request, Response* response) {
    grpc::ClientContext context;
    const grpc::Status status = ((*stub_).*method)(&context, request, response);
    ASSERT_TRUE(status.ok()) << status.error_message();
  }

  const std::unique_ptr<v1::Session::Stub> stub_;
  std::string session_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::Heartbeat, v1::SessionEvent>> events_;
};

TEST_F(DumpTest, SurvivesRecordsThatAreHostileHugeOrNotWanted) {
  OtherRank hostile(daemon_.endpoint(), 0, 3, /*dumps=*/true);
  OtherRank huge(daemon_.endpoint(), 1, 3, /*dumps=*/true);
  OtherRank old(daemon_.endpoint(), 2, 3, /*dumps=*/false);
  v1::RankRecord record;
  EXPECT_EQ(hostile.Report(1, record).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  auto pending = std::async(std::launch::async, [&] { return Dump({"--wait", "30s"}); });
  const std::uint64_t number = hostile.AwaitDump();
  v1::RankRecord bytes;
  bytes.set_text("\xff\xfe");
  EXPECT_FALSE(hostile.Report(number, bytes).ok());  // protobuf refuses it
  record.set_text(std::string(1 << 20, 'x'));
  EXPECT_EQ(huge.Report(number, record).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(hostile.Report(number + 1, record).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  record.set_text("\x1b]0;title\x07\n\nRANKS\nrank 9 (node, pid 1): \xe2\x80\xae gnp");
  record.set_headline("a\nb\r\x1b[2J");
  EXPECT_TRUE(hostile.Report(number, record).ok());
  EXPECT_EQ(hostile.Report(number, record).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  const Finished dump = pending.get();
  EXPECT_EQ(dump.exit, Exit::WithCode(0)) << dump.error;
  EXPECT_THAT(
      dump.output,
      AllOf(HasSubstr("a?b??[2J"), HasSubstr("  | ?]0;title?\n  | \n  | RANKS\n  | rank 9 ("),
            Not(HasSubstr("\x1b")), Not(HasSubstr("\xe2\x80\xae")),
            HasSubstr("sent a record of 1048"), HasSubstr("more than the limit of 65536"),
            HasSubstr("its version of phub is older than dumps")));
}

}  // namespace
}  // namespace phub::process
