#include "bench/rank/run_rank.h"

#include <cstring>
#include <string_view>
#include <vector>

#include "bench/rank/build_info.h"
#include "bench/rank/recorder.h"

namespace phub::bench {
namespace {

// Exchanges whose results are compared, element by element, before anything is timed. Two, since
// the second one's momentum is the first that counts.
constexpr int kVerifiedFirst = 2;

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
  }

  void VerifyFirst() {
    for (int i = 0; i < kVerifiedFirst; ++i) {
      if (i == 0 || exchanger_.overwrites_gradients()) FillGradients();
      exchanger_.Exchange();
      values_.Advance();
      ++exchanges_done_;
      Verify();
    }
  }

  void Time() {
    if (exchanger_.overwrites_gradients()) {
      ZeroGradients();
      exchanger_.ForgetMomentum();
    }
    for (std::uint32_t i = 0; i < arguments_.warmup; ++i) exchanger_.Exchange();
    recorder_.Start();
    for (std::uint32_t i = 0; i < arguments_.exchanges; ++i) {
      exchanger_.Exchange();
      recorder_.Stamp();
    }
    recorder_.Finish();
    exchanges_done_ += arguments_.warmup + arguments_.exchanges;
  }

  // That the exchanges which were timed were exchanges.
  void VerifyLast() {
    if (exchanger_.overwrites_gradients()) {
      // Zeros left the parameters as they were; a sum is made once more.
      if (arguments_.work == Work::kAllreduce) {
        FillGradients();
        exchanger_.Exchange();
      }
    } else {
      for (std::uint32_t i = 0; i < arguments_.warmup + arguments_.exchanges; ++i)
        values_.Advance();
    }
    Verify();
  }

  void Write() const { recorder_.Write(arguments_.out, arguments_.rank, exchanger_.Notes()); }

 private:
  template <typename Function>
  void ForEachTensor(const Function& function) const {
    std::uint64_t first_index = 0;
    for (std::size_t tensor = 0; tensor < arguments_.sizes.size(); ++tensor) {
      function(tensor, first_index, arguments_.sizes[tensor]);
      first_index += arguments_.sizes[tensor];
    }
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
  std::uint32_t exchanges_done_ = 0;
};

}  // namespace

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
