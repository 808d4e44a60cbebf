#include "server/front/wire_socket.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <string_view>

namespace phub::server {
namespace {

constexpr unsigned char kHttp2[] = {2, 'h', '2'};

struct FreeParts {
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(GENERAL_NAMES* names) const { GENERAL_NAMES_free(names); }
};
template <typename Type>
using Part = std::unique_ptr<Type, FreeParts>;

Part<BIO> ReaderOf(const std::string& text) {
  return Part<BIO>(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}
Part<X509> NextCertificate(BIO* reader) {
  return Part<X509>(PEM_read_bio_X509(reader, nullptr, nullptr, nullptr));
}

std::string LastError() {
  char text[256];
  ERR_error_string_n(ERR_peek_last_error(), text, sizeof text);
  ERR_clear_error();
  return text;
}

int ChooseHttp2(SSL*, const unsigned char** chosen, unsigned char* size,
                const unsigned char* offered, unsigned offered_size, void*) {
  unsigned char* selected = nullptr;
  if (SSL_select_next_proto(&selected, size, kHttp2, sizeof kHttp2, offered, offered_size) !=
      OPENSSL_NPN_NEGOTIATED) {
    return SSL_TLSEXT_ERR_ALERT_FATAL;
  }
  *chosen = selected;
  return SSL_TLSEXT_ERR_OK;
}

bool UseChain(SSL_CTX* context, const std::string& chain) {
  const Part<BIO> reader = ReaderOf(chain);
  const Part<X509> own = NextCertificate(reader.get());
  if (own == nullptr || SSL_CTX_use_certificate(context, own.get()) != 1) return false;
  for (Part<X509> next = NextCertificate(reader.get()); next != nullptr;
       next = NextCertificate(reader.get())) {
    if (SSL_CTX_add0_chain_cert(context, next.get()) != 1) return false;
    static_cast<void>(next.release());  // the context owns it
  }
  ERR_clear_error();
  return true;
}

bool UseKey(SSL_CTX* context, const std::string& pem) {
  const Part<BIO> reader = ReaderOf(pem);
  // Without this callback OpenSSL would ask the terminal for a passphrase.
  const auto no_passphrase = [](char*, int, int, void*) { return 0; };
  const Part<EVP_PKEY> key(PEM_read_bio_PrivateKey(reader.get(), nullptr, no_passphrase, nullptr));
  return key != nullptr && SSL_CTX_use_PrivateKey(context, key.get()) == 1 &&
         SSL_CTX_check_private_key(context) == 1;
}

bool UseAuthorities(SSL_CTX* context, const std::string& pem) {
  const Part<BIO> reader = ReaderOf(pem);
  X509_STORE* const store = SSL_CTX_get_cert_store(context);
  int count = 0;
  for (Part<X509> next = NextCertificate(reader.get()); next != nullptr;
       next = NextCertificate(reader.get())) {
    if (X509_STORE_add_cert(store, next.get()) != 1) return false;
    if (SSL_CTX_add_client_CA(context, next.get()) != 1) return false;
    ++count;
  }
  ERR_clear_error();
  return count > 0;
}

}  // namespace

TlsContext MakeTlsContext(const std::string& certificate, const std::string& key,
                          const std::string& authorities, std::string& why) {
  TlsContext context(SSL_CTX_new(TLS_server_method()), FreeSsl());
  if (context == nullptr) return nullptr;
  SSL_CTX* const raw = context.get();
  SSL_CTX_set_min_proto_version(raw, TLS1_2_VERSION);
  SSL_CTX_set_options(raw, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                               SSL_OP_IGNORE_UNEXPECTED_EOF);
  SSL_CTX_set_session_cache_mode(raw, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(raw, 0);
  SSL_CTX_set_mode(raw, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE |
                            SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_alpn_select_cb(raw, ChooseHttp2, nullptr);
  if (!UseChain(raw, certificate) || !UseKey(raw, key)) {
    why = LastError();
    return nullptr;
  }
  if (authorities.empty()) return context;
  if (!UseAuthorities(raw, authorities)) {
    why = LastError();
    return nullptr;
  }
  // A certificate is optional, since a caller may use a token. One that is presented must be valid.
  SSL_CTX_set_verify(raw, SSL_VERIFY_PEER, nullptr);
  return context;
}

bool WireSocket::StartTls(const TlsContext& context) {
  context_ = context;
  session_.reset(SSL_new(context.get()));
  if (session_ == nullptr || SSL_set_fd(session_.get(), socket_.get()) != 1) return false;
  SSL_set_accept_state(session_.get());
  return true;
}

WireSocket::State WireSocket::StateOf(int result) {
  const int error = SSL_get_error(session_.get(), result);
  ERR_clear_error();
  const bool again = error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE;
  return again ? State::kBlocked : State::kEnded;
}

WireSocket::State WireSocket::Handshake() {
  if (session_ == nullptr || shaken_) return State::kDone;
  ERR_clear_error();
  const int result = SSL_do_handshake(session_.get());
  if (result != 1) return StateOf(result);
  const unsigned char* chosen = nullptr;
  unsigned size = 0;
  SSL_get0_alpn_selected(session_.get(), &chosen, &size);
  if (size == 0) return State::kEnded;
  shaken_ = true;
  return State::kDone;
}

WireSocket::State WireSocket::Read(char* bytes, std::size_t size, std::size_t& done) {
  done = 0;
  if (session_ != nullptr) {
    ERR_clear_error();
    const int result = SSL_read_ex(session_.get(), bytes, size, &done);
    return result == 1 ? State::kDone : StateOf(result);
  }
  const ssize_t result = recv(socket_.get(), bytes, size, MSG_DONTWAIT);
  if (result < 0) {
    return errno == EAGAIN || errno == EINTR ? State::kBlocked : State::kEnded;
  }
  done = static_cast<std::size_t>(result);
  return result == 0 ? State::kEnded : State::kDone;
}

WireSocket::State WireSocket::Write(const char* bytes, std::size_t size, std::size_t& done) {
  done = 0;
  if (session_ != nullptr) {
    ERR_clear_error();
    const int result = SSL_write_ex(session_.get(), bytes, size, &done);
    return result == 1 ? State::kDone : StateOf(result);
  }
  const ssize_t result = send(socket_.get(), bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (result < 0) {
    return errno == EAGAIN || errno == EINTR ? State::kBlocked : State::kEnded;
  }
  done = static_cast<std::size_t>(result);
  return State::kDone;
}

void WireSocket::ShutDownWriting() {
  if (session_ != nullptr && shaken_) {
    ERR_clear_error();
    SSL_shutdown(session_.get());
    ERR_clear_error();
  }
  shutdown(socket_.get(), SHUT_WR);
}

void WireSocket::Close() {
  session_.reset();
  socket_.Reset();
}

std::optional<WireSocket::Certificate> WireSocket::PeerCertificate() const {
  if (session_ == nullptr || SSL_get_verify_result(session_.get()) != X509_V_OK) return {};
  const Part<X509> own(SSL_get1_peer_certificate(session_.get()));
  if (own == nullptr) return {};
  Certificate certificate;
  std::tm end{};
  if (ASN1_TIME_to_tm(X509_get0_notAfter(own.get()), &end) == 1) certificate.end = timegm(&end);
  const Part<GENERAL_NAMES> names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(own.get(), NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* const name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_URI) continue;
    const ASN1_IA5STRING* const uri = name->d.uniformResourceIdentifier;
    certificate.uris.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(uri)),
                                  static_cast<std::size_t>(ASN1_STRING_length(uri)));
  }
  ERR_clear_error();
  return certificate;
}

}  // namespace phub::server
