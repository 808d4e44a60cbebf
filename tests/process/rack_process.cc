#include "tests/process/rack_process.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstring>
#include <memory>
#include <random>
#include <utility>

#include "common/base/check.h"
#include "common/base/descriptor.h"

namespace phub::process {
namespace {

constexpr DurationNs kStartPatience = 30 * kSecond;  // sanitizers and busy machines are slow

// Ports that are free now, all different. The list must be known before any daemon starts. Below
// those that Linux gives to whoever asks for any: a daemon's data port is not to be the next one's.
std::vector<std::uint16_t> FreePorts(std::size_t count) {
  constexpr std::uint32_t kFirst = 10'000;
  constexpr std::uint32_t kCount = 22'000;
  std::random_device device;
  std::vector<Descriptor> held;
  std::vector<std::uint16_t> ports;
  for (int tries = 0; ports.size() < count; ++tries) {
    PHUB_CHECK(tries < 10'000, "no free ports");
    Descriptor holder(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(kFirst + device() % kCount));
    if (bind(holder.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) continue;
    ports.push_back(ntohs(address.sin_port));
    held.push_back(std::move(holder));
  }
  return ports;
}

}  // namespace

RackProcess::RackProcess(std::size_t daemon_count, const std::vector<std::string>& arguments,
                         Kind kind, std::size_t aggregator_count)
    : arguments_(arguments), kind_(kind), aggregator_count_(aggregator_count) {
  for (const std::uint16_t port : FreePorts(daemon_count)) {
    endpoints_.push_back(fmt::format("127.0.0.1:{}", port));
  }
  for (std::size_t i = 0; i < daemon_count; ++i) daemons_.push_back(StartDaemon(i, {}));
  for (Process& daemon : daemons_) serving_ &= daemon.WaitForOutput("serves on", kStartPatience);
}

Process RackProcess::StartDaemon(std::size_t daemon, const std::vector<std::string>& more) const {
  std::vector<std::string> all = {"--listen", endpoints_[daemon]};
  const auto racks_end = endpoints_.end() - static_cast<std::ptrdiff_t>(aggregator_count_);
  if (endpoints_.size() > 1) {
    all.insert(all.end(), {kind_ == Kind::kOneRack ? "--daemons" : "--racks",
                           fmt::format("{}", fmt::join(endpoints_.begin(), racks_end, ","))});
  }
  if (aggregator_count_ > 0) {
    all.insert(all.end(),
               {"--aggregators", fmt::format("{}", fmt::join(racks_end, endpoints_.end(), ","))});
    const bool is_rack = daemon + aggregator_count_ < endpoints_.size();
    all.insert(all.end(), {"--role", is_rack ? "rack" : "aggregator"});
  }
  for (std::string argument : arguments_) {
    const std::size_t at = argument.find(kDaemonNumber);
    if (at != std::string::npos) {
      argument.replace(at, std::strlen(kDaemonNumber), std::to_string(daemon));
    }
    all.push_back(std::move(argument));
  }
  all.insert(all.end(), more.begin(), more.end());
  return Process::Start(kPhubd, all);
}

void RackProcess::Restart(std::size_t daemon, const std::vector<std::string>& more) {
  PHUB_CHECK(!daemons_[daemon].IsRunning(), "endpoint={}", endpoints_[daemon]);
  std::destroy_at(&daemons_[daemon]);
  std::construct_at(&daemons_[daemon], StartDaemon(daemon, more));
  serving_ &= daemons_[daemon].WaitForOutput("serves on", kStartPatience);
}

bool RackProcess::serving() const { return serving_; }

std::string RackProcess::Outputs() const {
  std::string text;
  for (const Process& daemon : daemons_) text += daemon.Outputs();
  return text;
}

Finished RackProcess::Ask(std::size_t daemon, const std::vector<std::string>& arguments,
                          std::vector<std::string> environment) const {
  environment.push_back(fmt::format("PHUB_ENDPOINT={}", endpoints_[daemon]));
  return RunToEnd(kPhubctl, arguments, environment);
}

}  // namespace phub::process
