// The metrics port of a real daemon, while jobs train and while clients misbehave.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "tests/process/daemon_process.h"
#include "tests/process/training_process.h"
#include "tests/support/http_client.h"
#include "tests/support/prometheus_text.h"
#include "tests/support/temporary_folder.h"

namespace phub::process {
namespace {

using phub::testing::ConnectTo;
using phub::testing::GetMetrics;
using phub::testing::PrometheusText;
using phub::testing::ReadPrometheusText;
using phub::testing::SendText;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr DurationNs kPatience = 60 * kSecond;  // much longer than any step takes

// A daemon with metrics. Port 0: its output did not contain the port.
struct MeasuredDaemon {
  explicit MeasuredDaemon(std::vector<std::string> arguments = {})
      : daemon([&] {
          arguments.insert(arguments.end(), {"--metrics-listen", "127.0.0.1:0"});
          return arguments;
        }()) {
    const std::string said = daemon.process().StandardOutput();
    const std::string before = "metrics http://127.0.0.1:";
    const std::size_t at = said.find(before);
    if (at != std::string::npos)
      port = static_cast<std::uint16_t>(std::atoi(said.c_str() + at + before.size()));
  }
  PrometheusText Scrape(std::string* text = nullptr) const {
    const auto answer = GetMetrics(port, kPatience);
    EXPECT_EQ(answer.code, 200);
    if (text != nullptr) *text = answer.body;
    return ReadPrometheusText(answer.body);
  }

  DaemonProcess daemon;
  std::uint16_t port = 0;
};

std::string ContentOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  content << file.rdbuf();
  return content.str();
}

// Empty if all ranks succeeded, with the same parameters.
std::string Finish(std::vector<Process>& trainers, const std::string& folder) {
  for (Process& trainer : trainers) {
    if (trainer.Wait(kPatience) != Exit::WithCode(0)) return VerdictOf(trainer);
  }
  const std::string first = ContentOf(fmt::format("{}/0", folder));
  if (first.empty()) return "rank 0 wrote no parameters";
  for (std::size_t rank = 1; rank < trainers.size(); ++rank) {
    if (ContentOf(fmt::format("{}/{}", folder, rank)) != first)
      return fmt::format("rank {} has other parameters than rank 0", rank);
  }
  return "";
}

TEST(PhubdMetrics, TellWhatAJobDoesWhileItTrains) {
  MeasuredDaemon measured;
  ASSERT_NE(measured.port, 0) << measured.daemon.process().StandardError();
  const TemporaryFolder folder;
  TrainerProcessOptions options{.endpoint = measured.daemon.endpoint(), .job = "digits"};
  options.world_size = 3;
  options.iterations = 300;
  options.more = {"--pause-ms", "2"};
  std::vector<Process> trainers = StartTrainers(options, folder.path());
  ASSERT_TRUE(WaitForIteration(trainers[0], 50, kPatience)) << trainers[0].Outputs();

  const std::map<std::string, std::string> job = {{"tenant", "default"}, {"job", "digits"}};
  double rounds = 0, busy = 0;
  int scrapes = 0;
  while (trainers[0].IsRunning() && IterationsOf(trainers[0]) < 250) {
    const PrometheusText text = measured.Scrape();
    ASSERT_THAT(text.problems, IsEmpty());
    const double rounds_now = text.Sum("phub_job_round_duration_seconds_count", job);
    const double busy_now = text.Sum("phub_core_busy_seconds_total");
    EXPECT_GE(rounds_now, std::max(rounds, 50.0));
    EXPECT_GE(busy_now, busy);
    EXPECT_GT(busy_now, 0);
    EXPECT_GE(text.Sum("phub_job_straggler_wait_seconds_total", job), 0);
    std::map<std::string, std::string> live = job;
    live["state"] = "live";
    EXPECT_EQ(text.Sum("phub_job_workers", live), 3);
    EXPECT_GT(text.Sum("phub_tenant_memory_bytes"), 0);
    rounds = rounds_now;
    busy = busy_now;
    ++scrapes;
    Sleep(30 * kMillisecond);
  }
  EXPECT_GE(scrapes, 3);
  EXPECT_GT(rounds, 100);
  EXPECT_EQ(Finish(trainers, folder.path()), "");

  // After the job ended, its series are gone but its tenant's series remain.
  PrometheusText after;
  for (int i = 0; i < 200; ++i) {
    after = measured.Scrape();
    // The memory counts until the workers' processes have unmapped it.
    if (after.Sum("phub_jobs") == 0 && after.Sum("phub_tenant_memory_bytes") == 0) break;
    Sleep(50 * kMillisecond);
  }
  EXPECT_EQ(after.Sum("phub_job_gradients_total"), -1);
  EXPECT_GE(after.Sum("phub_tenant_rounds_total", {{"tenant", "default"}}), rounds);
  // Compared only between rounds, because the two metrics are read one after the other.
  EXPECT_EQ(after.Sum("phub_rounds_total"), after.Sum("phub_tenant_rounds_total"));
  EXPECT_EQ(after.Sum("phub_tenant_memory_bytes"), 0);
  EXPECT_EQ(after.Sum("phub_messages_refused_total"), 0);
  EXPECT_EQ(after.Sum("phub_jobs_ended_total"), 1);
}

TEST(PhubdMetrics, WaitsForAStragglerAreItsJobs) {
  MeasuredDaemon measured;
  ASSERT_NE(measured.port, 0);
  TrainerProcessOptions options{.endpoint = measured.daemon.endpoint(), .job = "digits"};
  options.world_size = 2;
  options.iterations = 40;
  Process quick = StartTrainer(options);
  options.rank = 1;
  options.more = {"--pause-ms", "50"};
  Process slow = StartTrainer(options);
  ASSERT_TRUE(WaitForIteration(slow, 15, kPatience)) << slow.Outputs();
  const PrometheusText text = measured.Scrape();
  const double waited = text.Sum("phub_job_straggler_wait_seconds_total");
  const double rounds = text.Sum("phub_job_round_duration_seconds_count");
  const Finished top = measured.daemon.Ask({"top", "--once", "--interval", "300ms", "-o", "json"});
  EXPECT_THAT(top.output, HasSubstr("\"straggler\":{\"rank\":1,")) << top.error;
  // On average a round waits for nearly the 50 ms for which rank 1 pauses.
  EXPECT_GT(waited / rounds, 0.02);
  EXPECT_LT(waited / rounds, 0.5);
  EXPECT_EQ(quick.Wait(kPatience), Exit::WithCode(0));
  EXPECT_EQ(slow.Wait(kPatience), Exit::WithCode(0));
}

// Half-open and slow clients, many more than there are places, do not stop the job or the scrapes,
// and take little memory.
TEST(PhubdMetrics, SlowClientsAreBounded) {
  MeasuredDaemon measured;
  ASSERT_NE(measured.port, 0);
  const TemporaryFolder folder;
  TrainerProcessOptions options{.endpoint = measured.daemon.endpoint(), .job = "digits"};
  options.world_size = 2;
  options.iterations = 1500;
  options.more = {"--pause-ms", "2"};
  std::vector<Process> trainers = StartTrainers(options, folder.path());
  ASSERT_TRUE(WaitForIteration(trainers[0], 20, kPatience)) << trainers[0].Outputs();
  DaemonProcess& daemon = measured.daemon;
  const std::uint64_t before = daemon.process().ResidentBytes();
  std::vector<Descriptor> slow;
  for (int i = 0; i < 100; ++i) {
    slow.push_back(ConnectTo(measured.port));
    ASSERT_TRUE(slow.back()) << i;
    SendText(slow.back(), i % 2 == 0 ? "GET /metrics HTTP/1.1\r\nX-Slow: " : "");
  }
  const SystemClock clock;
  const TimeNs started = clock.Now();
  EXPECT_THAT(measured.Scrape().problems, IsEmpty());
  // Two rounds of 64 places, each closed after three seconds, with a margin.
  EXPECT_LT(clock.Now() - started, 15 * kSecond);
  EXPECT_LT(daemon.process().ResidentBytes(), before + (16u << 20));
  slow.clear();
  EXPECT_EQ(Finish(trainers, folder.path()), "");
  EXPECT_GE(measured.Scrape().Sum("phub_metrics_connections_cut_total"), 64);
}

TEST(PhubdMetrics, PromtoolFindsNothingToSay) {
  const char* promtool = std::getenv("PHUB_TEST_PROMTOOL");
  const std::string program = promtool != nullptr ? promtool : "/usr/bin/promtool";
  MeasuredDaemon measured;
  ASSERT_NE(measured.port, 0);
  std::string text;
  EXPECT_THAT(measured.Scrape(&text).problems, IsEmpty());
  if (!std::ifstream(program)) return;  // the strict reader above has checked the same
  const TemporaryFolder folder;
  const std::string file = folder.Write("metrics", text);
  const Finished checked =
      RunToEnd("/bin/sh", {"-c", fmt::format("exec \"{}\" check metrics < \"{}\"", program, file)});
  EXPECT_EQ(checked.exit, Exit::WithCode(0)) << checked.output << checked.error;
  EXPECT_EQ(checked.output + checked.error, "");
}

TEST(PhubdMetrics, TellSupervisorsWhetherItIsReady) {
  MeasuredDaemon measured;
  ASSERT_NE(measured.port, 0);
  const auto code = [&](const std::string& path) {
    return testing::AskHttp(measured.port, "GET " + path + " HTTP/1.1\r\nHost: a\r\n\r\n",
                            20 * kSecond)
        .code;
  };
  EXPECT_EQ(code("/healthz"), 200);
  EXPECT_EQ(code("/readyz"), 200);
  ASSERT_EQ(measured.daemon.Ask({"server", "drain", "--yes"}).exit, Exit::WithCode(0));
  EXPECT_EQ(code("/healthz"), 200);
  EXPECT_EQ(code("/readyz"), 503);
  ASSERT_EQ(measured.daemon.Ask({"server", "undrain"}).exit, Exit::WithCode(0));
  EXPECT_EQ(code("/readyz"), 200);
}

TEST(PhubdMetrics, AreOffUnlessTheyAreAskedFor) {
  DaemonProcess daemon;
  ASSERT_NE(daemon.endpoint(), "") << daemon.process().Outputs();
  EXPECT_THAT(daemon.process().StandardOutput(), HasSubstr("metrics off"));
}

TEST(PhubdMetrics, BeyondLoopbackTheyMustBeOpenedInSoManyWords) {
  const Finished refused = RunToEnd(kPhubd, {"--metrics-listen", "0.0.0.0:0", "--check-config"});
  EXPECT_EQ(refused.exit, Exit::WithCode(2));
  EXPECT_THAT(refused.error, HasSubstr("--metrics-listen: metrics_listen = \"0.0.0.0:0\" can be"));
  EXPECT_THAT(refused.error, HasSubstr("--metrics-open"));
  EXPECT_EQ(
      RunToEnd(kPhubd, {"--metrics-listen", "0.0.0.0:0", "--metrics-open", "--check-config"}).exit,
      Exit::WithCode(0));
}

TEST(PhubdMetrics, APortInUseIsAFailureThatSaysSo) {
  MeasuredDaemon first;
  const Finished second = RunToEnd(kPhubd, {"--listen", "127.0.0.1:0", "--metrics-listen",
                                            fmt::format("127.0.0.1:{}", first.port)});
  EXPECT_EQ(second.exit, Exit::WithCode(1));
  EXPECT_THAT(second.error,
              HasSubstr(fmt::format(
                  "phubd: metrics (metrics_listen): cannot listen on 127.0.0.1:{}", first.port)));
}

}  // namespace
}  // namespace phub::process
