// How control learns of a job's checkpoints, and which workers it notifies.
#include "tests/unit/server/control/checkpoint_fixture.h"

namespace phub::server {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class CheckpointReportTest : public CheckpointTest {
 protected:
  // A snapshot that was read completely.
  std::string ReadAt(std::uint64_t reductions) {
    const std::string id = BeginAt(reductions);
    const auto sink = Read(id);
    ReadToEnd(id, *sink);
    EXPECT_TRUE(sink->end.has_value() && sink->end->ok());
    Settle();
    return id;
  }
  CallPtr<v1::ReportSavedStateResponse> Report(const std::string& id,
                                               const std::string& directory = "/data/digits",
                                               const std::string& host = "node7",
                                               const std::string& tenant = "",
                                               const std::string& job = "digits") {
    v1::ReportSavedStateRequest request;
    request.set_tenant(tenant);
    request.set_job(job);
    request.set_snapshot_id(id);
    request.set_directory(directory);
    request.set_host(host);
    return ReportSavedState(request);
  }
  v1::JobInfo Job() {
    v1::GetJobRequest request;
    request.set_job("digits");
    return GetJob(request)->response;
  }
  LoadId LoadAll(std::uint64_t iteration, const v1::SavedState& source) {
    v1::LoadStateRequest first;
    first.set_session_id(sessions[0]);
    first.set_iteration(iteration);
    *first.mutable_source() = source;
    const auto load = control().loads().BeginLoad(first);
    EXPECT_TRUE(load.ok()) << load.status();
    auto [call, answer] = Expect<v1::LoadStateResponse>();
    control().loads().FinishLoad(*load, answer);
    Settle();
    EXPECT_TRUE(call->ok()) << call->message();
    return *load;
  }
};

TEST_F(CheckpointReportTest, EveryRankIsToldAndTheJobShowsIt) {
  Train(5);
  EXPECT_FALSE(Job().has_saved_state());
  const std::string id = ReadAt(5);
  Advance(kSecond);
  const auto reported = Report(id);
  ASSERT_TRUE(reported->ok()) << reported->message();
  for (const std::string& session : sessions) {
    const auto saved = sinks[session]->saved();
    ASSERT_THAT(saved, SizeIs(1));
    EXPECT_EQ(saved[0].iteration(), 5u);
    EXPECT_EQ(saved[0].directory(), "/data/digits");
    EXPECT_EQ(saved[0].host(), "node7");
    EXPECT_EQ(saved[0].age_ns(), kSecond) << "since the snapshot was begun";
    EXPECT_FALSE(saved[0].loaded());
  }
  Advance(kSecond);
  EXPECT_EQ(Job().saved_state().directory(), "/data/digits");
  EXPECT_EQ(Job().saved_state().age_ns(), 2 * kSecond);
  // Expect: a worker that opens a stream later is notified too.
  const auto later = std::make_shared<RecordingSink>();
  ASSERT_TRUE(control().liveness().AttachStream(sessions[1], later).ok());
  ASSERT_THAT(later->saved(), SizeIs(1));
  EXPECT_EQ(later->saved()[0].iteration(), 5u);
  EXPECT_EQ(later->saved()[0].age_ns(), 2 * kSecond);
}

TEST_F(CheckpointReportTest, WhatIsPassedOnIsPrintableAndShort) {
  Train();
  ASSERT_TRUE(Report(ReadAt(1), "/data\n\x1b[2J/" + std::string(5000, 'x'), "node\x07")->ok());
  const v1::SavedState saved = sinks[sessions[0]]->saved().at(0);
  EXPECT_EQ(saved.directory().substr(0, 12), "/data??[2J/x");
  EXPECT_EQ(saved.directory().size(), 1024u);
  EXPECT_EQ(saved.host(), "node?");
  EXPECT_EQ(Job().saved_state().directory(), saved.directory());
}

TEST_F(CheckpointReportTest, OnlyWhatWasReadToItsEndIsBelievedAndOnce) {
  Train();
  EXPECT_EQ(Report("")->code(), absl::StatusCode::kNotFound);
  const std::string begun = BeginAt(1);
  EXPECT_EQ(Report(begun)->code(), absl::StatusCode::kNotFound);
  const auto reader = Read(begun);
  EXPECT_EQ(Report(begun)->code(), absl::StatusCode::kNotFound);
  control().snapshots().CancelSnapshot(begun, reader.get());
  Settle();
  const auto refused = Report(begun);
  EXPECT_EQ(refused->code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(refused->message(), HasSubstr("digits"));
  const std::string id = ReadAt(1);
  EXPECT_EQ(Report(id, "")->code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Report(id, "/d", "h", "other")->code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Report(id, "/d", "h", "", "letters")->code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(sinks[sessions[0]]->saved(), IsEmpty());
  EXPECT_EQ(Counter("phub_snapshots_refused_total"), 7u);
  EXPECT_TRUE(Report(id)->ok());
  EXPECT_EQ(Report(id, "/elsewhere")->code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(sinks[sessions[0]]->saved(), SizeIs(1));
}

TEST_F(CheckpointReportTest, WhoDoesNotReportIsForgotten) {
  Train();
  std::vector<std::string> ids;
  for (int i = 0; i < 5; ++i) {
    ids.push_back(ReadAt(1));
    Advance(kMillisecond);
  }
  EXPECT_EQ(Report(ids[0])->code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(Report(ids[1])->ok());
  EXPECT_TRUE(Report(ids[4])->ok());
}

TEST_F(CheckpointReportTest, TheNewestIsTheOneThatWasBegunLast) {
  Train(2);
  const std::string older = ReadAt(2);
  Advance(kMillisecond);
  Train(2);
  const std::string newer = ReadAt(4);
  ASSERT_TRUE(Report(newer, "/data/newer")->ok());
  ASSERT_TRUE(Report(older, "/data/older")->ok());
  EXPECT_EQ(Job().saved_state().directory(), "/data/newer");
  EXPECT_THAT(sinks[sessions[0]]->saved(), SizeIs(1));
}

TEST_F(CheckpointReportTest, AStateThatWasLoadedIsOneToGoOnFrom) {
  v1::SavedState source;
  source.set_iteration(7);  // ignored, since the load states the iteration
  source.set_directory("/data/\tbefore");
  source.set_host("node3");
  LoadAll(40, source);
  const v1::SavedState told = sinks[sessions[1]]->saved().at(0);
  EXPECT_EQ(told.iteration(), 40u);
  EXPECT_EQ(told.directory(), "/data/?before");
  EXPECT_TRUE(told.loaded());
  EXPECT_EQ(Job().saved_state().directory(), "/data/?before");
  v1::GetLoadedStateRequest request;
  request.set_session_id(sessions[1]);
  EXPECT_EQ(GetLoadedState(request)->response.source().directory(), "/data/?before");
  EXPECT_EQ(GetLoadedState(request)->response.source().host(), "node3");
  // Expect: a later checkpoint replaces it.
  Advance(kMillisecond);
  Train();
  ASSERT_TRUE(Report(ReadAt(1))->ok());
  EXPECT_EQ(Job().saved_state().directory(), "/data/digits");
  EXPECT_FALSE(Job().saved_state().loaded());
}

TEST_F(CheckpointReportTest, AnOlderClientsLoadNamesNoPlace) {
  LoadAll(40, {});
  EXPECT_THAT(sinks[sessions[0]]->saved(), IsEmpty());
  EXPECT_FALSE(Job().has_saved_state());
}

TEST_F(CheckpointReportTest, AJobThatEndedMeanwhileStillShowsIt) {
  Train();
  const std::string id = ReadAt(1);
  v1::EvictJobRequest evict;
  evict.set_job("digits");
  EvictJob(evict);
  Advance(kSecond);
  const std::size_t told = sinks[sessions[0]]->events.size();
  EXPECT_TRUE(Report(id)->ok());
  EXPECT_EQ(sinks[sessions[0]]->events.size(), told);
  EXPECT_EQ(Job().state(), "failed");
  EXPECT_EQ(Job().saved_state().directory(), "/data/digits");
}

}  // namespace
}  // namespace phub::server
