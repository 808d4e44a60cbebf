// A daemon without jobs: it starts, idles, and stops.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>

#include "tests/process/daemon_process.h"
#include "tests/process/idle.h"
#include "tests/support/temporary_folder.h"

namespace phub::process {
namespace {

using ::testing::HasSubstr;

TEST(Phubd, SaysWhereItServesAndLogsOneLineOfFacts) {
  DaemonProcess daemon;
  ASSERT_NE(daemon.endpoint(), "") << daemon.process().Outputs();
  EXPECT_THAT(daemon.process().StandardOutput(),
              HasSubstr(fmt::format("serves on {}", daemon.endpoint())));
  ASSERT_NE(daemon.Logged("version"), "");  // the log may come later
  const std::string log = daemon.process().StandardError();
  EXPECT_THAT(log, HasSubstr("event=serving version=0.1.0"));
  EXPECT_THAT(log, HasSubstr(fmt::format("listen={}", daemon.endpoint())));
  for (const char* fact : {"core_loops=", "pinned=", "wait=", "simd=", "data_listen=127.0.0.1:"})
    EXPECT_THAT(log, HasSubstr(fact));
}

class PhubdStops : public ::testing::TestWithParam<int> {};

// It does not wait: it stops in much less than the time that jobs have to drain.
TEST_P(PhubdStops, AtOnceAndWithZeroWhenIdle) {
  DaemonProcess idle({"--drain-timeout", "10m"});
  ASSERT_NE(idle.endpoint(), "") << idle.process().Outputs();
  idle.process().Signal(GetParam());
  EXPECT_EQ(idle.process().Wait(30 * kSecond), Exit::WithCode(0)) << idle.process().Outputs();
  EXPECT_THAT(idle.process().StandardError(), HasSubstr("event=draining jobs=0"));
  EXPECT_THAT(idle.process().StandardError(), HasSubstr("event=stopped"));
}

INSTANTIATE_TEST_SUITE_P(Signals, PhubdStops, ::testing::Values(SIGTERM, SIGINT));

TEST(Phubd, APortInUseIsAFailureThatSaysSo) {
  DaemonProcess first;
  ASSERT_NE(first.endpoint(), "") << first.process().Outputs();
  const Finished second = RunToEnd(kPhubd, {"--listen", first.endpoint()});
  EXPECT_EQ(second.exit, Exit::WithCode(1));
  EXPECT_THAT(second.error,
              HasSubstr(fmt::format("phubd: control plane (listen): cannot listen on {}",
                                    first.endpoint())));
  EXPECT_THAT(second.error, HasSubstr("stop the process that uses it"));
  EXPECT_TRUE(first.process().IsRunning());
  EXPECT_EQ(first.Ask({"health"}).exit, Exit::WithCode(0));
}

TEST(Phubd, ADataPortInUseIsAFailureThatSaysSo) {
  DaemonProcess first;
  ASSERT_NE(first.endpoint(), "") << first.process().Outputs();
  const Finished second =
      RunToEnd(kPhubd, {"--listen", "127.0.0.1:0", "--data-listen", first.endpoint()});
  EXPECT_EQ(second.exit, Exit::WithCode(1));
  EXPECT_THAT(second.error,
              HasSubstr(fmt::format("phubd: data lanes (data_listen): cannot listen on {}",
                                    first.endpoint())));
}

TEST(Phubd, APortFileThatCannotBeWrittenIsAFailure) {
  const Finished failed =
      RunToEnd(kPhubd, {"--listen", "127.0.0.1:0", "--port-file", "/nonexistent/port"});
  EXPECT_EQ(failed.exit, Exit::WithCode(1));
  EXPECT_THAT(failed.error, HasSubstr("cannot write port_file \"/nonexistent/port\": No such"));
}

TEST(Phubd, IdlesWithoutAJob) {
  // Four loops are stricter than the default, and test more than one loop.
  for (const char* cores : {"auto", "4"}) {
    DaemonProcess daemon({"--cores", cores});
    ASSERT_NE(daemon.endpoint(), "") << daemon.process().Outputs();
    EXPECT_TRUE(IsIdle(daemon.process())) << "cores=" << cores;
  }
}

TEST(Phubd, APinnedPollingLoopIdlesTooUnlessToldToPoll) {
  DaemonProcess pinned({"--cores", "1", "--pin", "on"});
  ASSERT_NE(pinned.endpoint(), "") << pinned.process().Outputs();
  EXPECT_EQ(pinned.Logged("wait"), "poll-then-block");
  EXPECT_TRUE(IsIdle(pinned.process()));

  DaemonProcess polling({"--wait", "poll"});
  ASSERT_NE(polling.endpoint(), "") << polling.process().Outputs();
  const DurationNs before = polling.process().CpuTime();
  Sleep(kSecond);
  EXPECT_GT(polling.process().CpuTime() - before, kSecond / 10);
}

TEST(Phubd, ThePortFileGoesAwayWithTheDaemon) {
  const TemporaryFolder folder;
  const std::string path = fmt::format("{}/port", folder.path());
  Process daemon = Process::Start(kPhubd, {"--listen", "127.0.0.1:0", "--port-file", path});
  ASSERT_TRUE(daemon.WaitForOutput("serves on", 30 * kSecond)) << daemon.Outputs();
  EXPECT_TRUE(std::filesystem::exists(path));
  daemon.Signal(SIGTERM);
  EXPECT_EQ(daemon.Wait(5 * kSecond), Exit::WithCode(0));
  EXPECT_FALSE(std::filesystem::exists(path));
}

// One message each way on the reflection service, as bytes: list_services (field 7) of "".
TEST(Phubd, ReflectionListsItsServices) {
  DaemonProcess daemon;
  ASSERT_NE(daemon.endpoint(), "") << daemon.process().Outputs();
  grpc::GenericStub stub(
      grpc::CreateChannel(daemon.endpoint(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  grpc::CompletionQueue queue;
  int step = 0;
  const auto stream = stub.PrepareCall(
      &context, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", &queue);
  const auto finished = [&queue, &step] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok && tag == &step;
  };
  stream->StartCall(&step);
  ASSERT_TRUE(finished());
  const grpc::Slice request(std::string("\x3a\x00", 2));
  stream->Write(grpc::ByteBuffer(&request, 1), &step);
  ASSERT_TRUE(finished());
  grpc::ByteBuffer answer;
  stream->Read(&answer, &step);
  ASSERT_TRUE(finished());
  grpc::Slice bytes;
  ASSERT_TRUE(answer.DumpToSingleSlice(&bytes).ok());
  const std::string text(bytes.begin(), bytes.end());
  for (const char* service : {"phub.v1.Session", "phub.v1.Admin", "grpc.health.v1.Health"})
    EXPECT_THAT(text, HasSubstr(service));
  context.TryCancel();
  grpc::Status status;
  stream->Finish(&status, &step);
  finished();
}

}  // namespace
}  // namespace phub::process
