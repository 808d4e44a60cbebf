#include "common/transport/tls/tls_context.h"

#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/base/check.h"
#include "common/transport/tls/tls_session.h"

namespace phub::transport {

// OpenSSL's callbacks. They do not throw.
struct SessionSide {
  static TlsSession& Of(BIO* bio) { return *static_cast<TlsSession*>(BIO_get_data(bio)); }
  static TlsSession& Of(SSL* ssl) { return *static_cast<TlsSession*>(SSL_get_app_data(ssl)); }
  static int Read(BIO* bio, char* into, int bytes_max);
  static int Write(BIO* bio, const char* from, int bytes);
  static long Control(BIO* bio, int command, long number, void* pointer);
  static int FindKey(SSL* ssl, const unsigned char* name, std::size_t bytes, SSL_SESSION** found);
  static int UseKey(SSL* ssl, const EVP_MD* digest, const unsigned char** name, std::size_t* bytes,
                    SSL_SESSION** used);
};

int SessionSide::Read(BIO* bio, char* into, int bytes_max) {
  TlsSession& owner = Of(bio);
  BIO_clear_retry_flags(bio);
  if (!owner.first_.empty()) {
    const std::size_t bytes = std::min(owner.first_.size(), static_cast<std::size_t>(bytes_max));
    std::memcpy(into, owner.first_.data(), bytes);
    owner.first_ = owner.first_.subspan(bytes);
    return static_cast<int>(bytes);
  }
  if (owner.overhead_bytes_ > TlsSession::kOverheadBytesMax) {
    owner.end_ = TlsSession::End::kReset;
    return -1;
  }
  ssize_t got = -1;
  if (!owner.drained_) {
    do {
      got = recv(owner.socket_, into, static_cast<std::size_t>(bytes_max), MSG_DONTWAIT);
    } while (got < 0 && errno == EINTR);
    if (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK) {
      owner.end_ = TlsSession::End::kReset;
      return -1;
    }
  }
  if (got < 0) {
    owner.drained_ = true;
    BIO_set_retry_read(bio);
    return -1;
  }
  // The end of the stream without TLS's close alert, which a killed process does not send. An
  // attacker who cuts off a lane gains nothing: messages have lengths, and the end of a job is
  // reported over the control plane.
  if (got == 0) owner.end_ = TlsSession::End::kClosed;
  owner.overhead_bytes_ += static_cast<std::size_t>(got);
  // See TcpConnection::Readv: bytes that arrive after a short read cause a new edge.
  if (got < bytes_max && !owner.hangup_) owner.drained_ = true;
  return static_cast<int>(got);
}

int SessionSide::Write(BIO* bio, const char* from, int bytes) {
  TlsSession& owner = Of(bio);
  BIO_clear_retry_flags(bio);
  if (owner.write_failed_) return -1;
  const auto wanted = static_cast<std::size_t>(bytes);
  // Data is encrypted only while there is room. So this is an answer to a peer that changes keys
  // faster than it reads.
  if (wanted > owner.room()) {
    owner.write_failed_ = true;
    return -1;
  }
  std::memcpy(owner.out_.get() + owner.out_end_, from, wanted);
  owner.out_end_ += wanted;
  return bytes;
}

long SessionSide::Control(BIO* bio, int command, long, void*) {
  if (command == BIO_CTRL_FLUSH) return 1;
  if (command == BIO_CTRL_EOF) return Of(bio).end_ != TlsSession::End::kOpen ? 1 : 0;
  return 0;
}

namespace {

// TLS_AES_128_GCM_SHA256: the fastest cipher on most processors; the key requires SHA-256.
constexpr unsigned char kCipher[] = {0x13, 0x01};
constexpr const char* kCipherName = "TLS_AES_128_GCM_SHA256";

BIO_METHOD* SocketSide() {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "phub lane");
    PHUB_CHECK(made != nullptr);
    BIO_meth_set_read(made, SessionSide::Read);
    BIO_meth_set_write(made, SessionSide::Write);
    BIO_meth_set_ctrl(made, SessionSide::Control);
    return made;
  }();
  return method;
}

// Wraps a key in the form that OpenSSL requires: a session with nothing but the secret.
SSL_SESSION* SessionOf(SSL* ssl, const LaneKey& key) {
  SSL_SESSION* session = SSL_SESSION_new();
  const SSL_CIPHER* cipher = SSL_CIPHER_find(ssl, kCipher);
  PHUB_CHECK(session != nullptr && cipher != nullptr, "this OpenSSL has no {}", kCipherName);
  const auto* bytes = reinterpret_cast<const unsigned char*>(key.data());
  const bool made = SSL_SESSION_set1_master_key(session, bytes, key.size()) == 1 &&
                    SSL_SESSION_set_cipher(session, cipher) == 1 &&
                    SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1;
  PHUB_CHECK(made);
  return session;
}

SSL_CTX* MakeContext(bool is_client) {
  SSL_CTX* context = SSL_CTX_new(is_client ? TLS_client_method() : TLS_server_method());
  PHUB_CHECK(context != nullptr);
  PHUB_CHECK(SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1);
  PHUB_CHECK(SSL_CTX_set_ciphersuites(context, kCipherName) == 1);
  PHUB_CHECK(SSL_CTX_set1_groups_list(context, "X25519:P-256") == 1);
  SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION);
  SSL_CTX_clear_options(context, SSL_OP_ENABLE_MIDDLEBOX_COMPAT);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(context, 0);
  SSL_CTX_set_max_early_data(context, 0);
  // Makes reading return after a record without data, so that such records can be counted.
  SSL_CTX_clear_mode(context, SSL_MODE_AUTO_RETRY);
  if (is_client) {
    // Reject every certificate: only a peer that has the key can be trusted.
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
    SSL_CTX_set_psk_use_session_callback(context, SessionSide::UseKey);
  } else {
    SSL_CTX_set_psk_find_session_callback(context, SessionSide::FindKey);
  }
  return context;
}

}  // namespace

int SessionSide::FindKey(SSL* ssl, const unsigned char* name, std::size_t bytes,
                         SSL_SESSION** found) {
  TlsSession& owner = Of(ssl);
  *found = nullptr;
  LaneKeyName asked;
  if (bytes != asked.size() || !owner.finder_) return 1;
  std::memcpy(asked.data(), name, bytes);
  LaneKey key;
  if (owner.finder_(asked, key)) *found = SessionOf(ssl, key);
  OPENSSL_cleanse(key.data(), key.size());
  return 1;  // without a key the handshake fails, because there is no certificate
}

int SessionSide::UseKey(SSL* ssl, const EVP_MD*, const unsigned char** name, std::size_t* bytes,
                        SSL_SESSION** used) {
  TlsSession& owner = Of(ssl);
  *name = reinterpret_cast<const unsigned char*>(owner.name_.data());
  *bytes = owner.name_.size();
  *used = SessionOf(ssl, owner.key_);
  return 1;
}

namespace tls {

ssl_st* NewSession(bool is_client, TlsSession& owner) {
  static SSL_CTX* const client = MakeContext(/*is_client=*/true);
  static SSL_CTX* const daemon = MakeContext(/*is_client=*/false);
  SSL* ssl = SSL_new(is_client ? client : daemon);
  BIO* bio = BIO_new(SocketSide());
  PHUB_CHECK(ssl != nullptr && bio != nullptr);
  BIO_set_data(bio, &owner);
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl, bio, bio);
  SSL_set_app_data(ssl, &owner);
  is_client ? SSL_set_connect_state(ssl) : SSL_set_accept_state(ssl);
  return ssl;
}

}  // namespace tls
}  // namespace phub::transport
