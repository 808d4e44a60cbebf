#include "bench/rank/arguments.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <numeric>
#include <sstream>

namespace phub::bench {
namespace {

std::uint32_t rank_for_messages = 0;

std::uint64_t ParsedCount(const std::string& text) {
  std::uint64_t count = 0;
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, count);
  if (error != std::errc() || stopped != end || count == 0)
    throw CLI::ValidationError("--sizes", "'" + text + "' is not a positive number of elements");
  return count;
}

// Parses "262144,64", or a file with the line "tensor_index,elements" followed by lines "0,9408",
// ...
std::vector<std::uint64_t> ParsedSizes(const std::string& text) {
  std::vector<std::uint64_t> sizes;
  const bool is_list = text.find_first_not_of("0123456789,") == std::string::npos;
  std::ifstream file;
  std::istringstream list(text);
  std::istream& input = is_list ? static_cast<std::istream&>(list) : file;
  if (!is_list) {
    file.open(text);
    if (!file) throw CLI::ValidationError("--sizes", "cannot read the file " + text);
    std::string header;
    std::getline(file, header);
    if (header != "tensor_index,elements")
      throw CLI::ValidationError("--sizes",
                                 text + " must begin with the line tensor_index,elements");
  }
  for (std::string entry; std::getline(input, entry, is_list ? ',' : '\n');)
    sizes.push_back(ParsedCount(is_list ? entry : entry.substr(entry.find(',') + 1)));
  if (sizes.empty()) throw CLI::ValidationError("--sizes", text + " has no tensors");
  return sizes;
}

void AddTrainingOptions(CLI::App& app, RankArguments& arguments) {
  app.add_option("--schedule", arguments.schedule,
                 "what to time: exchange, compute, serial or overlap")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, Schedule>{{"exchange", Schedule::kExchange},
                                          {"compute", Schedule::kCompute},
                                          {"serial", Schedule::kSerial},
                                          {"overlap", Schedule::kOverlap}}));
  app.add_option("--compute", arguments.compute,
                 "computation: loops over memory, or waits for a device")
      ->transform(CLI::CheckedTransformer(std::map<std::string, Compute>{
          {"memory", Compute::kMemory}, {"device", Compute::kDevice}}));
  app.add_option("--compute-passes", arguments.compute_passes,
                 "passes over the memory of each layer")
      ->check(CLI::Range(1u, 1000u));
  app.add_option("--device-us", arguments.device_us, "device time of an iteration");
}

}  // namespace

std::uint64_t RankArguments::element_count() const {
  return std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0});
}

void AddRankOptions(CLI::App& app, RankArguments& arguments) {
  app.add_option("--rank", arguments.rank, "this worker's rank")->required();
  app.add_option("--world", arguments.world, "number of workers")
      ->required()
      ->check(CLI::Range(1u, 1024u));
  app.add_option_function<std::string>(
         "--sizes", [&](const std::string& text) { arguments.sizes = ParsedSizes(text); },
         "elements of each tensor: a list (9408,64) or a CSV file")
      ->required();
  app.add_option("--type", arguments.type, "element type of gradients and results")
      ->transform(CLI::CheckedTransformer(std::map<std::string, Type>{
          {"f32", Type::kF32}, {"f16", Type::kF16}, {"bf16", Type::kBf16}}));
  app.add_option("--work", arguments.work, "work of an exchange: update or allreduce")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, Work>{{"update", Work::kUpdate}, {"allreduce", Work::kAllreduce}}));
  app.add_option("--memory", arguments.memory, "memory of gradients and results: library or user")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, Memory>{{"library", Memory::kLibrary}, {"user", Memory::kUser}}));
  app.add_option("--exchanges", arguments.exchanges, "number of timed exchanges")
      ->check(CLI::Range(1u, 10'000'000u));
  app.add_option("--warmup", arguments.warmup, "number of untimed exchanges before them");
  AddTrainingOptions(app, arguments);
  app.add_option("--daemon-pids", arguments.daemon_pids,
                 "processes whose CPU time rank 0 also reads")
      ->delimiter(',');
  app.add_option("--drain", arguments.drain,
                 "ADDRESS:PORT of bench-drain-echo, used to empty the link's token bucket before "
                 "each timed exchange");
  app.add_flag("--snapshots", arguments.snapshots,
               "pause before and after the timed exchanges, while the harness reads counters");
  app.add_option("--out", arguments.out, "output file (JSON)")->required();
}

void SetRankForMessages(std::uint32_t rank) { rank_for_messages = rank; }

void Fail(const std::string& reason) {
  std::fprintf(stderr, "rank %u: %s\n", rank_for_messages, reason.c_str());
  std::exit(1);
}

}  // namespace phub::bench
