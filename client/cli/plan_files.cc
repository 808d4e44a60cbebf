// phubctl plan: reads and writes topologies and plans.
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/status/status.h"
#include "client/cli/output.h"
#include "client/cli/plan.h"
#include "common/base/printable.h"
#include "common/base/units.h"
#include "common/plan/forest_json.h"
#include "common/plan/generators.h"
#include "common/plan/msccl.h"
#include "common/plan/topology_json.h"
#include "common/plan/topology_toml.h"

namespace phub::client::cli {

absl::Status InFile(const std::string& file, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), fmt::format("{}: {}", file, std::string(status.message())));
}

int ReportPlanError(const absl::Status& status) {
  fmt::print(stderr, "phubctl: {}\n", Printable(std::string(status.message())));
  return status.code() == absl::StatusCode::kNotFound ? kNotFound : kFailure;
}

absl::StatusOr<std::string> ReadFile(const std::string& file, std::size_t bytes_max) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error))
    return absl::NotFoundError(fmt::format("no such file: '{}'", file));
  const std::uintmax_t size = std::filesystem::file_size(file, error);
  if (error || size > bytes_max)
    return absl::InvalidArgumentError(
        fmt::format("{}: the file is larger than {} bytes", file, bytes_max));
  std::string text(static_cast<std::size_t>(size), '\0');
  std::ifstream stream(file, std::ios::binary);
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (stream.gcount() != static_cast<std::streamsize>(text.size()))
    return absl::UnavailableError(fmt::format("{}: cannot read the file", file));
  return text;
}

absl::StatusOr<plan::Topology> LoadTopology(const std::string& name_or_file) {
  if (name_or_file.empty())
    return absl::InvalidArgumentError(
        "--topology is missing; give a name such as torus:4x4 or racks:4x8@4, or a file");
  const bool is_toml = name_or_file.ends_with(".toml");
  if (!is_toml && !name_or_file.ends_with(".json")) return plan::Generate(name_or_file);
  absl::StatusOr<std::string> text = ReadFile(name_or_file, plan::kTopologyTextBytesMax);
  if (!text.ok()) return text.status();
  return InFile(name_or_file,
                is_toml ? plan::ParseTopologyToml(*text) : plan::ParseTopologyJson(*text));
}

absl::StatusOr<plan::Forest> LoadPlan(const plan::Topology& topology, const std::string& file) {
  absl::StatusOr<std::string> text = ReadFile(file, plan::kPlanTextBytesMax);
  if (!text.ok()) return text.status();
  return InFile(file, file.ends_with(".xml")
                          ? plan::ParseMsccl(topology, *text)
                          : plan::ParseForestJson(topology, *text, plan::PlanScope::kGroupsToo));
}

absl::StatusOr<VerifiedPlan> LoadVerifiedPlan(const PlanArguments& arguments) {
  absl::StatusOr<PlanNetwork> network = LoadNetwork(arguments);
  if (!network.ok()) return network.status();
  absl::StatusOr<plan::Forest> forest = LoadPlan(network->topology, arguments.plan);
  if (!forest.ok()) return forest.status();
  absl::StatusOr<plan::VerifyReport> report = plan::Verify(network->topology, *forest);
  if (!report.ok())
    return absl::InvalidArgumentError(fmt::format("{}: the plan is not valid: {}", arguments.plan,
                                                  std::string(report.status().message())));
  if (network->rules)
    if (const absl::Status status = plan::CheckRules(network->topology, *forest, *network->rules);
        !status.ok())
      return absl::InvalidArgumentError(fmt::format("{}: the plan does not follow {}: {}",
                                                    arguments.plan, arguments.sketch,
                                                    std::string(status.message())));
  return VerifiedPlan{*std::move(network), *std::move(forest), *std::move(report)};
}

absl::StatusOr<plan::SimulationOptions> SimulationOf(const PlanArguments& arguments) {
  plan::SimulationOptions simulation;
  const auto size = ParseBytes(arguments.size);
  if (!size || *size < 1 || *size > static_cast<std::uint64_t>(plan::kSizeBytesMax))
    return absl::InvalidArgumentError(
        fmt::format("--size: '{}' is not a size such as 64MiB", arguments.size));
  simulation.size_bytes = static_cast<std::int64_t>(*size);
  simulation.pieces = std::max(arguments.pieces, 1u);
  simulation.mode =
      arguments.lockstep ? plan::SimulationMode::kLockstep : plan::SimulationMode::kFlow;
  for (const auto& [text, rate, option] :
       {std::tuple{&arguments.sum_rate, &simulation.sum_bytes_per_s, "--sum-rate"},
        std::tuple{&arguments.optimizer_rate, &simulation.optimizer_bytes_per_s,
                   "--optimizer-rate"}}) {
    if (text->empty()) continue;
    const auto parsed = plan::ParseBandwidth(*text);
    if (!parsed)
      return absl::InvalidArgumentError(
          fmt::format("{}: '{}' is not a rate such as 20GB/s", option, *text));
    *rate = static_cast<double>(*parsed);
  }
  return simulation;
}

absl::Status WriteOut(const std::string& file, std::string_view text) {
  if (file.empty()) {
    fmt::print("{}", text);  // RunWithOutput() reports errors
    return absl::OkStatus();
  }
  std::ofstream stream(file, std::ios::binary | std::ios::trunc);
  stream.write(text.data(), static_cast<std::streamsize>(text.size()));
  stream.close();
  if (!stream) return absl::UnavailableError(fmt::format("{}: cannot write the file", file));
  return absl::OkStatus();
}

}  // namespace phub::client::cli
