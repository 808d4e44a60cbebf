// A job's state, saved from a daemon's control plane into a directory and loaded again, over real
// channels. The test simulates the core loops. Two daemons of one core, each a rack and a job of
// its own, act as one rack for saving and loading.
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <filesystem>
#include <mutex>
#include <thread>

#include "client/checkpoint/checkpoint.h"
#include "common/base/host_name.h"
#include "server/control/rpc/grpc_server.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/server/control/checkpoint_fixture.h"

namespace phub::client {
namespace {

using server::KeepingCore;
using ::testing::HasSubstr;

server::ControlOptions Options() {
  server::ControlOptions options;
  options.liveness_timeout = 60 * kSecond;  // the worker sends no heartbeats
  return options;
}

// A daemon's control plane, its core loop, and one worker that has joined.
class Daemon {
 public:
  explicit Daemon(const std::string& job)
      : control_(clock_, random_, {{&core_.queues, &core_.counters, {}}}, Options()),
        thread_(control_, clock_),
        keeping_(core_) {
    control_.SetLaneEndpoint(CoreIndex{0}, "", 7701);
    EXPECT_TRUE(thread_.Start().ok());
    grpc_ = *server::GrpcServer::Create(thread_, {});
    core_thread_ = std::thread([this] {
      while (!stop_) {
        {
          const std::lock_guard lock(mutex_);
          core_.Run();
          if (training_) keeping_.Train();
        }
        thread_.doorbell().Ring();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
    endpoint_ = "127.0.0.1:" + std::to_string(grpc_->port());
    const auto channel = grpc::CreateChannel(endpoint_, grpc::InsecureChannelCredentials());
    admin_ = v1::Admin::NewStub(channel);
    session_ = v1::Session::NewStub(channel);
    Enter(job);
  }
  ~Daemon() {
    grpc_->Shutdown();
    thread_.Stop();
    stop_ = true;
    core_thread_.join();
  }
  CheckpointDaemon view() const { return {endpoint_, admin_.get(), session_.get(), session_id_}; }
  void SetTraining(bool training) { training_ = training; }
  std::uint64_t memory_bytes() {
    return thread_.Run([](server::Control& control) { return control.memory_bytes(); });
  }
  v1::JobInfo job(const std::string& name) {
    v1::GetJobRequest request;
    request.set_job(name);
    v1::JobInfo info;
    grpc::ClientContext context;
    EXPECT_TRUE(admin_->GetJob(&context, request, &info).ok());
    return info;
  }
  // Calls function(shard) while the core loop is paused.
  template <typename Function>
  void Look(Function function) {
    const std::lock_guard lock(mutex_);
    function(keeping_.shard());
  }
  static v1::KeySpec Spec(const std::string& name, std::uint64_t elements) {
    v1::KeySpec key;
    key.set_name(name);
    key.set_element_count(elements);
    key.set_type(v1::ELEMENT_TYPE_F32);
    key.set_operation(v1::OPERATION_SUM);
    key.set_optimizer(v1::OPTIMIZER_MOMENTUM);
    key.mutable_hyper_parameters()->set_learning_rate(0.25);
    return key;
  }

 private:
  void Enter(const std::string& job) {
    v1::JoinRequest join;
    join.set_protocol_version_min(1);
    join.set_protocol_version_max(1);
    join.set_job(job);
    join.mutable_options()->set_world_size(1);
    join.set_host("node0");
    v1::JoinResponse joined;
    grpc::ClientContext contexts[3];
    ASSERT_TRUE(session_->Join(&contexts[0], join, &joined).ok());
    session_id_ = joined.session_id();
    v1::CommitRequest commit;
    commit.set_session_id(session_id_);
    v1::CommitResponse committed;
    ASSERT_TRUE(session_->Commit(&contexts[1], commit, &committed).ok());
    v1::AddKeysRequest add;
    add.set_session_id(session_id_);
    *add.add_keys() = Spec("fc1", 1'000'000);
    *add.add_keys() = Spec("fc2", 777);
    v1::AddKeysResponse added;
    ASSERT_TRUE(session_->AddKeys(&contexts[2], add, &added).ok());
  }

  SystemClock clock_;
  SystemRandom random_;
  server::FakeCore core_;
  server::Control control_;
  server::ControlThread thread_;
  KeepingCore keeping_;
  std::unique_ptr<server::GrpcServer> grpc_;
  std::string endpoint_;
  std::unique_ptr<v1::Admin::Stub> admin_;
  std::unique_ptr<v1::Session::Stub> session_;
  std::string session_id_;
  std::mutex mutex_;  // protects the core loop's side
  std::atomic<bool> training_{false};
  std::atomic<bool> stop_{false};
  std::thread core_thread_;
};

class RoundTrip : public ::testing::Test {
 protected:
  static std::vector<LoadKey> Keys() {
    std::vector<LoadKey> keys = {{Daemon::Spec("fc1", 1'000'000), {}},
                                 {Daemon::Spec("fc2", 777), {}}};
    for (LoadKey& key : keys) {
      for (std::uint64_t offset = 0; offset < key.spec.element_count(); offset += 16384) {
        const auto count = std::min<std::uint64_t>(16384, key.spec.element_count() - offset);
        key.chunks.push_back({0, offset, static_cast<std::uint32_t>(count)});
      }
    }
    return keys;
  }
  const TemporaryFolder folder_;
  const std::string directory_ = folder_.path();
};

TEST_F(RoundTrip, WhatIsSavedWhileTrainingGoesOnIsLoadedElsewhere) {
  Daemon first("digits");
  const std::uint64_t idle_bytes = first.memory_bytes();
  first.SetTraining(true);
  const CheckpointDaemon from = first.view();
  std::uint64_t moved = 0;
  TransferOptions options;
  options.progress = [&](const TransferProgress& progress) {
    moved = std::max(moved, progress.bytes);
    return true;
  };
  const auto saved = SaveCheckpoint(
      {&from, 1}, {.tenant = "", .job = "digits", .incarnation = 0, .directory = directory_},
      options);
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_TRUE(saved->lockstep);
  EXPECT_EQ(saved->bytes, 1'000'777u * 8);
  EXPECT_EQ(moved, saved->bytes);
  EXPECT_EQ(first.memory_bytes(), idle_bytes);
  EXPECT_TRUE(saved->told.ok()) << saved->told;
  EXPECT_EQ(first.job("digits").saved_state().iteration(), saved->iteration);
  EXPECT_EQ(first.job("digits").saved_state().directory(), directory_);
  EXPECT_EQ(first.job("digits").saved_state().host(), HostName());

  Daemon second("other");
  const CheckpointDaemon to = second.view();
  const auto loaded = LoadCheckpoint({&to, 1}, Keys(), directory_, options);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->iteration, saved->iteration);
  EXPECT_EQ(loaded->state.keys(0).hyper_parameters().learning_rate(), 0.25);
  EXPECT_EQ(second.job("other").saved_state().iteration(), saved->iteration);
  EXPECT_EQ(second.job("other").saved_state().directory(), directory_);
  EXPECT_TRUE(second.job("other").saved_state().loaded());
  second.Look([&](server::JobShard& shard) {
    ASSERT_NE(shard.loaded, nullptr);
    for (std::uint32_t c = 0; c < shard.chunk_count; ++c) {
      const server::Chunk& chunk = *shard.chunks()[c];
      ASSERT_TRUE(shard.loaded->chunks[c].ready);
      EXPECT_EQ(shard.loaded->chunks[c].reductions, saved->iteration);
      for (std::uint32_t i = 0; i < chunk.element_count; ++i) {
        const float expected = KeepingCore::ValueOf(saved->iteration, chunk.element_offset + i);
        float values[2];
        std::memcpy(&values[0], shard.loaded->chunks[c].parameters + i * 4, 4);
        std::memcpy(&values[1], shard.loaded->chunks[c].state[0] + i * 4, 4);
        ASSERT_EQ(values[0], expected);
        ASSERT_EQ(values[1], -expected);
      }
    }
  });
}

TEST_F(RoundTrip, GivingUpLeavesNothingBehind) {
  Daemon daemon("digits");
  const std::uint64_t idle_bytes = daemon.memory_bytes();
  const CheckpointDaemon from = daemon.view();
  TransferOptions options;
  options.progress = [&](const TransferProgress& progress) {
    return progress.phase == TransferProgress::Phase::kChoosing;
  };
  const auto saved = SaveCheckpoint(
      {&from, 1}, {.tenant = "", .job = "digits", .incarnation = 0, .directory = directory_},
      options);
  EXPECT_EQ(saved.status().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(std::filesystem::is_empty(directory_));
  for (int i = 0; i < 500 && daemon.memory_bytes() != idle_bytes; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(daemon.memory_bytes(), idle_bytes);
}

TEST_F(RoundTrip, StateOfOtherKeysIsRefusedBeforeTheDaemonHearsOfIt) {
  Daemon daemon("digits");
  daemon.SetTraining(true);
  const CheckpointDaemon view = daemon.view();
  ASSERT_TRUE(
      SaveCheckpoint({&view, 1},
                     {.tenant = "", .job = "digits", .incarnation = 0, .directory = directory_}, {})
          .ok());
  std::vector<LoadKey> keys = Keys();
  keys[1].spec.set_element_count(778);
  auto loaded = LoadCheckpoint({&view, 1}, keys, directory_, {});
  EXPECT_THAT(std::string(loaded.status().message()),
              HasSubstr("key fc2: the checkpoint has element count 777, the job has 778"));
  keys = Keys();
  keys[1].spec.set_name("fc3");
  loaded = LoadCheckpoint({&view, 1}, keys, directory_, {});
  EXPECT_THAT(std::string(loaded.status().message()), HasSubstr("no key fc3"));
  // Expect: the daemon refuses a session that it does not know.
  CheckpointDaemon stranger = view;
  stranger.session_id = "nobody";
  loaded = LoadCheckpoint({&stranger, 1}, Keys(), directory_, {});
  EXPECT_EQ(loaded.status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace phub::client
