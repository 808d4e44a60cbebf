#include "common/http/http_server.h"

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
#include "common/net/listen.h"

namespace phub::http {
namespace {

constexpr int kBacklog = 64;
// The thread wakes at least this often to close slow connections and to check whether to stop.
constexpr int kWaitMs = 100;

}  // namespace

HttpReply TextReply(unsigned code, std::string text) {
  return {code, std::make_shared<const std::string>(std::move(text))};
}

struct HttpServer::Impl {
  // An accepted connection.
  struct Watched {
    int socket = -1;  // -1: the place is free
    TimeNs since = 0;
    bool asked = false;  // its request is complete
  };

  Impl(Handler handler_given, const Clock& clock_given)
      : handler(std::move(handler_given)), clock(clock_given) {}
  ~Impl() {
    stopping.store(true, std::memory_order_relaxed);
    if (thread.joinable()) thread.join();
    if (daemon != nullptr) MHD_stop_daemon(daemon);
  }

  void Run();
  void AcceptAll(int from);
  bool HasRoom() const;
  void CutSlowConnections();
  void Watch(MHD_Connection* connection, void** place, bool started);
  MHD_Result Answer(MHD_Connection* connection, std::string_view path, std::string_view method);
  MHD_Result Queue(MHD_Connection* connection, const HttpReply& reply);

  const Handler handler;
  const Clock& clock;
  MHD_Daemon* daemon = nullptr;
  std::string last_error;  // the library's last message during startup
  int events = -1;         // the library's epoll
  net::Listening listening;
  std::atomic<bool> stopping{false};
  std::thread thread;
  const char* thread_name = "";
  // Only for the server's thread.
  std::array<Watched, kConnectionsMax> watched;
  HttpCounts counts;
};

void HttpServer::Impl::Run() {
  NameThisThread(thread_name);
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

void HttpServer::Impl::AcceptAll(int from) {
  while (HasRoom()) {
    net::SocketAddress peer;
    peer.bytes = sizeof peer.storage;
    const int connection = accept4(from, peer.get(), &peer.bytes, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (connection < 0) return;
    // On failure, for example without memory, the library has closed it.
    MHD_add_connection(daemon, connection, peer.get(), peer.bytes);
  }
}

bool HttpServer::Impl::HasRoom() const {
  return std::any_of(watched.begin(), watched.end(),
                     [](const Watched& each) { return each.socket < 0; });
}

void HttpServer::Impl::CutSlowConnections() {
  const TimeNs now = clock.Now();
  for (Watched& each : watched) {
    if (each.socket < 0) continue;
    if (now - each.since < (each.asked ? kAnswerTimeout : kRequestTimeout)) continue;
    // The library sees the end of the stream at once and closes the connection.
    if (shutdown(each.socket, SHUT_RDWR) == 0) ++counts.connections_cut;
    each.since = now;
  }
}

void HttpServer::Impl::Watch(MHD_Connection* connection, void** place, bool started) {
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

// Connections that are being served keep the body, so its text is never copied.
MHD_Result HttpServer::Impl::Queue(MHD_Connection* connection, const HttpReply& reply) {
  auto* const kept = new std::shared_ptr<const std::string>(reply.body);
  const MHD_ContentReaderFreeCallback release = [](void* body) {
    delete static_cast<std::shared_ptr<const std::string>*>(body);
  };
  MHD_Response* const answer = MHD_create_response_from_buffer_with_free_callback_cls(
      (*kept)->size(), const_cast<char*>((*kept)->data()), release, kept);
  PHUB_CHECK(answer != nullptr);
  MHD_add_response_header(answer, MHD_HTTP_HEADER_CONTENT_TYPE, reply.content_type.c_str());
  MHD_add_response_header(answer, MHD_HTTP_HEADER_CONNECTION, "close");
  for (const auto& [name, value] : reply.headers)
    MHD_add_response_header(answer, name.c_str(), value.c_str());
  ++counts.answers[reply.code];
  const MHD_Result queued = MHD_queue_response(connection, reply.code, answer);
  MHD_destroy_response(answer);
  return queued;
}

// Called once the header is complete. A request body is never read.
MHD_Result HttpServer::Impl::Answer(MHD_Connection* connection, std::string_view path,
                                    std::string_view method) {
  const MHD_ConnectionInfo* info =
      MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
  if (info != nullptr && info->socket_context != nullptr) {
    static_cast<Watched*>(info->socket_context)->asked = true;
  }
  const auto value = [connection](MHD_ValueKind kind,
                                  const char* name) -> std::optional<std::string_view> {
    const char* const found = MHD_lookup_connection_value(connection, kind, name);
    if (found == nullptr) return std::nullopt;
    return found;
  };
  HttpReply reply = handler({path, value(MHD_HEADER_KIND, MHD_HTTP_HEADER_HOST),
                             value(MHD_HEADER_KIND, MHD_HTTP_HEADER_AUTHORIZATION),
                             [&](const char* name) { return value(MHD_GET_ARGUMENT_KIND, name); }},
                            counts);
  const bool reads = method == MHD_HTTP_METHOD_GET || method == MHD_HTTP_METHOD_HEAD;
  if (!reads && reply.code == MHD_HTTP_OK) {
    reply =
        TextReply(MHD_HTTP_METHOD_NOT_ALLOWED, std::string(path) + " accepts only GET and HEAD\n");
    reply.headers.emplace_back(MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
  }
  return Queue(connection, reply);
}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Create(const Options& options,
                                                               Handler handler,
                                                               const Clock& clock) {
  auto listening = net::Listen(options.host, options.port, {.backlog = kBacklog});
  if (!listening.ok()) return listening.status();
  auto impl = std::make_unique<Impl>(std::move(handler), clock);
  impl->thread_name = options.thread_name;
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
  impl->daemon =
      MHD_start_daemon(MHD_USE_EPOLL | MHD_USE_ERROR_LOG | MHD_USE_NO_LISTEN_SOCKET, 0, nullptr,
                       nullptr, answer, impl.get(), MHD_OPTION_EXTERNAL_LOGGER, note, impl.get(),
                       MHD_OPTION_CONNECTION_LIMIT, unsigned{kConnectionsMax},
                       MHD_OPTION_CONNECTION_MEMORY_LIMIT, options.connection_memory_bytes,
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
      StartThread(impl->thread, options.thread_name, [serving = impl.get()] { serving->Run(); });
  if (!started.ok()) return started;
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() = default;
std::uint16_t HttpServer::port() const { return impl_->listening.port; }
const std::vector<net::SocketAddress>& HttpServer::addresses() const {
  return impl_->listening.addresses;
}

}  // namespace phub::http
