#include "tests/process/training_run.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <string_view>
#include <tuple>
#include <utility>

#include "common/base/check.h"

namespace phub::process {
namespace {

constexpr std::string_view kBatch = "4";

constexpr std::size_t kRacksOfSerialMax = 2;

// The parameters of the serial run, computed once per length of a training.
const std::string& SerialRun(std::uint32_t world_size, std::uint64_t iterations,
                             std::size_t racks) {
  static const auto* const folder = new TemporaryFolder();
  static auto* const runs =
      new std::map<std::tuple<std::uint32_t, std::uint64_t, std::size_t>, std::string>();
  std::string& path = (*runs)[{world_size, iterations, racks}];
  if (!path.empty()) return path;
  path = fmt::format("{}/serial-{}-{}-{}", folder->path(), world_size, iterations, racks);
  const Finished serial =
      RunToEnd(PHUB_TEST_DIGITS,
               {"--serial", "--quiet", "--world-size", std::to_string(world_size), "--iterations",
                std::to_string(iterations), "--racks", std::to_string(racks), "--batch",
                std::string(kBatch), "--data", PHUB_TEST_DIGITS_DATA, "--save", path},
               {}, 120 * kSecond);
  PHUB_CHECK(serial.exit == Exit::WithCode(0), "{}", serial.error);
  return path;
}

// The highest tenth of the training in lines "iteration <done>/<all>".
std::uint32_t TenthsIn(const std::string& text) {
  constexpr std::string_view kWord = "iteration ";
  std::uint64_t tenths = 0;
  for (std::size_t at = text.find(kWord); at != std::string::npos; at = text.find(kWord, at + 1)) {
    const char* const number = text.c_str() + at + kWord.size();
    char* end = nullptr;
    const std::uint64_t done = std::strtoull(number, &end, 10);
    if (*end != '/') continue;
    const std::uint64_t all = std::strtoull(end + 1, nullptr, 10);
    if (all > 0) tenths = std::max(tenths, done * 10 / all);
  }
  return static_cast<std::uint32_t>(tenths);
}

}  // namespace

TrainingRun::TrainingRun(TrainingOptions options) : options_(std::move(options)) {
  Expected();  // before the ranks start, which it would slow down
  workers_.reserve(options_.world_size);
  for (std::uint32_t rank = 0; rank < options_.world_size; ++rank) StartWorker(rank);
}

std::string TrainingRun::Expected() const {
  if (!options_.expected.empty()) return options_.expected;
  if (options_.endpoints.size() > kRacksOfSerialMax) return SavedBy(0);
  return SerialRun(options_.world_size, options_.iterations, options_.endpoints.size());
}

std::string TrainingRun::SavedBy(std::uint32_t rank) const {
  return fmt::format("{}/rank-{}", folder_.path(), rank);
}

void TrainingRun::StartWorker(std::uint32_t rank) {
  const std::size_t rack = rank * options_.endpoints.size() / options_.world_size;
  std::vector<std::string> arguments = {"--endpoint",   options_.endpoints[rack],
                                        "--job",        options_.job,
                                        "--transport",  options_.transport,
                                        "--rank",       std::to_string(rank),
                                        "--world-size", std::to_string(options_.world_size),
                                        "--iterations", std::to_string(options_.iterations),
                                        "--batch",      std::string(kBatch),
                                        "--data",       PHUB_TEST_DIGITS_DATA,
                                        "--save",       SavedBy(rank)};
  if (options_.restart) arguments.push_back("--restart");
  if (!options_.plan.empty()) arguments.insert(arguments.end(), {"--plan", options_.plan});
  Process worker = Process::Start(PHUB_TEST_DIGITS, arguments);
  if (rank < workers_.size()) {
    std::destroy_at(&workers_[rank]);
    std::construct_at(&workers_[rank], std::move(worker));
  } else {
    workers_.push_back(std::move(worker));
  }
}

void TrainingRun::Count(const Process& ended) {
  const std::string said = ended.StandardError();
  tenths_ = std::max(tenths_, TenthsIn(said));
  constexpr std::string_view kResumed = "resumed at iteration ";
  const std::size_t at = said.find(kResumed);
  if (at != std::string::npos && said[at + kResumed.size()] != '0') ++resumed_count_;
}

void TrainingRun::KillAndRestart(std::uint32_t rank) {
  workers_[rank].Signal(SIGKILL);
  workers_[rank].Wait(10 * kSecond);
  Count(workers_[rank]);
  StartWorker(rank);
}

Process TrainingRun::StopAndReplace(std::uint32_t rank) {
  workers_[rank].Signal(SIGSTOP);
  Count(workers_[rank]);
  Process zombie = std::move(workers_[rank]);
  StartWorker(rank);
  return zombie;
}

std::uint32_t TrainingRun::Tenths() const {
  return std::max(tenths_, TenthsIn(workers_[0].StandardError()));
}

bool TrainingRun::AnyEnded() {
  return std::any_of(workers_.begin(), workers_.end(),
                     [](Process& worker) { return !worker.IsRunning(); });
}

std::string TrainingRun::Finish(DurationNs timeout) {
  const SystemClock clock;
  const TimeNs deadline = clock.Now() + timeout;
  for (std::uint32_t rank = 0; rank < world_size(); ++rank) {
    Process& worker = workers_[rank];
    const auto exit = worker.Wait(std::max<DurationNs>(0, deadline - clock.Now()));
    if (!exit) return fmt::format("rank {} hangs: {}", rank, worker.Outputs());
    if (*exit != Exit::WithCode(0)) return fmt::format("rank {}: {}", rank, worker.Outputs());
    Count(worker);
    const Finished compared = RunToEnd(PHUB_TEST_DIGITS, {"compare", SavedBy(rank), Expected()});
    if (compared.output != "identical\n")
      return fmt::format("rank {}: {}{}", rank, compared.output, compared.error);
  }
  return "";
}

}  // namespace phub::process
