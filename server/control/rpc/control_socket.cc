#include "server/control/rpc/control_socket.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "common/base/log.h"
#include "common/base/shortage.h"

namespace phub::server {
namespace {

constexpr int kListenBacklog = 16;
constexpr int kPollMilliseconds = 100;  // how often the thread checks for a stop request
constexpr mode_t kFolderMode = 0755;
constexpr mode_t kSocketMode = 0600;

absl::Status Bad(const std::string& path, std::string_view what) {
  return absl::FailedPreconditionError(
      fmt::format("control socket {}: {}; choose another path with control_socket", path, what));
}

bool IsServed(const sockaddr_un& address) {
  const Descriptor probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ControlSocket>> ControlSocket::Create(const std::string& path,
                                                                     GrpcServer& server) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return Bad(path, fmt::format("the path is longer than {} bytes", sizeof address.sun_path - 1));
  }
  path.copy(address.sun_path, path.size());
  const std::size_t slash = path.rfind('/');
  if (slash != std::string::npos && slash > 0) mkdir(path.substr(0, slash).c_str(), kFolderMode);
  struct stat facts {};
  if (lstat(path.c_str(), &facts) == 0) {
    if (!S_ISSOCK(facts.st_mode)) return Bad(path, "the path exists and is not a socket");
    if (IsServed(address)) return Bad(path, "another phubd is using it");
    unlink(path.c_str());
  }
  Descriptor listening(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listening ||
      bind(listening.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return Bad(path, std::strerror(errno));
  }
  // No client can connect before listen().
  if (chmod(path.c_str(), kSocketMode) != 0 || listen(listening.get(), kListenBacklog) != 0) {
    return Bad(path, std::strerror(errno));
  }
  LogInfo("event=control_socket path=\"{}\"", path);
  std::unique_ptr<ControlSocket> created(new ControlSocket(path, std::move(listening), server));
  const absl::Status started =
      StartThread(created->thread_, "control-socket", [socket = created.get()] { socket->Loop(); });
  if (!started.ok()) return started;
  return created;
}

ControlSocket::ControlSocket(std::string path, Descriptor listening, GrpcServer& server)
    : path_(std::move(path)), listening_(std::move(listening)), server_(server) {}

ControlSocket::~ControlSocket() {
  stopping_.store(true, std::memory_order_relaxed);
  if (thread_.joinable()) thread_.join();
  unlink(path_.c_str());
}

void ControlSocket::Loop() {
  pollfd waiting{listening_.get(), POLLIN, 0};
  while (!stopping_.load(std::memory_order_relaxed)) {
    if (poll(&waiting, 1, kPollMilliseconds) <= 0) continue;
    Descriptor connection(
        accept4(listening_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (connection) Take(std::move(connection));
  }
}

void ControlSocket::Take(Descriptor connection) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (getsockopt(connection.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return;
  if (peer.uid != 0 && peer.uid != geteuid()) {
    LogWarning("event=control_socket_refused uid={} pid={}", peer.uid, peer.pid);
    return;
  }
  server_.AddLocalConnection(std::move(connection), {.pid = peer.pid, .uid = peer.uid});
}

}  // namespace phub::server
