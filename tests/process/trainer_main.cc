// process-trainer: one rank of the tests' training job (trainer.h) as its own process, which tests
// kill. Prints "iteration N" after each iteration. Writes the final parameters to --out and exits
// with 0, or prints the reason to standard error and exits with 1.
#include <time.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "phub/group.h"
#include "tests/process/trainer.h"

namespace {

struct Arguments {
  std::string endpoint;
  phub::JobOptions job;
  phub::process::TrainerOptions trainer;
  std::int64_t wait_timeout_ms = 0;  // if set: policy wait
  std::uint64_t iterations = 100;
  std::uint64_t pause_ms = 0;        // pause after each iteration
  std::vector<std::uint32_t> group;  // sums a key of this group in each iteration, as a member
  std::uint64_t group_stops_at = 0;  // never pushes the group's key in this iteration
  std::string load;
  std::string out;
};

void Pause(std::uint64_t milliseconds) {
  const timespec time{static_cast<time_t>(milliseconds / 1000),
                      static_cast<long>(milliseconds % 1000 * 1'000'000)};
  nanosleep(&time, nullptr);
}

// Adds the group's key, if this rank is a member.
phub::Result<std::vector<phub::Key>> AddGroupKey(const Arguments& arguments, phub::Job& job) {
  constexpr std::size_t kGroupElements = 1000;
  if (std::ranges::find(arguments.group, arguments.job.rank) == arguments.group.end())
    return std::vector<phub::Key>();
  phub::Result<phub::Group> group = job.NewGroup("pair", arguments.group);
  if (!group.ok()) return group.status();
  return group->AddKeys({{{.name = "sum", .type = phub::f32, .element_count = kGroupElements}}});
}

// Pushes 1 as every member; so the sum is their number.
phub::Status SumInGroup(const Arguments& arguments, std::uint64_t iteration, phub::Key& key) {
  while (iteration == arguments.group_stops_at) Pause(1000);
  std::ranges::fill(key.gradients<float>(), 1.0f);
  if (phub::Status status = key.PushPull().Wait(); !status.ok()) return status;
  const auto members = static_cast<float>(arguments.group.size());
  if (std::ranges::all_of(key.parameters<float>(), [&](float sum) { return sum == members; }))
    return phub::Status();
  return phub::Status(phub::StatusCode::kInternal, "the sum of the group is wrong");
}

phub::Status Run(const Arguments& arguments) {
  auto trainer =
      phub::process::Trainer::Start(arguments.endpoint, arguments.job, arguments.trainer);
  if (!trainer.ok()) return trainer.status();
  auto keys = AddGroupKey(arguments, trainer->job());
  if (!keys.ok()) return keys.status();
  if (!arguments.load.empty()) {
    const auto loaded = trainer->job().LoadCheckpoint(arguments.load);
    if (!loaded.ok()) return loaded.status();
    std::printf("loaded %llu\n", static_cast<unsigned long long>(*loaded));
  }
  if (trainer->job().resumed()) std::printf("resumed\n");
  while (trainer->iteration() < arguments.iterations) {
    if (phub::Status status = trainer->Iterate(); !status.ok()) return status;
    for (phub::Key& key : *keys)
      if (phub::Status status = SumInGroup(arguments, trainer->iteration(), key); !status.ok())
        return status;
    std::printf("iteration %llu\n", static_cast<unsigned long long>(trainer->iteration()));
    std::fflush(stdout);
    if (arguments.pause_ms > 0) Pause(arguments.pause_ms);
  }
  if (!arguments.out.empty()) {
    const std::vector<std::byte> parameters = trainer->Parameters();
    std::ofstream(arguments.out, std::ios::binary)
        .write(reinterpret_cast<const char*>(parameters.data()),
               static_cast<std::streamsize>(parameters.size()));
  }
  return trainer->job().Leave();
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("One rank of the process tests' training job.");
  Arguments arguments;
  std::string transport = "auto";
  bool apply_iteration = false;
  app.add_option("--endpoint", arguments.endpoint)->required();
  app.add_option("--job", arguments.job.job)->required();
  app.add_option("--rank", arguments.job.rank);
  app.add_option("--world-size", arguments.job.world_size);
  app.add_option("--transport", transport)->check(CLI::IsMember({"auto", "shm", "tcp"}));
  app.add_option("--plan", arguments.job.plan);
  app.add_option("--wait-timeout-ms", arguments.wait_timeout_ms);
  app.add_flag("--restart", arguments.job.restart);
  app.add_flag("--apply-iteration", apply_iteration);
  app.add_option("--clip-norm", arguments.job.clip_norm);
  app.add_option("--iterations", arguments.iterations);
  app.add_option("--pause-ms", arguments.pause_ms);
  app.add_option("--group", arguments.group)->delimiter(',');
  app.add_option("--group-stops-at", arguments.group_stops_at);
  app.add_option("--scale", arguments.trainer.scale);
  app.add_option("--small-keys", arguments.trainer.small_keys);
  app.add_option("--load", arguments.load);
  app.add_option("--out", arguments.out);
  CLI11_PARSE(app, argc, argv);
  arguments.trainer.initialize = arguments.load.empty();
  if (apply_iteration) arguments.job.apply = phub::Apply::kIteration;
  if (transport == "tcp") arguments.job.transport = phub::TransportChoice::kTcp;
  if (transport == "shm") arguments.job.transport = phub::TransportChoice::kSharedMemory;
  if (arguments.wait_timeout_ms > 0) {
    arguments.job.on_loss = phub::LossPolicy::kWait;
    arguments.job.wait_timeout = std::chrono::milliseconds(arguments.wait_timeout_ms);
  }
  const phub::Status status = Run(arguments);
  if (status.ok()) return 0;
  std::fprintf(stderr, "rank %u: %s\n", arguments.job.rank, phub::ToString(status).c_str());
  return 1;
}
