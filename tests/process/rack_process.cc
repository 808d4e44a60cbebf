#include "tests/process/rack_process.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <utility>

#include "common/base/check.h"
#include "common/base/descriptor.h"

namespace phub::process {
namespace {

// Returns distinct ports that are free now. All daemons' ports must be known before the first one
// starts. The ports are below Linux's ephemeral range, so that a daemon's data port cannot be the
// next daemon's port.
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
                         Kind kind, std::size_t aggregator_count, std::size_t per_rack)
    : arguments_(arguments), kind_(kind), aggregator_count_(aggregator_count), per_rack_(per_rack) {
  for (const std::uint16_t port : FreePorts(daemon_count)) {
    endpoints_.push_back(fmt::format("127.0.0.1:{}", port));
  }
  for (std::size_t i = 0; i < daemon_count; ++i) daemons_.push_back(StartDaemon(i, {}));
  for (Process& daemon : daemons_) serving_ &= daemon.WaitForOutput("serves on", kStartPatience);
}

// The settings that list the other daemons.
std::vector<std::string> RackProcess::PlaceOf(std::size_t daemon) const {
  if (endpoints_.size() == 1) return {};
  if (kind_ == Kind::kOneRack) return {"--daemons", fmt::format("{}", fmt::join(endpoints_, ","))};
  const std::size_t rack = daemon / per_rack_;
  const std::size_t racks = endpoints_.size() / per_rack_ - aggregator_count_;
  std::vector<std::string> plane;  // racks, then aggregators
  for (std::size_t i = daemon % per_rack_; i < endpoints_.size(); i += per_rack_) {
    plane.push_back(endpoints_[i]);
  }
  const auto racks_end = plane.begin() + static_cast<std::ptrdiff_t>(racks);
  std::vector<std::string> place = {"--racks",
                                    fmt::format("{}", fmt::join(plane.begin(), racks_end, ","))};
  if (aggregator_count_ > 0) {
    place.insert(place.end(),
                 {"--aggregators", fmt::format("{}", fmt::join(racks_end, plane.end(), ",")),
                  "--role", rack < racks ? "rack" : "aggregator"});
  }
  if (per_rack_ > 1) {
    const auto first = endpoints_.begin() + static_cast<std::ptrdiff_t>(rack * per_rack_);
    const auto end = first + static_cast<std::ptrdiff_t>(per_rack_);
    place.insert(place.end(), {"--daemons", fmt::format("{}", fmt::join(first, end, ","))});
  }
  return place;
}

Process RackProcess::StartDaemon(std::size_t daemon, const std::vector<std::string>& more) const {
  std::vector<std::string> all = {"--listen", endpoints_[daemon]};
  const std::vector<std::string> place = PlaceOf(daemon);
  for (std::size_t i = 0; i < place.size(); i += 2) {
    // The caller's arguments override it.
    if (std::find(more.begin(), more.end(), place[i]) != more.end()) continue;
    all.insert(all.end(), {place[i], place[i + 1]});
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
