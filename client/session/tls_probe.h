// A TLS handshake with a daemon's control port, to find out why gRPC's own handshake failed. Any
// thread.
#pragma once

#include <openssl/ssl.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "client/session/channel.h"
#include "common/net/dial.h"

namespace phub::client {

class TlsProbe {
 public:
  enum class Result {
    kOk,      // the certificate is valid
    kNoTls,   // the peer does not answer, or not in TLS
    kFailed,  // it speaks TLS; failure() says what is wrong
  };

  // `verify`: check the certificate as gRPC does, with the caller's files. Otherwise any
  // certificate will do.
  TlsProbe(const Credentials& credentials, std::string host, bool verify);
  ~TlsProbe();
  TlsProbe(const TlsProbe&) = delete;
  TlsProbe& operator=(const TlsProbe&) = delete;

  // `socket` is connected and non-blocking, and outlives the object.
  Result Handshake(int socket, const net::Deadline& deadline);
  // Says what is wrong and what to do: "its certificate expired on ...".
  const std::string& failure() const { return failure_; }

  // After kOk. Exchange sends the bytes and receives an answer. Returns the number of bytes that
  // were received, 0 if the peer closed the connection or time is up. If the peer refused the
  // caller's certificate, failure() is set.
  std::size_t Exchange(std::span<const std::byte> request, std::span<std::byte> answer,
                       const net::Deadline& deadline);

 private:
  struct ContextDeleter {
    void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  };
  struct SessionDeleter {
    void operator()(SSL* session) const { SSL_free(session); }
  };

  bool LoadFiles();
  void SetName();
  static int OnVerified(int ok, X509_STORE_CTX* store);
  void ExplainCertificate(int error, X509* certificate);
  std::size_t Receive(std::span<std::byte> answer, const net::Deadline& deadline);
  // Waits as SSL_get_error() asks. False if waiting does not help.
  bool Wait(int result, const net::Deadline& deadline);

  const Credentials& credentials_;
  const std::string host_;
  const bool verify_;
  int socket_ = -1;
  std::string failure_;
  std::unique_ptr<SSL_CTX, ContextDeleter> context_;
  std::unique_ptr<SSL, SessionDeleter> session_;
};

}  // namespace phub::client
