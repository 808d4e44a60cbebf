// phub-digits: trains a small network on handwritten digits, as one rank of a phub job or in one
// process without phub, and compares the results.
//   phub-digits --endpoint 127.0.0.1:7700 --rank 0 --world-size 4 --data digits.csv.gz --save a
//   phub-digits --serial --world-size 4 --data digits.csv.gz --save b
//   phub-digits compare a b
// Exit status: 0 done (compare: identical), 1 failed (compare: different), 2 wrong usage.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>

#include "client/examples/digits/parameter_file.h"
#include "client/examples/digits/training.h"

namespace {

constexpr int kFailed = 1;
constexpr int kUsage = 2;

int Fail(const std::string& message) {
  std::fprintf(stderr, "phub-digits: %s\n", message.c_str());
  return kFailed;
}

int Compare(const std::string& path_a, const std::string& path_b) {
  std::string error;
  const auto a = digits::LoadParameters(path_a, error);
  if (!a) return Fail(error);
  const auto b = digits::LoadParameters(path_b, error);
  if (!b) return Fail(error);
  const std::string difference = digits::FirstDifference(*a, *b);
  if (!difference.empty()) {
    std::printf("different: %s\n", difference.c_str());
    return kFailed;
  }
  std::printf("identical\n");
  return 0;
}

struct Arguments {
  digits::Settings settings;
  digits::Place place;
  std::string data;
  std::string save;
  bool serial = false;
};

int Train(const Arguments& arguments) {
  std::string error;
  const auto data = digits::LoadDigits(arguments.data, error);
  if (!data) return Fail(error);
  const std::size_t together = arguments.settings.world_size * arguments.settings.batch_size;
  if (together > data->train.size())
    return Fail("--world-size x --batch is " + std::to_string(together) +
                ", but the data has only " + std::to_string(data->train.size()) +
                " training digits; reduce one of them");
  digits::Trained trained;
  if (arguments.serial) {
    trained = digits::TrainSerially(arguments.settings, *data);
  } else if (!digits::TrainAsWorker(arguments.settings, arguments.place, *data, trained, error)) {
    return Fail("rank " + std::to_string(arguments.place.rank) + ": " + error);
  }
  if (!arguments.save.empty()) {
    error = digits::SaveParameters(arguments.save, trained.tensors);
    if (!error.empty()) return Fail(error);
  }
  if (arguments.serial || arguments.place.rank == 0) {
    const std::size_t total = data->test.size();
    std::printf("test accuracy %.3f (%zu of %zu)\n",
                static_cast<double>(trained.correct) / static_cast<double>(total), trained.correct,
                total);
    if (!arguments.serial) std::printf("transports %s\n", trained.transports.c_str());
  }
  return 0;
}

void AddTrainingOptions(CLI::App& app, Arguments& arguments) {
  digits::Settings& settings = arguments.settings;
  app.add_flag("--serial", arguments.serial, "train in this process only, without phub");
  app.add_option("--racks", settings.racks,
                 "with --serial: sum the gradients of each rack first, as this many racks do")
      ->check(CLI::Range(std::size_t{1}, std::size_t{2}))
      ->capture_default_str();
  app.add_option("--endpoint", arguments.place.endpoint, "daemon, as host:port");
  app.add_option("--job", arguments.place.job, "name of the job")->default_val("digits");
  app.add_option("--rank", arguments.place.rank, "this worker's rank, from 0")->default_val(0);
  app.add_option("--transport", arguments.place.transport, "transport of gradients and parameters")
      ->check(CLI::IsMember({"auto", "shm", "tcp", "verbs"}))
      ->capture_default_str();
  app.add_option("--plan", arguments.place.plan,
                 "train in all racks of the daemons' configuration, exchanging with this plan: "
                 "auto, a planner's name, or a file");
  app.add_flag("--restart", arguments.place.restart,
               "wait for a worker that dies; restart it with the same options");
  app.add_flag("--apply-iteration", arguments.place.apply_iteration,
               "update only after all gradients of an iteration are summed");
  app.add_option("--clip-norm", arguments.place.clip_norm,
                 "clip the gradients of all keys to this norm; implies --apply-iteration")
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--skip-nonfinite", arguments.place.skip_nonfinite,
               "skip iterations with NaN or infinity; implies --apply-iteration");
  app.add_option("--world-size", settings.world_size, "number of workers")
      ->check(CLI::Range(std::size_t{1}, std::size_t{64}))
      ->capture_default_str();
  app.add_option("--data", arguments.data, "file with the digits (digits.csv.gz)");
  app.add_option("--iterations", settings.iterations)
      ->check(CLI::Range(std::size_t{1}, std::size_t{1'000'000}))
      ->capture_default_str();
  app.add_option("--batch", settings.batch_size, "number of digits per worker and iteration")
      ->check(CLI::Range(std::size_t{1}, std::size_t{1024}))
      ->capture_default_str();
  app.add_option("--learning-rate", settings.learning_rate)->capture_default_str();
  app.add_option("--momentum", settings.momentum)->capture_default_str();
  app.add_option("--weight-decay", settings.weight_decay)->capture_default_str();
  app.add_option("--save", arguments.save, "write the final parameters to this file");
  app.add_flag("--quiet", settings.quiet, "do not print progress");
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Trains a small network on handwritten digits with phub.");
  Arguments arguments;
  AddTrainingOptions(app, arguments);
  app.footer(
      "Credentials come from the environment: PHUB_TOKEN_FILE, or PHUB_CERTIFICATE and PHUB_KEY;\n"
      "with TLS also PHUB_CA_FILE.");
  CLI::App* compare = app.add_subcommand("compare", "compare two files written with --save");
  std::string path_a;
  std::string path_b;
  compare->add_option("a", path_a)->required();
  compare->add_option("b", path_b)->required();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {  // also thrown for --help
    return app.exit(error) == 0 ? 0 : kUsage;
  }
  if (compare->parsed()) return Compare(path_a, path_b);
  if (arguments.data.empty() || (!arguments.serial && arguments.place.endpoint.empty())) {
    std::fprintf(stderr, "phub-digits: pass --data, and --endpoint or --serial; see --help\n");
    return kUsage;
  }
  if (arguments.serial && arguments.place.clip_norm > 0.0) {
    std::fprintf(stderr, "phub-digits: --clip-norm cannot be combined with --serial\n");
    return kUsage;
  }
  if (arguments.place.clip_norm > 0.0 || arguments.place.skip_nonfinite)
    arguments.place.apply_iteration = true;
  if (!arguments.serial && arguments.place.rank >= arguments.settings.world_size) {
    std::fprintf(stderr, "phub-digits: --rank %zu must be less than --world-size %zu\n",
                 arguments.place.rank, arguments.settings.world_size);
    return kUsage;
  }
  const std::size_t racks = arguments.settings.racks;
  if (racks > 1 && (!arguments.serial || arguments.settings.world_size % racks != 0)) {
    std::fprintf(stderr, "phub-digits: --racks 2 needs --serial and an even --world-size\n");
    return kUsage;
  }
  return Train(arguments);
}
