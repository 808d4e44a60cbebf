// Clients of the control port that keep no rule.
#pragma once

#include <openssl/ssl.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "common/base/descriptor.h"

namespace phub::process {

// The first message of a TLS client.
std::string ClientHello();

// Writes frames of HTTP/2 over TLS, byte by byte as a test wants.
class RawHttp2 {
 public:
  // From one of this host's addresses (127.x.y.z). Connects, shakes hands, sends preface and
  // settings.
  RawHttp2(std::uint32_t from, std::uint16_t port);
  ~RawHttp2();

  bool ok() const { return ok_; }
  // False: the daemon has closed the connection. Reads and drops what the daemon says.
  bool Send(std::string_view bytes);
  bool Drain();  // false: closed

  static std::string Frame(std::uint8_t type, std::uint8_t flags, std::uint32_t stream,
                           std::string_view payload);
  // A header block without compression.
  static std::string Field(std::string_view name, std::string_view value);
  static std::string CallHeaders(std::string_view path);

  static constexpr std::uint8_t kData = 0, kHeaders = 1, kReset = 3, kSettings = 4, kPing = 6,
                                kWindowUpdate = 8, kContinuation = 9;
  static constexpr std::uint8_t kEndStream = 1, kEndHeaders = 4;

 private:
  Descriptor socket_;
  std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)> context_;
  std::unique_ptr<SSL, void (*)(SSL*)> session_;
  bool ok_ = false;
};

}  // namespace phub::process
