// A non-blocking stream socket of the front: a client's, with or without TLS, or an upstream's.
// One thread.
#pragma once

#include <openssl/ssl.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/descriptor.h"

namespace phub::server {

struct FreeSsl {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  void operator()(SSL* session) const { SSL_free(session); }
};
// Shared with the connections that use it, so that a newer one can replace it at any time.
using TlsContext = std::shared_ptr<SSL_CTX>;

// Null if certificate, key and authorities cannot be used; `why` says what OpenSSL found wrong.
// Sessions are never resumed: phub's connections are long, and each certificate is checked against
// the authorities that are loaded now.
TlsContext MakeTlsContext(const std::string& certificate, const std::string& key,
                          const std::string& authorities, std::string& why);

class WireSocket {
 public:
  WireSocket() = default;
  explicit WireSocket(Descriptor socket) : socket_(std::move(socket)) {}
  // Starts TLS as the server. False: out of memory.
  bool StartTls(const TlsContext& context);

  int get() const { return socket_.get(); }
  explicit operator bool() const { return static_cast<bool>(socket_); }

  enum class State { kDone, kBlocked, kEnded };
  // Continues the handshake; kDone without TLS. kEnded also if the client has not agreed on
  // HTTP/2.
  State Handshake();
  State Read(char* bytes, std::size_t size, std::size_t& done);
  State Write(const char* bytes, std::size_t size, std::size_t& done);
  // TLS has data that epoll does not report.
  bool HasPending() const { return session_ != nullptr && SSL_pending(session_.get()) > 0; }
  void ShutDownWriting();  // the peer reads what was sent, and then the end
  // Ends TLS as far as possible without waiting, and closes.
  void Close();

  struct Certificate {
    std::vector<std::string> uris;
    std::int64_t end = 0;  // seconds since 1970
  };
  // The client's verified certificate.
  std::optional<Certificate> PeerCertificate() const;

 private:
  State StateOf(int result);

  Descriptor socket_;
  TlsContext context_;
  std::unique_ptr<SSL, FreeSsl> session_;
  bool shaken_ = false;
};

}  // namespace phub::server
