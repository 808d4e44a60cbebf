#include "tests/process/two_networks.h"

#include <fmt/format.h>
#include <linux/bpf.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "common/base/descriptor.h"

namespace phub::process {
namespace {

constexpr const char* kIp = "/sbin/ip";
constexpr const char* kTc = "/sbin/tc";
constexpr const char* kUnshare = "/usr/bin/unshare";
constexpr const char* kEnter = "/usr/bin/nsenter";

// A queue without room drops every packet.
std::vector<std::string> DropAll(const std::string& device) {
  return {"qdisc", "add", "dev", device, "root", "pfifo", "limit", "0"};
}

std::vector<std::string> DropNothing(const std::string& device) {
  return {"qdisc", "del", "dev", device, "root"};
}
// side: 'a' for the daemon's end of a network, 'b' for the workers' end.
std::string Device(char side, TwoNetworks::Network network) {
  return fmt::format("{}{}", side, static_cast<int>(network));
}

}  // namespace

bool TurnGroOn(const std::string& interface) {
  const Descriptor socket(::socket(AF_INET, SOCK_DGRAM, 0));
  ethtool_value value{.cmd = ETHTOOL_SGRO, .data = 1};
  ifreq request{};
  std::strncpy(request.ifr_name, interface.c_str(), IFNAMSIZ - 1);
  request.ifr_data = reinterpret_cast<char*>(&value);
  return ioctl(socket.get(), SIOCETHTOOL, &request) == 0;
}

namespace {

// 0 if this process may load programs into the kernel, otherwise an errno.
int ProgramsRefused() {
  bpf_attr attributes{};
  attributes.map_type = BPF_MAP_TYPE_ARRAY;
  attributes.key_size = attributes.value_size = 4;
  attributes.max_entries = 1;
  const Descriptor map(
      static_cast<int>(syscall(SYS_bpf, BPF_MAP_CREATE, &attributes, sizeof attributes)));
  return map ? 0 : errno;
}

}  // namespace

std::string TwoNetworks::ProblemWithPrograms() const {
  if (!problem_.empty()) return problem_;
  const int error = ProgramsRefused();
  return error == 0 ? "" : fmt::format("bpf: {}", std::strerror(error));
}

TwoNetworks::TwoNetworks(bool with_box) {
  for (const char* tool : {kIp, kTc, kUnshare, kEnter}) {
    if (!std::filesystem::exists(tool)) problem_ = fmt::format("{} is missing", tool);
  }
  if (!problem_.empty()) return;
  if (unshare(CLONE_NEWNET) != 0) {
    problem_ = fmt::format("cannot create a network namespace: {}", std::strerror(errno));
    return;
  }
  other_.emplace(MakeNamespace());
  if (with_box) box_.emplace(MakeNamespace());
  Run(kIp, {"link", "set", "lo", "up"});
  RunInOther({kIp, "link", "set", "lo", "up"});
  for (const char* net : {"1", "2"}) {
    const std::string ours = fmt::format("a{}", net);
    const std::string theirs = fmt::format("b{}", net);
    AddLinks(ours, theirs, net);
    Run(kIp, {"addr", "add", fmt::format("10.{}.0.9/24", net), "dev", ours});
    Run(kIp, {"link", "set", ours, "up"});
    RunInOther({kIp, "addr", "add", fmt::format("10.{}.0.2/24", net), "dev", theirs});
    RunInOther({kIp, "link", "set", theirs, "up"});
  }
}

Process TwoNetworks::MakeNamespace() {
  Process keeper = Process::Start(kUnshare, {"--net", "/bin/sleep", "3600"});
  const std::string pid = std::to_string(keeper.pid());
  const auto own =
      std::filesystem::read_symlink("/proc/self/task/" + std::to_string(gettid()) + "/ns/net");
  std::error_code error;
  for (int i = 0; i < 500; ++i) {
    if (std::filesystem::read_symlink("/proc/" + pid + "/ns/net", error) != own && !error) break;
    Sleep(10 * kMillisecond);
  }
  return keeper;
}

void TwoNetworks::AddLinks(const std::string& ours, const std::string& theirs,
                           const std::string& net) {
  const std::string other = std::to_string(other_->pid());
  if (!box_ || net != "2") {
    Run(kIp, {"link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", other});
    return;
  }
  const std::string box = std::to_string(box_->pid());
  for (const auto& [name, end] : {std::pair{ours, "x"}, std::pair{theirs, "y"}}) {
    const std::string at_box = end + net;
    Run(kIp, {"link", "add", name, "gso_max_segs", "1", "type", "veth", "peer", "name", at_box});
    TurnGroOn(at_box);
    Run(kIp, {"link", "set", at_box, "netns", box});
    Run(kEnter, {"--target", box, "--net", "--", kIp, "link", "set", at_box, "up"});
  }
  Run(kIp, {"link", "set", theirs, "netns", other});
}

bool TwoNetworks::Run(const std::string& program, const std::vector<std::string>& arguments) {
  const Finished finished = RunToEnd(program, arguments);
  if (finished.exit == Exit::WithCode(0)) return true;
  if (problem_.empty()) problem_ = fmt::format("{}: {}", program, finished.error);
  return false;
}

bool TwoNetworks::RunInOther(std::vector<std::string> command) {
  command.insert(command.begin(), {"--target", std::to_string(other_->pid()), "--net", "--"});
  return Run(kEnter, command);
}

Process TwoNetworks::StartInOther(const std::string& program,
                                  std::vector<std::string> arguments) const {
  arguments.insert(arguments.begin(),
                   {"--target", std::to_string(other_->pid()), "--net", "--", program});
  return Process::Start(kEnter, arguments);
}

Process TwoNetworks::StartInBox(const std::string& program,
                                std::vector<std::string> arguments) const {
  arguments.insert(arguments.begin(),
                   {"--target", std::to_string(box_->pid()), "--net", "--", program});
  return Process::Start(kEnter, arguments);
}

bool TwoNetworks::CutToWorkers(Network network) { return Run(kTc, DropAll(Device('a', network))); }

bool TwoNetworks::CutFromWorkers(Network network) {
  std::vector<std::string> command = DropAll(Device('b', network));
  command.insert(command.begin(), kTc);
  return RunInOther(command);
}

bool TwoNetworks::RestoreToWorkers(Network network) {
  return Run(kTc, DropNothing(Device('a', network)));
}

bool TwoNetworks::RestoreFromWorkers(Network network) {
  std::vector<std::string> command = DropNothing(Device('b', network));
  command.insert(command.begin(), kTc);
  return RunInOther(command);
}

}  // namespace phub::process
