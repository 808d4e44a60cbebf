#include "server/start_check.h"

#include <fmt/format.h>
#include <unistd.h>

#include <optional>
#include <utility>

#include "common/base/random.h"
#include "common/base/status_text.h"
#include "common/net/listen.h"
#include "common/tls/certificate.h"
#include "server/config/control_store_setting.h"
#include "server/core_plan.h"
#include "server/daemon_options.h"
#include "server/open_store.h"
#include "server/path_check.h"
#include "server/peer_racks.h"
#include "server/port_owner.h"
#include "server/transports/transport_list.h"

namespace phub::server {
namespace {

class StartCheck {
 public:
  StartCheck(const Settings& settings, const CpuTopology& topology)
      : settings_(settings), topology_(topology) {}

  std::vector<std::string> Run() {
    FindInstance();
    CheckCores();
    Note("", ReadRackTopology(settings_).status());
    CheckFiles();
    CheckPorts();
    return std::move(problems_);
  }

 private:
  void Note(const std::string& setting, const absl::Status& status) {
    if (status.ok()) return;
    problems_.push_back(setting.empty() ? std::string(MessageOf(status))
                                        : fmt::format("{}: {}", setting, MessageOf(status)));
  }

  void FindInstance() {
    const net::HostAndPort control = Address(settings_.listen);
    if (const auto owner = FindPortOwner(control.port); owner.has_value()) {
      instance_ = FindRunningDaemon(*owner);
    }
  }

  // The core loops and the transports' devices.
  void CheckCores() {
    const auto plan = PlanCores(settings_, topology_);
    if (!plan.ok()) return Note("", plan.status());
    const NumaNodes nodes = NodesOf(*plan, topology_);
    SystemRandom random;
    Note("", TransportList::Open(
                 {.settings = settings_, .core_nodes = nodes, .clock = clock_, .random = random})
                 .status());
  }

  void CheckFiles() {
    if (!settings_.tls_certificate.empty()) {
      Note("tls_certificate",
           CheckTlsFiles({settings_.tls_certificate, settings_.tls_key, settings_.tls_client_ca}));
    }
    if (!settings_.state_dir.empty()) {
      Note(fmt::format("state_dir = \"{}\"", settings_.state_dir),
           CheckStatePath(settings_.state_dir, instance_));
    }
    if (!EtcdEndpointsOf(settings_).empty()) CheckEtcd();
    if (const std::string socket = ControlSocketPath(settings_); !socket.empty()) {
      Note(fmt::format("control_socket = \"{}\"", socket), CheckSocketPath(socket, instance_));
    }
    if (!settings_.port_file.empty()) {
      Note(fmt::format("port_file = \"{}\"", settings_.port_file),
           CheckFilePath(settings_.port_file));
    }
  }

  // Only what is on this host: phubd waits for an etcd that does not answer.
  void CheckEtcd() {
    const auto options = EtcdOptions(settings_);
    const absl::Status status = options.ok() ? etcd::CheckFiles(*options) : options.status();
    Note("control_store", status);
    // The first daemon of a cluster creates it.
    if (status.ok() && access(settings_.token_key.c_str(), F_OK) != 0)
      Note("token_key", CheckFilePath(settings_.token_key));
  }

  void CheckPorts() {
    CheckPort("listen", Address(settings_.listen));
    CheckPort("data_listen", DataAddress(settings_));
    const auto check = [&](const char* setting, const std::string& value) {
      if (!value.empty()) CheckPort(setting, Address(value));
    };
    check("metrics_listen", settings_.metrics_listen);
    check("health_listen", settings_.health_listen);
    check("page_listen", settings_.page_listen);
  }

  void CheckPort(const char* setting, const net::HostAndPort& address) {
    const absl::Status status = net::Listen(address.host, address.port).status();
    if (status.ok()) return;
    const auto owner = address.port == 0 ? std::nullopt : FindPortOwner(address.port);
    if (owner.has_value() && instance_.has_value() && FindRunningDaemon(*owner) == instance_) {
      return;
    }
    const std::string user =
        owner.has_value()
            ? fmt::format("; the port is in use by {} (pid {})",
                          owner->program.empty() ? "a process" : owner->program, owner->pid)
            : "";
    problems_.push_back(fmt::format("{}: {}{}", setting, MessageOf(status), user));
  }

  const Settings& settings_;
  const CpuTopology& topology_;
  const SystemClock clock_;
  std::optional<pid_t> instance_;  // the running phubd that uses these settings' control port
  std::vector<std::string> problems_;
};

}  // namespace

std::vector<std::string> CheckStart(const Settings& settings, const CpuTopology& topology) {
  return StartCheck(settings, topology).Run();
}

}  // namespace phub::server
