// Control with a clock that tests set and core loops that tests simulate: the fixture pops, counts
// and answers commands through the real queues.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/random.h"
#include "server/control/on_control.h"
#include "server/control/parts.h"
#include "server/core/job_shard.h"
#include "tests/unit/server/control/fake_core.h"

namespace phub::server {

class FakeClock final : public Clock {
 public:
  TimeNs Now() const override { return now; }
  TimeNs now = 1000 * kSecond;
};

// Counts live instances, so that tests see when control releases a connection.
class FakeConnection final : public transport::Connection {
 public:
  explicit FakeConnection(int& live) : live_(live) { ++live_; }
  ~FakeConnection() override { --live_; }

 private:
  int& live_;
};

// An answer, which may not have arrived yet.
template <typename Response>
struct Call {
  std::optional<absl::Status> status;
  Response response;

  bool answered() const { return status.has_value(); }
  bool ok() const { return answered() && status->ok(); }
  absl::StatusCode code() const { return answered() ? status->code() : absl::StatusCode::kUnknown; }
  std::string message() const {
    return answered() ? std::string(status->message()) : "(not answered)";
  }
};
template <typename Response>
using CallPtr = std::shared_ptr<Call<Response>>;

struct RecordingSink final : EventSink {
  void Send(const v1::SessionEvent& event) override { events.push_back(event); }
  void End(const absl::Status& status) override { end = status; }
  const v1::Fault* fault() const {
    for (const v1::SessionEvent& event : events) {
      if (event.has_job_failed()) return &event.job_failed().fault();
    }
    return nullptr;
  }
  std::vector<v1::SavedState> saved() const {
    std::vector<v1::SavedState> states;
    for (const v1::SessionEvent& event : events) {
      if (event.has_saved()) states.push_back(event.saved());
    }
    return states;
  }
  std::vector<v1::SessionEvent> events;
  std::optional<absl::Status> end;
};

class ControlTest : public ::testing::Test {
 protected:
  explicit ControlTest(std::size_t core_count = 2) : core_count_(core_count) {
    options.memory_bytes_max = 64 << 20;
    options.lane_port = 7701;
  }

  // Created on first use, so that tests can change options.
  Control& control() {
    if (!control_) {
      std::vector<CoreHandle> handles;
      for (std::size_t i = 0; i < core_count_; ++i) {
        cores.push_back(std::make_unique<FakeCore>());
        FakeCore* core = cores.back().get();
        handles.push_back({&core->queues, &core->counters, [core] { ++core->wakes; }});
      }
      control_ = std::make_unique<Control>(clock, random, std::move(handles), options);
    }
    return *control_;
  }

  // Runs core loops and control until nothing happens any more. Time does not advance.
  void Settle() {
    for (int i = 0; i < 4; ++i) {
      for (const auto& core : cores) core->Run();
      control().Poll();
    }
  }
  // Advances time, and calls control whenever it asked to be called.
  void Advance(DurationNs duration) {
    const TimeNs end = clock.now + duration;
    Settle();
    while (control().NextDeadline() <= end) {
      clock.now = std::max(clock.now, control().NextDeadline());
      for (const auto& core : cores) core->Run();
      control().Poll();
    }
    clock.now = end;
    Settle();
  }

  template <typename Response>
  static std::pair<CallPtr<Response>, Answer<Response>> Expect() {
    auto call = std::make_shared<Call<Response>>();
    return {call, [call](const absl::Status& status, const Response& response) {
              ASSERT_FALSE(call->answered()) << "answered twice";
              call->status = status;
              call->response = response;
            }};
  }
#define PHUB_CALL(part, Method, Request, Response)           \
  CallPtr<v1::Response> Method(const v1::Request& request) { \
    auto [call, answer] = Expect<v1::Response>();            \
    control().part().Method(request, answer);                \
    return call;                                             \
  }
  PHUB_CALL(joins, GetRack, GetRackRequest, Rack)
  PHUB_CALL(keys, AddKeys, AddKeysRequest, AddKeysResponse)
  PHUB_CALL(key_removals, RemoveKeys, RemoveKeysRequest, RemoveKeysResponse)
  PHUB_CALL(lanes, OpenLanes, OpenLanesRequest, OpenLanesResponse)
  PHUB_CALL(stall_reports, ListStalls, ListStallsRequest, ListStallsResponse)
  PHUB_CALL(admin, ListJobs, ListJobsRequest, ListJobsResponse)
  PHUB_CALL(admin, GetJob, GetJobRequest, JobInfo)
  PHUB_CALL(admin, GetServer, GetServerRequest, ServerInfo)
  PHUB_CALL(metrics, GetStats, GetStatsRequest, GetStatsResponse)
  PHUB_CALL(draining, DrainServer, DrainServerRequest, ServerInfo)
  PHUB_CALL(draining, UndrainServer, UndrainServerRequest, ServerInfo)
  PHUB_CALL(draining, EvictJob, EvictJobRequest, JobInfo)
  PHUB_CALL(versions, GetVersions, GetVersionsRequest, GetVersionsResponse)
  PHUB_CALL(versions, GetJobVersions, GetJobVersionsRequest, GetVersionsResponse)
  PHUB_CALL(snapshots, BeginSnapshot, BeginSnapshotRequest, Snapshot)
  PHUB_CALL(loads, GetLoadedState, GetLoadedStateRequest, LoadedState)
  PHUB_CALL(snapshots, ReportSavedState, ReportSavedStateRequest, ReportSavedStateResponse)
#undef PHUB_CALL

  static v1::JoinRequest JoinOf(std::uint32_t rank, std::uint32_t world_size,
                                const std::string& job = "digits") {
    v1::JoinRequest request;
    request.set_protocol_version_min(1);
    request.set_protocol_version_max(1);
    request.set_client_version("0.1.0");
    request.set_job(job);
    request.set_rank(rank);
    request.mutable_options()->set_world_size(world_size);
    request.mutable_options()->set_chunk_bytes(1024);
    request.mutable_options()->set_staging_bytes_per_lane(4096);
    request.set_host("node" + std::to_string(rank));
    request.set_pid(4700 + rank);
    return request;
  }
  CallPtr<v1::JoinResponse> Join(const v1::JoinRequest& request) {
    auto [call, answer] = Expect<v1::JoinResponse>();
    control().joins().Join(request, "127.0.0.1:5000", answer);
    return call;
  }
  CallPtr<v1::CommitResponse> Commit(const std::string& session) {
    auto [call, answer] = Expect<v1::CommitResponse>();
    v1::CommitRequest request;
    request.set_session_id(session);
    control().seats().Commit(request, answer);
    return call;
  }
  // Reserves a place for a rank. Returns the session id.
  std::string ReserveAs(const v1::JoinRequest& request) {
    const auto call = Join(request);
    Settle();
    EXPECT_TRUE(call->ok()) << call->message();
    last_join = call->response;
    return call->response.session_id();
  }
  // A rank joins completely, and opens its Attend stream. Returns the session id.
  std::string Enter(std::uint32_t rank, std::uint32_t world_size,
                    const std::string& job = "digits") {
    return EnterAs(JoinOf(rank, world_size, job));
  }
  std::string EnterAs(const v1::JoinRequest& request) {
    const std::string session = ReserveAs(request);
    const auto commit = Commit(session);
    EXPECT_TRUE(commit->ok()) << commit->message();
    sinks[session] = std::make_shared<RecordingSink>();
    const auto stream = control().liveness().AttachStream(session, sinks[session]);
    EXPECT_TRUE(stream.ok());
    if (stream.ok()) streams[session] = *stream;
    return session;
  }
  std::vector<std::string> EnterAll(std::uint32_t world_size, const std::string& job = "digits") {
    std::vector<std::string> sessions;
    for (std::uint32_t rank = 0; rank < world_size; ++rank) {
      sessions.push_back(Enter(rank, world_size, job));
    }
    return sessions;
  }

  static v1::KeySpec Key(const std::string& name, std::uint64_t elements) {
    v1::KeySpec key;
    key.set_name(name);
    key.set_element_count(elements);
    key.set_type(v1::ELEMENT_TYPE_F32);
    key.set_operation(v1::OPERATION_SUM);
    key.set_optimizer(v1::OPTIMIZER_MOMENTUM);
    key.mutable_hyper_parameters()->set_learning_rate(0.1f);
    key.mutable_hyper_parameters()->set_momentum(0.9f);
    return key;
  }
  static v1::AddKeysRequest Batch(const std::string& session, std::uint32_t batch,
                                  const std::vector<v1::KeySpec>& keys) {
    v1::AddKeysRequest request;
    request.set_session_id(session);
    request.set_batch(batch);
    for (const v1::KeySpec& key : keys) *request.add_keys() = key;
    return request;
  }
  void AddKeysOfAll(const std::vector<std::string>& sessions,
                    const std::vector<v1::KeySpec>& keys) {
    for (const std::string& session : sessions) {
      const auto call = AddKeys(Batch(session, 0, keys));
      Settle();
      ASSERT_TRUE(call->ok()) << call->message();
    }
  }
  CallPtr<v1::LeaveResponse> Leave(const std::string& session, const std::string& verdict = "") {
    auto [call, answer] = Expect<v1::LeaveResponse>();
    v1::LeaveRequest request;
    request.set_session_id(session);
    request.set_verdict(verdict);
    control().seats().Leave(request, answer);
    return call;
  }
  CallPtr<v1::BarrierResponse> Barrier(const std::string& session, std::uint64_t sequence) {
    auto [call, answer] = Expect<v1::BarrierResponse>();
    v1::BarrierRequest request;
    request.set_session_id(session);
    request.set_sequence(sequence);
    control().barriers().Barrier(request, answer);
    return call;
  }
  CallPtr<v1::OpenLanesResponse> OpenLanesOf(const std::string& session) {
    v1::OpenLanesRequest request;
    request.set_session_id(session);
    return OpenLanes(request);
  }
  // The hello for core `core`, with the incarnation of the last Enter.
  wire::LaneHello HelloOf(const v1::OpenLanesResponse& grants, std::uint32_t rank,
                          std::uint32_t core) const {
    wire::LaneHello hello;
    hello.version_min = hello.version_max = 1;
    hello.core = CoreIndex{core};
    hello.rank = Rank{rank};
    hello.incarnation = Incarnation{last_join.incarnation()};
    hello.membership_epoch = MembershipEpoch{last_join.membership_epoch()};
    for (const v1::LaneGrant& grant : grants.grants()) {
      if (grant.core() != core) continue;
      EXPECT_EQ(grant.nonce().size(), wire::kNonceBytes);
      std::copy_n(reinterpret_cast<const std::byte*>(grant.nonce().data()), wire::kNonceBytes,
                  hello.nonce.begin());
    }
    return hello;
  }
  void Attach(const wire::LaneHello& hello) {
    control().lanes().AttachLane(hello, std::make_unique<FakeConnection>(connections_live), 0,
                                 "tcp", "10.0.0.5:40112");
  }
  void OpenAllLanes(const std::string& session, std::uint32_t rank) {
    const auto grants = OpenLanesOf(session);
    ASSERT_TRUE(grants->ok()) << grants->message();
    for (std::uint32_t core = 0; core < cores.size(); ++core) {
      const wire::LaneHello hello = HelloOf(grants->response, rank, core);
      ASSERT_EQ(control().lanes().AdmitLane(hello), wire::LaneRefusal::kNone);
      Attach(hello);
    }
    Settle();
  }
  // A process dies: its lanes end (they are opened now if it had none), and its stream ends.
  // in_rack: its rank within this rack.
  void Die(const std::string& session, std::uint32_t rank, Rank in_rack) {
    const auto is_its = [&](const Command& lane) { return lane.owner == in_rack; };
    if (std::ranges::none_of(cores[0]->attached, is_its)) OpenAllLanes(session, rank);
    for (const auto& core : cores) {
      const std::vector<Command> lanes = core->attached;
      for (const Command& lane : lanes) {
        if (is_its(lane)) core->CloseLane(lane, transport::TransportError::kReset);
      }
    }
    control().liveness().DetachStream(session, streams[session]);
    sinks[session] = std::make_shared<RecordingSink>();
  }
  void Heartbeat(const std::string& session) {
    EXPECT_TRUE(control().liveness().Heartbeat(session, ++heartbeats_).ok());
  }
  std::uint64_t Counter(const std::string& name) {
    std::uint64_t value = 0;
    const auto stats = GetStats({});
    for (const v1::Counter& counter : stats->response.counters()) {
      if (counter.name() == name) value += counter.value();
    }
    return value;
  }
  const v1::Fault* FaultAt(const std::string& session) { return sinks[session]->fault(); }

  FakeClock clock;
  SeededRandom random{1};
  ControlOptions options;
  std::vector<std::unique_ptr<FakeCore>> cores;
  std::map<std::string, std::shared_ptr<RecordingSink>> sinks;  // by session
  std::map<std::string, StreamId> streams;
  v1::JoinResponse last_join;
  int connections_live = 0;

 private:
  const std::size_t core_count_;
  std::uint64_t heartbeats_ = 0;
  const OnControl on_control_;  // no other thread uses control
  std::unique_ptr<Control> control_;
};

}  // namespace phub::server
