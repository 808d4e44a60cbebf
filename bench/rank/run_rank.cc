#include "bench/rank/run_rank.h"

#include <CLI/CLI.hpp>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

#include "bench/rank/build_info.h"
#include "bench/rank/link_drain.h"
#include "bench/rank/recorder.h"
#include "bench/rank/snapshots.h"
#include "bench/rank/start_line.h"
#include "bench/rank/traffic.h"
#include "bench/rank/training_job.h"

namespace phub::bench {
namespace {

// Number of exchanges whose results are compared, element by element, before the timed ones. The
// second one is the first that depends on earlier momentum.
constexpr int kVerifiedFirst = 2;

// Twice the burst of the token buckets in harness/namespaces.py.
constexpr std::size_t kDrainBytes = 1 << 20;

class Run {
 public:
  Run(const RankArguments& arguments, Exchanger& exchanger)
      : arguments_(arguments),
        exchanger_(exchanger),
        values_(arguments.world, arguments.type, arguments.work),
        recorder_(arguments.exchanges,
                  arguments.rank == 0 ? arguments.daemon_pids : std::vector<std::int32_t>()) {}

  void Open() {
    std::vector<float> initial;
    if (arguments_.work == Work::kUpdate) {
      initial.resize(arguments_.element_count());
      values_.FillInitial(0, initial.size(), initial.data());
    }
    exchanger_.Open(initial.data());
    if (arguments_.schedule != Schedule::kExchange) job_.emplace(arguments_, values_, exchanger_);
  }

  void VerifyFirst() {
    for (int i = 0; i < kVerifiedFirst; ++i) {
      if (i == 0 || exchanger_.overwrites_gradients()) FillGradients();
      Iterate();
      CountExchanges(1);
      Verify();
    }
  }

  void Time() {
    if (exchanger_.overwrites_gradients()) {
      ZeroGradients();
      exchanger_.ForgetMomentum();
    }
    for (std::uint32_t i = 0; i < arguments_.warmup; ++i) Iterate();
    if (job_) job_->ForgetTimes();
    std::optional<LinkDrain> drain;
    std::optional<StartLine> line;
    if (!arguments_.drain.empty()) {
      drain.emplace(arguments_.drain, kDrainBytes);
      // All ranks of a block write to the same folder.
      const auto folder = std::filesystem::path(arguments_.out).parent_path();
      line.emplace(folder / "start-line", arguments_.world);
    }
    std::optional<Snapshots> snapshots;
    if (arguments_.snapshots) {
      snapshots.emplace(std::filesystem::path(arguments_.out).parent_path(), arguments_.rank,
                        arguments_.world);
      snapshots->Take();
    }
    Traffic before;
    const bool counted = ReadTraffic(before);
    recorder_.Start();
    for (std::uint32_t i = 0; i < arguments_.exchanges; ++i) {
      if (drain) {
        drain->Drain(*line);
        recorder_.StampBegin();
      }
      Iterate();
      recorder_.Stamp();
    }
    recorder_.Finish();
    if (snapshots) snapshots->Take();
    if (counted) traffic_ = TrafficSince(before);
  }

  // Verifies that the timed exchanges really happened.
  void VerifyLast() {
    if (exchanger_.overwrites_gradients()) {
      // The timed exchanges summed zeros, so an all-reduce sums gradients once more here.
      if (arguments_.work == Work::kAllreduce) {
        FillGradients();
        exchanger_.Exchange();
      }
      exchanges_done_ += arguments_.warmup + arguments_.exchanges;
    } else {
      CountExchanges(arguments_.warmup + arguments_.exchanges);
    }
    Verify();
  }

  void Write() const {
    std::map<std::string, Recorder::Numbers> more;
    if (!traffic_.empty()) more["traffic"] = traffic_;
    if (job_) more["iteration"] = TimesOf(job_->times());
    recorder_.Write(arguments_.out, arguments_.rank, exchanger_.Notes(), more);
  }

 private:
  template <typename Function>
  void ForEachTensor(const Function& function) const {
    std::uint64_t first_index = 0;
    for (std::size_t tensor = 0; tensor < arguments_.sizes.size(); ++tensor) {
      function(tensor, first_index, arguments_.sizes[tensor]);
      first_index += arguments_.sizes[tensor];
    }
  }

  void Iterate() {
    if (job_) return job_->Iterate();
    exchanger_.Exchange();
  }

  void CountExchanges(std::uint32_t count) {
    exchanges_done_ += count;
    if (arguments_.schedule == Schedule::kCompute) return;
    for (std::uint32_t i = 0; i < count; ++i) values_.Advance();
  }

  static Recorder::Numbers TimesOf(const IterationTimes& times) {
    const double scale = 1e-9 / static_cast<double>(times.iterations);
    return {{"compute_s", static_cast<double>(times.compute_ns) * scale},
            {"compute_cpu_s", static_cast<double>(times.compute_cpu_ns) * scale},
            {"first_wait_s", static_cast<double>(times.first_wait_ns) * scale},
            {"wait_s", static_cast<double>(times.wait_ns) * scale}};
  }

  static Recorder::Numbers TrafficSince(const Traffic& before) {
    Traffic now;
    ReadTraffic(now);
    const auto since = [&](std::uint64_t Traffic::*bytes) {
      return static_cast<double>(now.*bytes - before.*bytes);
    };
    return {{"copied_bytes", since(&Traffic::copied_bytes)},
            {"socket_sent_bytes", since(&Traffic::socket_sent_bytes)},
            {"socket_sent_in_place", since(&Traffic::socket_sent_in_place)},
            {"socket_received_bytes", since(&Traffic::socket_received_bytes)},
            {"peer_copied_bytes", since(&Traffic::peer_copied_bytes)},
            {"arithmetic_bytes", since(&Traffic::arithmetic_bytes)},
            {"update_bytes", since(&Traffic::update_bytes)}};
  }

  void FillGradients() {
    ForEachTensor([&](std::size_t tensor, std::uint64_t first_index, std::uint64_t count) {
      values_.FillGradients(arguments_.rank, first_index, count, exchanger_.gradients(tensor));
    });
  }

  void ZeroGradients() {
    ForEachTensor([&](std::size_t tensor, std::uint64_t, std::uint64_t count) {
      std::memset(exchanger_.gradients(tensor), 0, count * ElementBytes(arguments_.type));
    });
  }

  void Verify() const {
    if (job_) job_->VerifyGradients();
    constexpr double kUlp = 1.0 / (1 << 23);
    const double tolerance = exchanger_.tolerance_ulps() * kUlp * exchanges_done_;
    ForEachTensor([&](std::size_t tensor, std::uint64_t first_index, std::uint64_t count) {
      const std::string difference =
          values_.Difference(first_index, count, exchanger_.results(tensor), tolerance);
      if (!difference.empty())
        Fail("wrong after " + std::to_string(exchanges_done_) + " exchanges, tensor " +
             std::to_string(tensor) + ": " + difference);
    });
  }

  const RankArguments& arguments_;
  Exchanger& exchanger_;
  Values values_;
  Recorder recorder_;
  std::optional<TrainingJob> job_;
  Recorder::Numbers traffic_;  // the traffic of the timed exchanges, if counted
  std::uint32_t exchanges_done_ = 0;
};

}  // namespace

void Exchanger::Start(std::size_t) { Fail("this system cannot exchange single tensors"); }
void Exchanger::Wait(std::size_t) { Fail("this system cannot exchange single tensors"); }

int RunRank(int argc, char** argv, const std::string& description,
            const std::function<void(CLI::App&)>& add_options,
            const std::function<std::unique_ptr<Exchanger>(const RankArguments&)>& make) {
  if (argc == 2 && std::string_view(argv[1]) == "--build-info") return PrintBuildInfo();
  CLI::App app(description);
  RankArguments arguments;
  AddRankOptions(app, arguments);
  add_options(app);
  try {
    app.parse(argc, argv);
    if (arguments.rank >= arguments.world)
      throw CLI::ValidationError("--rank", "must be less than --world");
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  SetRankForMessages(arguments.rank);
  const std::unique_ptr<Exchanger> exchanger = make(arguments);
  Run run(arguments, *exchanger);
  run.Open();
  run.VerifyFirst();
  run.Time();
  run.VerifyLast();
  exchanger->Close();
  run.Write();
  return 0;
}

}  // namespace phub::bench
