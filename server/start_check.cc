#include "server/start_check.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <optional>
#include <utility>

#include "common/base/errno_text.h"
#include "common/base/random.h"
#include "common/base/status_text.h"
#include "common/net/listen.h"
#include "server/core_plan.h"
#include "server/daemon_options.h"
#include "server/peer_racks.h"
#include "server/port_owner.h"
#include "server/tenant/certificate.h"
#include "server/tenant/control_store.h"
#include "server/transports/transport_list.h"

namespace phub::server {
namespace {

class StartCheck {
 public:
  StartCheck(const Settings& settings, const CpuTopology& topology)
      : settings_(settings), topology_(topology) {}

  std::vector<std::string> Run() {
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
    if (!settings_.state_dir.empty()) CheckStateFolder();
    const std::string socket = ControlSocketPath(settings_);
    if (!socket.empty()) CheckSocketFile(socket);
    if (!settings_.port_file.empty()) {
      const std::string folder = FolderOf(settings_.port_file);
      Note(fmt::format("port_file = \"{}\"", settings_.port_file), CheckWritable(folder));
    }
  }

  void CheckStateFolder() {
    const std::string& folder = settings_.state_dir;
    std::error_code error;
    const bool exists = std::filesystem::exists(folder, error);
    Note(fmt::format("state_dir = \"{}\"", folder),
         exists ? CheckStateDir(folder) : CheckWritable(FolderOf(folder)));
  }

  void CheckSocketFile(const std::string& path) {
    const std::string setting = fmt::format("control_socket = \"{}\"", path);
    if (path.size() >= sizeof(sockaddr_un::sun_path)) {
      return Note(setting,
                  absl::FailedPreconditionError(fmt::format("the path is longer than {} bytes",
                                                            sizeof(sockaddr_un::sun_path) - 1)));
    }
    struct stat facts {};
    if (lstat(path.c_str(), &facts) == 0 && !S_ISSOCK(facts.st_mode)) {
      return Note(setting, absl::FailedPreconditionError("the path exists and is not a socket"));
    }
    // phubd creates the socket's folder, but not the folders around it.
    std::error_code error;
    const std::string folder = FolderOf(path);
    Note(setting,
         CheckWritable(std::filesystem::exists(folder, error) ? folder : FolderOf(folder)));
  }

  static std::string FolderOf(const std::string& path) {
    const std::string folder = std::filesystem::path(path).parent_path();
    return folder.empty() ? "." : folder;
  }

  static absl::Status CheckWritable(const std::string& folder) {
    struct stat facts {};
    if (stat(folder.c_str(), &facts) != 0) {
      return absl::FailedPreconditionError(fmt::format("{}: {}", folder, ErrnoText(errno)));
    }
    if (!S_ISDIR(facts.st_mode)) {
      return absl::FailedPreconditionError(fmt::format("{} is not a directory", folder));
    }
    if (access(folder.c_str(), W_OK | X_OK) != 0) {
      return absl::FailedPreconditionError(
          fmt::format("{} is not writable: {}", folder, ErrnoText(errno)));
    }
    return absl::OkStatus();
  }

  void CheckPorts() {
    const net::HostAndPort control = Address(settings_.listen);
    std::optional<pid_t> instance;
    if (const auto owner = FindPortOwner(control.port); owner.has_value()) {
      instance = FindRunningDaemon(*owner);
    }
    CheckPort("listen", control, instance);
    CheckPort("data_listen", DataAddress(settings_), instance);
    if (settings_.metrics_listen.empty()) return;
    CheckPort("metrics_listen", Address(settings_.metrics_listen), instance);
  }

  void CheckPort(const char* setting, const net::HostAndPort& address,
                 std::optional<pid_t> instance) {
    const absl::Status status = net::Listen(address.host, address.port).status();
    if (status.ok()) return;
    const auto owner = address.port == 0 ? std::nullopt : FindPortOwner(address.port);
    if (owner.has_value() && instance.has_value() && FindRunningDaemon(*owner) == instance) return;
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
  std::vector<std::string> problems_;
};

}  // namespace

std::vector<std::string> CheckStart(const Settings& settings, const CpuTopology& topology) {
  return StartCheck(settings, topology).Run();
}

}  // namespace phub::server
