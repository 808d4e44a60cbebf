// Traces of jobs: how they begin, are read page by page, and end.
#include "server/control/admin/job_traces.h"

#include "server/core/round_trace.h"
#include "tests/unit/server/control/control_fixture.h"

namespace phub::server {
namespace {

using ::testing::HasSubstr;

class JobTracesTest : public ControlTest {
 protected:
  JobTracesTest() { options.liveness_timeout = 600 * kSecond; }

  void Run(const std::string& job) {
    sessions_ = EnterAll(1, job);
    AddKeysOfAll(sessions_, {Key("w", 600), Key("b", 3)});
  }
  CallPtr<v1::TraceJobResponse> Ask(const std::string& job, std::uint64_t trace = 0,
                                    bool end = false, const std::string& tenant = "") {
    v1::TraceJobRequest request;
    request.set_tenant(tenant);
    request.set_job(job);
    request.set_trace(trace);
    request.set_end(end);
    auto [call, answer] = Expect<v1::TraceJobResponse>();
    control().job_traces().TraceJob(request, answer);
    Settle();
    return call;
  }
  // The trace that a core loop writes now; null: none.
  RoundTrace* TraceAt(std::size_t core) {
    const auto commands = cores[core]->Executed(Command::Kind::kTraceRounds);
    return commands.empty() ? nullptr : commands.back().trace;
  }
  TracedSpan Span(std::uint32_t key, std::uint64_t round) const {
    return {.begin = clock.now + 100,
            .end = clock.now + 150,
            .round = round,
            .iteration = round - 1,
            .key = KeyIndex{key},
            .rank = 3,
            .work = TracedSpan::Work::kGather};
  }

  std::vector<std::string> sessions_;
};

TEST_F(JobTracesTest, APageHasTheSpansOfAllCoreLoopsAndNamesEachKeyOnce) {
  Run("digits");
  const auto first = Ask("digits");
  ASSERT_TRUE(first->ok()) << first->message();
  EXPECT_EQ(first->response.trace(), 1u);
  EXPECT_EQ(first->response.clock().now_ns(), clock.now);
  EXPECT_FALSE(first->response.clock().host().empty());
  EXPECT_EQ(first->response.daemons(), 1u);
  EXPECT_EQ(first->response.racks_size(), 0);
  ASSERT_NE(TraceAt(0), nullptr);
  TraceAt(0)->Add(Span(0, 1));
  TraceAt(1)->Add(Span(1, 1));
  TraceAt(1)->Add(Span(1, 2));
  const auto page = Ask("digits", 1);
  ASSERT_TRUE(page->ok()) << page->message();
  ASSERT_EQ(page->response.spans_size(), 3);
  const v1::TracedSpan& span = page->response.spans(2);
  EXPECT_EQ(span.core(), 1u);
  EXPECT_EQ(span.key(), 1u);
  EXPECT_EQ(span.round(), 2u);
  EXPECT_EQ(span.iteration(), 1u);
  EXPECT_EQ(span.begin_ns(), clock.now + 100);
  EXPECT_EQ(span.duration_ns(), 50);
  EXPECT_EQ(span.rank(), 3u);
  EXPECT_EQ(span.work(), v1::TRACED_WORK_GATHER);
  ASSERT_EQ(page->response.keys_size(), 2);
  EXPECT_EQ(page->response.keys(0).name(), "w");
  EXPECT_EQ(page->response.keys(0).chunks(), 3u);
  EXPECT_EQ(page->response.keys(1).name(), "b");
  EXPECT_EQ(page->response.keys(1).chunks(), 1u);
  TraceAt(0)->Add(Span(0, 2));
  EXPECT_EQ(Ask("digits", 1)->response.keys_size(), 0);
}

TEST_F(JobTracesTest, PagesAreBoundedAndDropsAreCounted) {
  Run("digits");
  Ask("digits");
  RoundTrace& trace = *TraceAt(0);
  const std::size_t room = trace.spans.capacity();
  for (std::size_t i = 0; i < room + 7; ++i) trace.Add(Span(0, i + 1));
  TraceAt(1)->Add(Span(1, 1));
  std::size_t spans = 0;
  for (bool more = true; more;) {
    const auto page = Ask("digits", 1);
    ASSERT_TRUE(page->ok()) << page->message();
    EXPECT_LE(page->response.spans_size(), static_cast<int>(JobTraces::kSpansPerPage));
    spans += static_cast<std::size_t>(page->response.spans_size());
    EXPECT_EQ(page->response.dropped(), 7u);
    more = page->response.more();
  }
  EXPECT_EQ(spans, room + 1);
}

TEST_F(JobTracesTest, ItsMemoryIsFreedOnlyAfterTheCoreLoopsHaveStopped) {
  Run("digits");
  Ask("digits");
  RoundTrace* const trace = TraceAt(0);
  cores[0]->stopped = true;
  EXPECT_TRUE(Ask("digits", 1, /*end=*/true)->ok());
  trace->Add(Span(0, 1));  // the address sanitizer would find it if it was freed
  EXPECT_EQ(Ask("digits", 1)->code(), absl::StatusCode::kNotFound);
  cores[0]->stopped = false;
  Settle();
  EXPECT_EQ(TraceAt(0), nullptr);
  EXPECT_EQ(TraceAt(1), nullptr);
  EXPECT_EQ(Ask("digits")->response.trace(), 2u);
}

TEST_F(JobTracesTest, ATraceThatNobodyReadsEnds) {
  Run("digits");
  Ask("digits");
  Advance(JobTraces::kUnreadMax / 2);
  EXPECT_TRUE(Ask("digits", 1)->ok());
  Advance(JobTraces::kUnreadMax - kMillisecond);
  EXPECT_NE(TraceAt(0), nullptr);
  Advance(2 * kMillisecond);
  EXPECT_EQ(TraceAt(0), nullptr);
  const auto late = Ask("digits", 1);
  EXPECT_EQ(late->code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(late->message(), HasSubstr("job digits has no trace 1: it has ended, or no page"));
}

TEST_F(JobTracesTest, TracesAreLimited) {
  for (const char* const job : {"a", "b", "c"}) Run(job);
  EXPECT_TRUE(Ask("a")->ok());
  EXPECT_THAT(Ask("a")->message(), HasSubstr("another client is tracing job a"));
  EXPECT_TRUE(Ask("b")->ok());
  const auto third = Ask("c");
  EXPECT_EQ(third->code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(third->message(), HasSubstr("2 jobs of tenant default are being traced"));
  EXPECT_TRUE(Ask("a", 1, /*end=*/true)->ok());
  EXPECT_TRUE(Ask("c")->ok());
}

TEST_F(JobTracesTest, OtherJobsAndTenantsAndEndedJobsAreErrors) {
  Run("digits");
  EXPECT_EQ(Ask("none")->code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Ask("digits", 0, false, "acme")->code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Ask("digits", 7)->code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(Ask("digits")->ok());
  // Expect: core loops stop before they end the job.
  const auto left = Leave(sessions_[0]);
  Settle();
  EXPECT_TRUE(left->ok());
  EXPECT_EQ(TraceAt(0), nullptr);
  EXPECT_EQ(TraceAt(1), nullptr);
  const auto ended = Ask("digits", 1);
  EXPECT_EQ(ended->code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(ended->message(), HasSubstr("digits"));
  Run("digits");
  EXPECT_EQ(Ask("digits", 1)->code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Ask("digits")->response.trace(), 2u);
}

TEST_F(JobTracesTest, CommitStatesTheDaemonsClock) {
  const std::string session = ReserveAs(JoinOf(0, 1));
  clock.now += 5 * kSecond;
  const auto commit = Commit(session);
  ASSERT_TRUE(commit->ok());
  EXPECT_EQ(commit->response.clock().now_ns(), clock.now);
  EXPECT_EQ(commit->response.clock().started_ns(), clock.now - 5 * kSecond);
  EXPECT_FALSE(commit->response.clock().host().empty());
}

}  // namespace
}  // namespace phub::server
