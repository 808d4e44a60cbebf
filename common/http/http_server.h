// An HTTP port that answers GET and HEAD. One thread of its own serves all connections in turn, so
// its clients take bounded memory and at most one thread's time. Core loops are not involved.
//
// Bounds:
//   - at most kConnectionsMax connections; others wait in the kernel
//   - Options::connection_memory_bytes for each connection
//   - one request per connection: sent within kRequestTimeout, and answered within kAnswerTimeout,
//     both counted from the accept
//
// Threads: the owner creates and destroys it; the port's thread calls the handler.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/net/address.h"

namespace phub::http {

// Counts of one port.
struct HttpCounts {
  std::map<unsigned, std::uint64_t> answers;  // [status code]
  std::uint64_t connections_cut = 0;          // timed out while sending a request or reading
};

struct HttpRequest {
  std::string_view path;  // without the query
  // A header's value; nullopt: the request has no such header.
  std::optional<std::string_view> host;
  std::optional<std::string_view> authorization;
  // The decoded value of an argument of the query; nullopt: the query has no such argument.
  std::function<std::optional<std::string_view>(const char* name)> argument;
};

struct HttpReply {
  unsigned code = 200;
  std::shared_ptr<const std::string> body;
  std::string content_type = "text/plain; charset=utf-8";
  std::vector<std::pair<std::string, std::string>> headers = {};
};
HttpReply TextReply(unsigned code, std::string text);

class HttpServer {
 public:
  static constexpr std::uint32_t kConnectionsMax = 64;
  static constexpr DurationNs kRequestTimeout = 3 * kSecond;
  static constexpr DurationNs kAnswerTimeout = 10 * kSecond;

  struct Options {
    std::string host;
    std::uint16_t port = 0;  // 0: any free port
    const char* thread_name = "http";
    std::size_t connection_memory_bytes = 4096;  // a request's header must fit
  };
  using Handler = std::function<HttpReply(const HttpRequest&, const HttpCounts& counts)>;

  // Binds all addresses of the host. `clock` must outlive the server.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Create(const Options& options, Handler handler,
                                                            const Clock& clock);
  ~HttpServer();  // closes every connection
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  std::uint16_t port() const;
  const std::vector<net::SocketAddress>& addresses() const;  // the bound addresses

 private:
  struct Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace phub::http
