// phubctl doctor: checks whether lanes over RDMA work on this host, how its kernel shares cores,
// and whether an aggregator can run in it, and suggests fixes.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "client/cli/cli.h"
#include "client/cli/kernel_aggregator.h"
#include "client/cli/output.h"
#include "client/cli/scheduling.h"
#include "common/base/printable.h"
#include "common/base/units.h"
#include "common/net/host_port.h"
#include "common/transport/client_lanes.h"

namespace phub::client::cli {
namespace {

using transport::LaneFinding;
using Findings = std::vector<LaneFinding>;

struct DoctorArguments {
  std::string pinned_text = "1GiB";
  std::string peer;
  std::string xdp;  // an interface; empty: not asked for
  bool daemon = false;
  bool required = false;
};

std::string FindingsText(const Findings& findings) {
  Table table({{"SUBJECT"}, {"STATE"}, {"FINDING"}});
  std::string fixes;
  for (const LaneFinding& finding : findings) {
    table.Add({finding.subject, ToString(finding.level), finding.text});
    if (finding.fix.empty()) continue;
    fixes += fmt::format("  {}: {}\n", Printable(finding.subject), Printable(finding.fix));
  }
  return table.Text() + (fixes.empty() ? "" : fmt::format("\nWhat to do:\n{}", fixes));
}

std::string FindingsJson(const Findings& findings, std::uint32_t usable) {
  nlohmann::ordered_json json{{"usable_devices", usable},
                              {"findings", nlohmann::ordered_json::array()}};
  for (const LaneFinding& finding : findings) {
    json["findings"].push_back({{"subject", finding.subject},
                                {"state", ToString(finding.level)},
                                {"text", finding.text},
                                {"fix", finding.fix}});
  }
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

int Doctor(const DoctorArguments& arguments, const Options& options) {
  const transport::LaneNeeds needs{.pinned_bytes = ParseBytes(arguments.pinned_text).value_or(0),
                                   .peer = arguments.peer,
                                   .daemon = arguments.daemon};
  Findings findings;
  std::uint32_t usable = 0;
  for (const transport::ClientLaneProvider& provider : transport::ClientLaneProviders()) {
    if (provider.diagnose == nullptr) continue;
    const transport::LaneDiagnosis one = provider.diagnose(needs);
    findings.insert(findings.end(), one.findings.begin(), one.findings.end());
    usable += one.usable_devices;
  }
  const Findings scheduling = SchedulingFindings();
  findings.insert(findings.end(), scheduling.begin(), scheduling.end());
  if (!arguments.xdp.empty()) {
    const Findings kernel = KernelAggregatorFindings(arguments.xdp);
    findings.insert(findings.end(), kernel.begin(), kernel.end());
  }
  fmt::print("{}", options.output == Output::kJson ? FindingsJson(findings, usable)
                                                   : FindingsText(findings));
  const bool bad = std::any_of(findings.begin(), findings.end(), [](const LaneFinding& finding) {
    return finding.level == LaneFinding::Level::kBad;
  });
  if (arguments.required && usable == 0) {
    fmt::print(stderr, "phubctl: no usable RDMA device on this host (--required)\n");
    return kFailure;
  }
  return bad && !arguments.required ? kFailure : kOk;
}

}  // namespace

void AddDoctor(Subcommand parent, const Options& options, Command& command) {
  const Subcommand doctor = parent.AddSubcommand(
      "doctor", "Check lanes over RDMA and the sharing of cores on this host, and suggest fixes");
  const auto arguments = std::make_shared<DoctorArguments>();
  doctor
      .AddOption("--pin", arguments->pinned_text,
                 "Memory that a process must register; for a worker, gradients and parameters\n"
                 "of its keys")
      .TypeName("SIZE")
      .Check([](const std::string& text) {
        return ParseBytes(text) ? std::string()
                                : fmt::format("\"{}\" is not a size such as \"4GiB\"", text);
      })
      .ShowDefault();
  doctor.AddOption("--peer", arguments->peer, "IP address of the peer, to select the local one")
      .TypeName("ADDRESS")
      .Check([](const std::string& text) {
        return net::IsNumeric(text) ? std::string()
                                    : fmt::format("\"{}\" is not an IP address", text);
      });
  doctor.AddFlag("--daemon", arguments->daemon, "Check for phubd, which needs memory windows");
  doctor
      .AddOption("--xdp", arguments->xdp, "Also check for phub-aggregator --xdp on this interface")
      .TypeName("INTERFACE");
  doctor.AddFlag("--required", arguments->required, "Fail only if no device is usable");
  doctor.SetFooter(
      "Checks devices and their files, ports, addresses (GIDs), MTU, the limit of pinned memory\n"
      "and huge pages, with the permissions of this user, and how the kernel divides cores among\n"
      "phubd and workers. Contacts no daemon. A host without RDMA devices is not an error: lanes\n"
      "use tcp or shared memory.\n"
      "\nExit codes: 0 no finding is BAD; 1 a finding is BAD. With --required: 0 a device is\n"
      "usable, 1 no device is usable.\n"
      "\nExamples:\n"
      "  phubctl doctor --pin 8GiB\n"
      "  sudo -u phub phubctl doctor --daemon --required\n"
      "  phubctl doctor --xdp eth1\n"
      "  phubctl doctor -o json | jq '.findings[] | select(.state == \"BAD\")'");
  doctor.OnNamed(
      [&, arguments] { command = [&, arguments] { return Doctor(*arguments, options); }; });
}

}  // namespace phub::client::cli
