// cluster-crowd: starts jobs at several daemons at the same time. Prints one line for each refusal
// and then "admitted A refused R"; holds the jobs that were admitted until its standard input ends.
#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "phub/client.h"

namespace {

struct Arguments {
  std::vector<std::string> endpoints;
  std::string prefix = "job";
  std::uint32_t jobs = 1;
  std::uint32_t world_size = 1;
  std::uint32_t threads = 16;
  std::uint32_t keys = 0;  // that each job adds
  int retries = 0;
};

class Crowd {
 public:
  explicit Crowd(const Arguments& arguments) : arguments_(arguments) {}

  void Join() {
    std::vector<std::thread> threads;
    for (std::uint32_t i = 0; i < arguments_.threads; ++i)
      threads.emplace_back([this] { JoinSome(); });
    for (std::thread& thread : threads) thread.join();
    std::printf("admitted %zu refused %u\n", admitted_.size(),
                arguments_.jobs - static_cast<std::uint32_t>(admitted_.size()));
    std::fflush(stdout);
  }

 private:
  void JoinSome() {
    for (std::uint32_t i = next_++; i < arguments_.jobs; i = next_++) {
      phub::Status status = JoinOne(i);
      for (int again = 0; !status.ok() && again < arguments_.retries; ++again) status = JoinOne(i);
      if (status.ok()) continue;
      const std::lock_guard lock(mutex_);
      std::printf("refused: %s\n", phub::ToString(status).c_str());
    }
  }

  // All ranks, the first one first: it creates the job.
  phub::Status JoinOne(std::uint32_t i) {
    phub::JobOptions options;
    options.job = arguments_.prefix + "-" + std::to_string(i);
    options.world_size = arguments_.world_size;
    options.transport = phub::TransportChoice::kTcp;
    std::vector<phub::Job> ranks;
    for (; options.rank < options.world_size; ++options.rank) {
      auto session = phub::Connect(arguments_.endpoints[i % arguments_.endpoints.size()],
                                   {.connect_timeout = std::chrono::seconds(60)});
      if (!session.ok()) return session.status();
      auto job = session->Join(options);
      if (!job.ok()) return job.status();
      ranks.push_back(*std::move(job));
    }
    std::vector<phub::KeySpec> keys(arguments_.keys);
    for (std::size_t key = 0; key < keys.size(); ++key) {
      keys[key].name = "key" + std::to_string(key);
      keys[key].element_count = 1;
    }
    for (phub::Job& rank : ranks) {
      if (keys.empty()) break;
      const auto added = rank.AddKeys(keys);
      if (!added.ok()) return added.status();
    }
    const std::lock_guard lock(mutex_);
    admitted_.push_back(std::move(ranks));
    return {};
  }

  const Arguments& arguments_;
  std::atomic<std::uint32_t> next_ = 0;
  std::mutex mutex_;
  std::vector<std::vector<phub::Job>> admitted_;  // under mutex_; [job][rank]
};

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Starts jobs at several daemons at the same time.");
  Arguments arguments;
  app.add_option("--endpoint", arguments.endpoints)->required();
  app.add_option("--prefix", arguments.prefix);
  app.add_option("--jobs", arguments.jobs);
  app.add_option("--world-size", arguments.world_size);
  app.add_option("--threads", arguments.threads);
  app.add_option("--keys", arguments.keys);
  app.add_option("--retries", arguments.retries);
  CLI11_PARSE(app, argc, argv);
  Crowd crowd(arguments);
  crowd.Join();
  while (std::getchar() != EOF) {
  }
  return 0;
}
