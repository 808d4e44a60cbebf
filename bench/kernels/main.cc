// bench-kernels: measures the speed of common/simd's kernels and the limits of the machine.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/kernels/measure.h"
#include "bench/kernels/report.h"
#include "bench/rank/build_info.h"
#include "common/base/cpu_topology.h"
#include "common/base/units.h"

namespace phub::bench {
namespace {

constexpr int kFailure = 1;
constexpr int kUsage = 2;

#if !defined(__OPTIMIZE__) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kOptimized = false;
#else
constexpr bool kOptimized = true;
#endif

struct Options {
  bool smoke = false;
  bool list = false;
  std::string json_path;
  std::vector<std::string> filters;
  std::string pages = "small";
  std::optional<std::string> memory;
  std::string chunk = "64KiB";
  std::optional<std::uint32_t> threads;
  std::optional<std::uint32_t> rounds;
};

std::string CheckBytes(const std::string& text) {
  const auto bytes = ParseBytes(text);
  if (bytes && *bytes > 0 && *bytes % 4096 == 0) return "";
  return fmt::format("\"{}\" is not a multiple of 4 KiB, such as \"64KiB\" or \"1GiB\"", text);
}

void AddOptions(CLI::App& app, Options& options) {
  app.add_flag("--smoke", options.smoke, "Run a few small cases to check the results");
  app.add_flag("--list", options.list, "Print the cases' names and exit");
  app.add_option("--json", options.json_path, "Write the results to FILE")->type_name("FILE");
  app.add_option("--filter", options.filters,
                 "Run only cases whose names contain TEXT (all texts, if given several times)")
      ->type_name("TEXT")
      ->allow_extra_args(false);
  app.add_option("--pages", options.pages, "Page size of the arrays: small or huge")
      ->check(CLI::IsMember({"small", "huge"}))
      ->capture_default_str();
  app.add_option("--memory", options.memory,
                 "Total size of the arrays out of cache (default: 256MiB, or 4 times the L3 cache)")
      ->check(CheckBytes)
      ->type_name("BYTES");
  app.add_option("--chunk", options.chunk, "Size of a rank's gradient of one chunk")
      ->check(CheckBytes)
      ->type_name("BYTES")
      ->capture_default_str();
  app.add_option("--threads", options.threads, "Run with 1 and COUNT threads (default: all cores)")
      ->check(CLI::Range(1u, 1024u))
      ->type_name("COUNT");
  app.add_option("--rounds", options.rounds, "Timings of each case (default: 15)")
      ->check(CLI::Range(1u, 10000u))
      ->type_name("COUNT");
}

// 256 MiB, or 4 times the L3 cache that the first core can use. (In a virtual machine, sysconf()
// may report all caches of a socket, although the machine can use only one of them.)
std::size_t DefaultMemoryBytes() {
  std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index3/size");
  std::string text;  // "32768K"
  const bool read = static_cast<bool>(file >> text);
  const std::uint64_t l3_bytes = read ? ParseBytes(text + "iB").value_or(0) : 0;
  return std::max(256 * kMebibyte, 4 * l3_bytes);
}

Settings SettingsOf(const Options& options) {
  Settings settings;
  settings.memory_bytes = options.smoke ? 4 * kMebibyte : DefaultMemoryBytes();
  if (options.memory) settings.memory_bytes = *ParseBytes(*options.memory);
  settings.chunk_bytes = *ParseBytes(options.chunk);
  settings.rounds = options.rounds.value_or(options.smoke ? 1 : 15);
  settings.cached_traffic_bytes = options.smoke ? 0 : 32 * kMebibyte;
  settings.pages = options.pages == "huge" ? Pages::kHuge : Pages::kSmall;
  return settings;
}

std::vector<Case> ChosenCases(const Options& options, std::uint32_t threads) {
  std::vector<Case> cases = options.smoke ? SmokeCases(threads) : AllCases(threads);
  std::erase_if(cases, [&](const Case& each) {
    const std::string name = NameOf(each, 0);
    return std::any_of(
        options.filters.begin(), options.filters.end(),
        [&](const std::string& text) { return name.find(text) == std::string::npos; });
  });
  return cases;
}

int Fail(const std::string& message, int code) {
  fmt::print(stderr, "bench-kernels: {}\n", message);
  return code;
}

int Run(const Options& options) {
  const absl::StatusOr<CpuTopology> topology = CpuTopology::Create();
  if (!topology.ok()) return Fail(std::string(topology.status().message()), kFailure);
  const auto cores = static_cast<std::uint32_t>(topology->cores().size());
  const std::uint32_t threads = options.threads.value_or(cores);
  if (threads > cores) {
    return Fail(fmt::format("--threads {}: this process may use only {} cores", threads, cores),
                kUsage);
  }
  const std::vector<Case> cases = ChosenCases(options, threads);
  if (cases.empty()) return Fail("no case matches --filter; see --list", kUsage);
  if (options.list) {
    for (const Case& each : cases) fmt::print("{}\n", NameOf(each, 0));
    return 0;
  }
  if (!kOptimized && !options.smoke) {
    return Fail("this build is not optimised; use a release build, or --smoke", kFailure);
  }
  const Settings settings = SettingsOf(options);
  absl::StatusOr<Measurement> measurement = Measurement::Create(settings, threads);
  if (!measurement.ok()) return Fail(std::string(measurement.status().message()), kFailure);
  PrintHeader(settings, threads);
  std::vector<Result> results;
  for (const Case& each : cases) {
    absl::StatusOr<Result> result = measurement->Measure(each);
    if (!result.ok()) return Fail(std::string(result.status().message()), kFailure);
    PrintRow(*result);
    results.push_back(*std::move(result));
  }
  PrintSummary(results);
  if (options.json_path.empty()) return 0;
  const absl::Status written = WriteJson(options.json_path, settings, results);
  return written.ok() ? 0 : Fail(std::string(written.message()), kFailure);
}

}  // namespace
}  // namespace phub::bench

int main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "--build-info") {
    return phub::bench::PrintBuildInfo();
  }
  CLI::App app("Compare phub's kernels with the limits of memory and caches.");
  app.name("bench-kernels");
  phub::bench::Options options;
  phub::bench::AddOptions(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    return phub::bench::Fail(std::string(error.what()) + "\nRun bench-kernels --help for usage.",
                             phub::bench::kUsage);
  }
  return phub::bench::Run(options);
}
