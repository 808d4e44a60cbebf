#include "common/http/metrics_server.h"

#include <fmt/format.h>
#include <microhttpd.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/cpu_topology.h"
#include "common/base/shortage.h"
#include "common/http/text_format.h"
#include "common/net/listen.h"

namespace phub::http {
namespace {

constexpr int kBacklog = 64;
// The thread wakes at least this often to close slow connections and to check whether to stop.
constexpr int kWaitMs = 100;
constexpr std::string_view kPath = "/metrics";
constexpr std::string_view kAlivePath = "/healthz";
constexpr std::string_view kReadyPath = "/readyz";

}  // namespace

struct MetricsServer::Impl {
  // An accepted connection.
  struct Watched {
    int socket = -1;  // -1: the place is free
    TimeNs since = 0;
    bool asked = false;  // its request is complete
  };

  Impl(std::string program_given, Write write_given, Health health_given, const Clock& clock_given)
      : program(std::move(program_given)),
        write(std::move(write_given)),
        health(std::move(health_given)),
        clock(clock_given) {}
  ~Impl() {
    stopping.store(true, std::memory_order_relaxed);
    if (thread.joinable()) thread.join();
    if (response != nullptr) MHD_destroy_response(response);
    if (daemon != nullptr) MHD_stop_daemon(daemon);
  }

  void Run();
  void AcceptAll(int from);
  bool HasRoom() const;
  void CutSlowConnections();
  void Watch(MHD_Connection* connection, void** place, bool started);
  MHD_Result Answer(MHD_Connection* connection, std::string_view path, std::string_view method);
  MHD_Result Queue(MHD_Connection* connection, unsigned code, MHD_Response* answer);
  MHD_Result AnswerHealth(MHD_Connection* connection, Question question);
  MHD_Result QueueText(MHD_Connection* connection, unsigned code, std::string_view text,
                       const char* allowed_methods = nullptr);
  MHD_Response* Text();  // at most kTextAgeMax old

  const std::string program;
  const Write write;
  const Health health;
  const Clock& clock;
  MHD_Daemon* daemon = nullptr;
  std::string last_error;  // the library's last message during startup
  int events = -1;         // the library's epoll
  net::Listening listening;
  std::atomic<bool> stopping{false};
  std::thread thread;
  // Only for the server's thread. Connections that are being served may still refer to an older
  // response.
  std::array<Watched, kConnectionsMax> watched;
  HttpCounts counts;
  MHD_Response* response = nullptr;
  TimeNs response_since = 0;
};

void MetricsServer::Impl::Run() {
  NameThisThread("metrics");
  std::vector<pollfd> items{{events, POLLIN, 0}};
  for (const Descriptor& each : listening.sockets) items.push_back({each.get(), POLLIN, 0});
  while (!stopping.load(std::memory_order_relaxed)) {
    // Without room, connections wait in the kernel.
    poll(items.data(), HasRoom() ? items.size() : 1, kWaitMs);
    for (std::size_t i = 1; i < items.size(); ++i) {
      if (std::exchange(items[i].revents, short{0}) != 0) AcceptAll(items[i].fd);
    }
    MHD_run_wait(daemon, 0);
    CutSlowConnections();
  }
}

void MetricsServer::Impl::AcceptAll(int from) {
  while (HasRoom()) {
    net::SocketAddress peer;
    peer.bytes = sizeof peer.storage;
    const int connection = accept4(from, peer.get(), &peer.bytes, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (connection < 0) return;
    // On failure, for example without memory, the library has closed it.
    MHD_add_connection(daemon, connection, peer.get(), peer.bytes);
  }
}

bool MetricsServer::Impl::HasRoom() const {
  return std::any_of(watched.begin(), watched.end(),
                     [](const Watched& each) { return each.socket < 0; });
}

void MetricsServer::Impl::CutSlowConnections() {
  const TimeNs now = clock.Now();
  for (Watched& each : watched) {
    if (each.socket < 0) continue;
    if (now - each.since < (each.asked ? kAnswerTimeout : kRequestTimeout)) continue;
    // The library sees the end of the stream at once and closes the connection.
    if (shutdown(each.socket, SHUT_RDWR) == 0) ++counts.connections_cut;
    each.since = now;
  }
}

void MetricsServer::Impl::Watch(MHD_Connection* connection, void** place, bool started) {
  if (!started) {
    if (*place != nullptr) *static_cast<Watched*>(*place) = {};
    return;
  }
  const MHD_ConnectionInfo* info =
      MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
  PHUB_CHECK(info != nullptr);
  for (Watched& each : watched) {
    if (each.socket >= 0) continue;
    each = {info->connect_fd, clock.Now(), false};
    *place = &each;
    return;
  }
  PHUB_CHECK(false, "more than {} connections", kConnectionsMax);
}

MHD_Response* MetricsServer::Impl::Text() {
  const TimeNs now = clock.Now();
  if (response != nullptr && now - response_since < kTextAgeMax) return response;
  if (response != nullptr) MHD_destroy_response(response);
  std::string text = write(counts);
  response = MHD_create_response_from_buffer(text.size(), text.data(), MHD_RESPMEM_MUST_COPY);
  PHUB_CHECK(response != nullptr);
  MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, kTextFormatContentType);
  MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
  response_since = now;
  return response;
}

MHD_Result MetricsServer::Impl::Queue(MHD_Connection* connection, unsigned code,
                                      MHD_Response* answer) {
  ++counts.answers[code];
  return MHD_queue_response(connection, code, answer);
}

MHD_Result MetricsServer::Impl::QueueText(MHD_Connection* connection, unsigned code,
                                          std::string_view text, const char* allowed_methods) {
  MHD_Response* const answer = MHD_create_response_from_buffer(
      text.size(), const_cast<char*>(text.data()), MHD_RESPMEM_MUST_COPY);
  PHUB_CHECK(answer != nullptr);
  MHD_add_response_header(answer, MHD_HTTP_HEADER_CONTENT_TYPE, "text/plain; charset=utf-8");
  MHD_add_response_header(answer, MHD_HTTP_HEADER_CONNECTION, "close");
  if (allowed_methods != nullptr) {
    MHD_add_response_header(answer, MHD_HTTP_HEADER_ALLOW, allowed_methods);
  }
  const MHD_Result queued = Queue(connection, code, answer);
  MHD_destroy_response(answer);
  return queued;
}

MHD_Result MetricsServer::Impl::AnswerHealth(MHD_Connection* connection, Question question) {
  const absl::Status status = health(question);
  if (status.ok()) return QueueText(connection, MHD_HTTP_OK, "ok\n");
  return QueueText(connection, MHD_HTTP_SERVICE_UNAVAILABLE, std::string(status.message()) + "\n");
}

// Called once the header is complete. A request body is never read.
MHD_Result MetricsServer::Impl::Answer(MHD_Connection* connection, std::string_view path,
                                       std::string_view method) {
  const MHD_ConnectionInfo* info =
      MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
  if (info != nullptr && info->socket_context != nullptr) {
    static_cast<Watched*>(info->socket_context)->asked = true;
  }
  if (path != kPath && path != kAlivePath && path != kReadyPath) {
    return QueueText(
        connection, MHD_HTTP_NOT_FOUND,
        program + "'s metrics are at /metrics, and its health at /healthz and /readyz\n");
  }
  if (method != MHD_HTTP_METHOD_GET && method != MHD_HTTP_METHOD_HEAD) {
    return QueueText(connection, MHD_HTTP_METHOD_NOT_ALLOWED,
                     std::string(path) + " accepts only GET and HEAD\n", "GET, HEAD");
  }
  if (path == kAlivePath) return AnswerHealth(connection, Question::kAlive);
  if (path == kReadyPath) return AnswerHealth(connection, Question::kReady);
  return Queue(connection, MHD_HTTP_OK, Text());
}

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Create(const std::string& program,
                                                                     const std::string& host,
                                                                     std::uint16_t port,
                                                                     Write write, Health health,
                                                                     const Clock& clock) {
  auto listening = net::Listen(host, port, {.backlog = kBacklog});
  if (!listening.ok()) return listening.status();
  auto impl = std::make_unique<Impl>(program, std::move(write), std::move(health), clock);
  impl->listening = *std::move(listening);

  const MHD_AccessHandlerCallback answer = [](void* self, MHD_Connection* connection,
                                              const char* path, const char* method, const char*,
                                              const char*, std::size_t*, void**) {
    return static_cast<Impl*>(self)->Answer(connection, path, method);
  };
  const MHD_NotifyConnectionCallback watch = [](void* self, MHD_Connection* connection,
                                                void** place, MHD_ConnectionNotificationCode code) {
    static_cast<Impl*>(self)->Watch(connection, place, code == MHD_CONNECTION_NOTIFY_STARTED);
  };
  const MHD_LogCallback note = [](void* self, const char* format, va_list arguments) {
    std::array<char, 256> line{};
    std::vsnprintf(line.data(), line.size(), format, arguments);
    static_cast<Impl*>(self)->last_error = line.data();
  };
  // The library can listen on one socket only.
  impl->daemon = MHD_start_daemon(
      MHD_USE_EPOLL | MHD_USE_ERROR_LOG | MHD_USE_NO_LISTEN_SOCKET, 0, nullptr, nullptr, answer,
      impl.get(), MHD_OPTION_EXTERNAL_LOGGER, note, impl.get(), MHD_OPTION_CONNECTION_LIMIT,
      unsigned{kConnectionsMax}, MHD_OPTION_CONNECTION_MEMORY_LIMIT, kConnectionMemoryBytes,
      MHD_OPTION_NOTIFY_CONNECTION, watch, impl.get(), MHD_OPTION_END);
  const MHD_DaemonInfo* const info =
      impl->daemon == nullptr ? nullptr
                              : MHD_get_daemon_info(impl->daemon, MHD_DAEMON_INFO_EPOLL_FD);
  if (info == nullptr) {
    std::string& why = impl->last_error;
    while (!why.empty() && why.back() == '\n') why.pop_back();
    return absl::UnavailableError(fmt::format("the HTTP server cannot start: {}", why));
  }
  impl->events = info->epoll_fd;
  const absl::Status started =
      StartThread(impl->thread, "metrics", [serving = impl.get()] { serving->Run(); });
  if (!started.ok()) return started;
  return std::unique_ptr<MetricsServer>(new MetricsServer(std::move(impl)));
}

MetricsServer::MetricsServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
MetricsServer::~MetricsServer() = default;
std::uint16_t MetricsServer::port() const { return impl_->listening.port; }
const std::vector<net::SocketAddress>& MetricsServer::addresses() const {
  return impl_->listening.addresses;
}

}  // namespace phub::http
