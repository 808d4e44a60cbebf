// The control plane over a real loopback channel.
#include "server/control/rpc/grpc_server.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/client_unary_call.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "phub/v1/admin.grpc.pb.h"
#include "phub/v1/session.grpc.pb.h"
#include "server/transports/tcp/tcp_lane_gate.h"
#include "tests/unit/server/control/control_fixture.h"

namespace phub::server {
namespace {

using ::testing::HasSubstr;

// A unary call with untyped messages.
grpc::Status CallWithBytes(const std::shared_ptr<grpc::Channel>& channel, const char* path,
                           const std::string& bytes, std::string* answer = nullptr) {
  const grpc::Slice slice(bytes);
  const grpc::ByteBuffer request(&slice, 1);
  grpc::ByteBuffer response;
  grpc::ClientContext context;
  const grpc::internal::RpcMethod method(path, grpc::internal::RpcMethod::NORMAL_RPC);
  const grpc::Status status =
      grpc::internal::BlockingUnaryCallImpl<grpc::ByteBuffer, grpc::ByteBuffer>(
          channel.get(), method, &context, request, &response)
          .status();
  if (status.ok() && answer != nullptr) {
    grpc::Slice whole;
    EXPECT_TRUE(response.DumpToSingleSlice(&whole).ok());
    answer->assign(reinterpret_cast<const char*>(whole.begin()), whole.size());
  }
  return status;
}
grpc::Status CallHealth(const std::shared_ptr<grpc::Channel>& channel, const std::string& service,
                        std::string* answer) {
  // HealthCheckRequest{service = 1}
  std::string bytes;
  bytes.push_back('\x0a');
  bytes.push_back(static_cast<char>(service.size()));
  bytes += service;
  return CallWithBytes(channel, "/grpc.health.v1.Health/Check", bytes, answer);
}
const std::string kServing = "\x08\x01";     // HealthCheckResponse{status = SERVING}
const std::string kNotServing = "\x08\x02";  // NOT_SERVING

class GrpcServerTest : public ::testing::Test {
 protected:
  GrpcServerTest()
      : control_(clock_, random_, {{&core_.queues, &core_.counters, {}}}, Options()),
        thread_(control_, clock_) {
    control_.SetLaneEndpoint(CoreIndex{0}, "", 7701);
    EXPECT_TRUE(thread_.Start().ok());
    auto server = GrpcServer::Create(thread_, {});
    EXPECT_TRUE(server.ok()) << server.status().message();
    server_ = std::move(*server);
    core_thread_ = std::thread([this] {
      while (!core_stop_) {
        core_.Run();
        thread_.doorbell().Ring();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
    channel_ = grpc::CreateChannel("127.0.0.1:" + std::to_string(server_->port()),
                                   grpc::InsecureChannelCredentials());
    session_ = v1::Session::NewStub(channel_);
    admin_ = v1::Admin::NewStub(channel_);
  }
  ~GrpcServerTest() override {
    server_->Shutdown();
    thread_.Stop();
    core_stop_ = true;
    core_thread_.join();
  }
  static ControlOptions Options() {
    ControlOptions options;
    options.liveness_timeout = kSecond;
    return options;
  }

  struct Context : grpc::ClientContext {
    Context() {
      set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
      set_wait_for_ready(true);
    }
  };
  std::string Join(std::uint32_t rank, std::uint32_t world_size) {
    v1::JoinRequest request;
    request.set_protocol_version_min(1);
    request.set_protocol_version_max(1);
    request.set_job("digits");
    request.set_rank(rank);
    request.mutable_options()->set_world_size(world_size);
    request.set_host("node" + std::to_string(rank));
    request.set_pid(1);
    v1::JoinResponse response;
    Context context;
    const grpc::Status status = session_->Join(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.cores(0).port(), 7701u);
    v1::CommitRequest commit;
    commit.set_session_id(response.session_id());
    v1::CommitResponse committed;
    Context commit_context;
    EXPECT_TRUE(session_->Commit(&commit_context, commit, &committed).ok());
    return response.session_id();
  }
  std::uint64_t Counted(const std::string& name) {
    v1::GetStatsResponse stats;
    Context context;
    EXPECT_TRUE(admin_->GetStats(&context, {}, &stats).ok());
    for (const v1::Counter& counter : stats.counters()) {
      if (counter.name() == name) return counter.value();
    }
    return 0;
  }
  v1::Rack GetRack() {
    v1::Rack rack;
    Context context;
    EXPECT_TRUE(session_->GetRack(&context, {}, &rack).ok());
    return rack;
  }
  grpc::Status Leave(const std::string& session) {
    v1::LeaveRequest request;
    request.set_session_id(session);
    v1::LeaveResponse response;
    Context context;
    return session_->Leave(&context, request, &response);
  }
  static v1::Heartbeat Beat(const std::string& session, std::uint64_t sequence) {
    v1::Heartbeat heartbeat;
    heartbeat.set_session_id(session);
    heartbeat.set_sequence(sequence);
    return heartbeat;
  }

  SystemClock clock_;
  SystemRandom random_;
  FakeCore core_;
  Control control_;
  ControlThread thread_;
  std::unique_ptr<GrpcServer> server_;
  std::atomic<bool> core_stop_{false};
  std::thread core_thread_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Session::Stub> session_;
  std::unique_ptr<v1::Admin::Stub> admin_;
};

TEST_F(GrpcServerTest, ASessionFromJoinToLeave) {
  const std::string session = Join(0, 1);
  Context context;
  const auto stream = session_->Attend(&context);
  for (std::uint64_t sequence = 1; sequence <= 3; ++sequence) {
    ASSERT_TRUE(stream->Write(Beat(session, sequence)));
    v1::SessionEvent event;
    ASSERT_TRUE(stream->Read(&event));
    EXPECT_EQ(event.heartbeat().sequence(), sequence);
  }
  EXPECT_TRUE(Leave(session).ok());
  // Expect: the job's end ends the stream in order.
  v1::SessionEvent event;
  EXPECT_FALSE(stream->Read(&event));
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(thread_.Run([](Control& control) { return control.memory_bytes(); }), 0u);
}

TEST_F(GrpcServerTest, ASilentRankIsNoticedInTimeAndSurvivorsAreTold) {
  const std::string survivor = Join(0, 2);
  Join(1, 2);
  const TimeNs begun = clock_.Now();
  Context context;
  const auto stream = session_->Attend(&context);
  std::atomic<bool> stop{false};
  std::thread beats([&] {
    for (std::uint64_t sequence = 1; !stop; ++sequence) {
      if (!stream->Write(Beat(survivor, sequence))) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  });
  // A call that waits for the other rank fails with the same message.
  std::string barrier_message;
  std::thread barrier([&] {
    v1::BarrierRequest request;
    request.set_session_id(survivor);
    v1::BarrierResponse response;
    Context barrier_context;
    barrier_message = session_->Barrier(&barrier_context, request, &response).error_message();
  });
  v1::SessionEvent event;
  while (stream->Read(&event) && !event.has_job_failed()) {
  }
  EXPECT_THAT(event.job_failed().fault().message(), HasSubstr("rank 1 (node1"));
  EXPECT_LT(clock_.Now() - begun, 5 * kSecond);
  barrier.join();
  EXPECT_EQ(barrier_message, event.job_failed().fault().message());
  EXPECT_FALSE(stream->Read(&event) && !event.has_heartbeat());
  stop = true;
  beats.join();
}

TEST_F(GrpcServerTest, AClientThatVanishesLosesItsStream) {
  const std::string session = Join(0, 1);
  auto context = std::make_unique<Context>();
  auto stream = session_->Attend(context.get());
  ASSERT_TRUE(stream->Write(Beat(session, 1)));
  v1::SessionEvent event;
  ASSERT_TRUE(stream->Read(&event));
  context->TryCancel();
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  const auto detached = [&] {
    bool found = false;
    thread_.Run([&](Control& control) {
      control.metrics().GetStats({}, [&](const absl::Status&, const v1::GetStatsResponse& stats) {
        for (const v1::Counter& counter : stats.counters()) {
          found |= counter.name() == "phub_streams_detached_total" && counter.value() == 1;
        }
      });
    });
    return found;
  };
  const TimeNs deadline = clock_.Now() + 10 * kSecond;
  while (!detached() && clock_.Now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_TRUE(detached());
}

TEST_F(GrpcServerTest, StreamsOfUnknownSessionsAreRefused) {
  for (const std::string session : {"", "sixteen bytes id"}) {
    Context context;
    const auto stream = session_->Attend(&context);
    stream->Write(Beat(session, 1));
    v1::SessionEvent event;
    EXPECT_FALSE(stream->Read(&event));
    EXPECT_EQ(stream->Finish().error_code(),
              session.empty() ? grpc::StatusCode::INVALID_ARGUMENT : grpc::StatusCode::NOT_FOUND);
  }
}

TEST_F(GrpcServerTest, HealthFollowsServing) {
  std::string answer;
  for (const std::string service : {"", "phub.v1.Session"}) {
    ASSERT_TRUE(CallHealth(channel_, service, &answer).ok());
    EXPECT_EQ(answer, kServing);
  }
  EXPECT_EQ(CallHealth(channel_, "no.such.Service", &answer).error_code(),
            grpc::StatusCode::NOT_FOUND);
  server_->SetServing(false);
  ASSERT_TRUE(CallHealth(channel_, "phub.v1.Session", &answer).ok());
  EXPECT_EQ(answer, kNotServing);
}

TEST_F(GrpcServerTest, ReflectionListsTheServices) {
  const grpc::internal::RpcMethod method(
      "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
      grpc::internal::RpcMethod::BIDI_STREAMING);
  Context context;
  const std::unique_ptr<grpc::ClientReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>> stream(
      grpc::internal::ClientReaderWriterFactory<grpc::ByteBuffer, grpc::ByteBuffer>::Create(
          channel_.get(), method, &context));
  const grpc::Slice slice(std::string("\x3a\x00", 2));  // {list_services = 7: ""}
  ASSERT_TRUE(stream->Write(grpc::ByteBuffer(&slice, 1)));
  grpc::ByteBuffer response;
  ASSERT_TRUE(stream->Read(&response));
  grpc::Slice whole;
  ASSERT_TRUE(response.DumpToSingleSlice(&whole).ok());
  const std::string text(reinterpret_cast<const char*>(whole.begin()), whole.size());
  EXPECT_THAT(text, HasSubstr("phub.v1.Session"));
  EXPECT_THAT(text, HasSubstr("phub.v1.Admin"));
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(GrpcServerTest, AdminErrorsKeepTheirCodeAndText) {
  v1::GetJobRequest request;
  request.set_job("nowhere");
  v1::JobInfo info;
  Context context;
  const grpc::Status status = admin_->GetJob(&context, request, &info);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(status.error_message(), HasSubstr("nowhere"));
}

// If the server unpacked it, it would say that the message is larger than 4 MiB.
TEST_F(GrpcServerTest, ACompressedMessageIsRefusedAndNotUnpacked) {
  for (const grpc_compression_algorithm algorithm : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
    for (const std::size_t bytes : {std::size_t{1000}, std::size_t{64} << 20}) {
      grpc::ChannelArguments arguments;
      arguments.SetCompressionAlgorithm(algorithm);
      const auto channel = grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(server_->port()),
                                                     grpc::InsecureChannelCredentials(), arguments);
      v1::JoinRequest request;
      request.set_job(std::string(bytes, 'x'));
      v1::JoinResponse response;
      Context context;
      const grpc::Status status = v1::Session::NewStub(channel)->Join(&context, request, &response);
      EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED) << status.error_message();
    }
  }
}

// Parsed, each of these messages needs hundreds of MiB.
TEST_F(GrpcServerTest, AMessageThatWouldNeedTooMuchMemoryIsNotParsed) {
  std::string keys;
  std::string unknown;
  for (int i = 0; i < 1'500'000; ++i) {
    keys += std::string("\x1a\0", 2);     // AddKeysRequest.keys
    unknown += std::string("\x78\0", 2);  // field 15
  }
  const std::uint64_t refused = Counted("phub_requests_refused_size_total");
  for (const char* const path : {"/phub.v1.Session/AddKeys", "/phub.v1.Admin/ListJobs"}) {
    const bool adds = std::string(path).ends_with("AddKeys");
    const grpc::Status status = CallWithBytes(channel_, path, adds ? keys : unknown);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << path;
    EXPECT_THAT(status.error_message(), HasSubstr("would need more than")) << path;
  }
  Context context;
  const grpc::internal::RpcMethod attend("/phub.v1.Session/Attend",
                                         grpc::internal::RpcMethod::BIDI_STREAMING);
  const std::unique_ptr<grpc::ClientReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>> stream(
      grpc::internal::ClientReaderWriterFactory<grpc::ByteBuffer, grpc::ByteBuffer>::Create(
          channel_.get(), attend, &context));
  const grpc::Slice slice(unknown);
  ASSERT_TRUE(stream->Write(grpc::ByteBuffer(&slice, 1)));
  grpc::ByteBuffer event;
  EXPECT_FALSE(stream->Read(&event));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(Counted("phub_requests_refused_size_total"), refused + 3);
}

TEST_F(GrpcServerTest, BytesThatAreNoMessageAreAnInvalidArgument) {
  const grpc::Status status =
      CallWithBytes(channel_, "/phub.v1.Session/AddKeys", std::string("\x1a\xff", 2));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("phub.v1.AddKeysRequest"));
}

TEST_F(GrpcServerTest, ShuttingDownAnswersWhatWaitsAndEndsStreams) {
  const std::string session = Join(0, 2);
  Context context;
  const auto stream = session_->Attend(&context);
  ASSERT_TRUE(stream->Write(Beat(session, 1)));
  v1::SessionEvent event;
  ASSERT_TRUE(stream->Read(&event));
  std::atomic<bool> calling{false};
  grpc::Status status;
  std::thread barrier([&] {
    v1::BarrierRequest request;
    request.set_session_id(session);
    v1::BarrierResponse response;
    Context barrier_context;
    barrier_context.set_wait_for_ready(false);  // it must not wait for a server that is gone
    calling = true;
    status = session_->Barrier(&barrier_context, request, &response);
  });
  while (!calling) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  server_->Shutdown();
  barrier.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_FALSE(stream->Read(&event));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(GrpcServerTest, APortThatIsTakenIsRefusedWithTheAddress) {
  const auto second = GrpcServer::Create(thread_, {.port = server_->port()});
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr("127.0.0.1:" + std::to_string(server_->port())));
}

TEST_F(GrpcServerTest, TheLaneGateAsksControl) {
  const std::string session = Join(0, 1);
  v1::OpenLanesRequest request;
  request.set_session_id(session);
  v1::OpenLanesResponse response;
  Context context;
  ASSERT_TRUE(session_->OpenLanes(&context, request, &response).ok());
  wire::LaneHello hello;
  hello.version_min = hello.version_max = 1;
  ControlLaneGate gate(thread_);
  EXPECT_EQ(gate.Admit(hello, "127.0.0.1:1"), wire::LaneRefusal::kJob);
}

TEST_F(GrpcServerTest, ALoneDaemonIsARackOfItsOwn) {
  const v1::Rack rack = GetRack();
  ASSERT_EQ(rack.daemons_size(), 1);
  EXPECT_EQ(rack.daemons(0).endpoint(), "");
  EXPECT_EQ(rack.daemons(0).core_count(), 1u);
  EXPECT_EQ(rack.state(), "serving");
}

}  // namespace
}  // namespace phub::server
