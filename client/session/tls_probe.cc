#include "client/session/tls_probe.h"

#include <arpa/inet.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <utility>

namespace phub::client {
namespace {

constexpr DurationNs kAlertTimeout = 300 * kMillisecond;
constexpr std::array<unsigned char, 3> kHttp2 = {2, 'h', '2'};

// Blocks SIGPIPE in this thread. OpenSSL writes to sockets with write(), and if the peer has closed
// the connection, the signal would end the user's program.
class SigpipeBlock {
 public:
  SigpipeBlock() {
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    sigemptyset(&signal_);
    sigaddset(&signal_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &signal_, &before_);
  }
  ~SigpipeBlock() {
    const timespec now{};
    if (!was_pending_) sigtimedwait(&signal_, nullptr, &now);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  SigpipeBlock(const SigpipeBlock&) = delete;
  SigpipeBlock& operator=(const SigpipeBlock&) = delete;

 private:
  sigset_t signal_;
  sigset_t before_;
  bool was_pending_ = false;
};

std::string TimeText(const std::tm& time) { return fmt::format("{:%Y-%m-%d %H:%M} UTC", time); }

std::string TimeText(const ASN1_TIME* time) {
  std::tm parts{};
  return ASN1_TIME_to_tm(time, &parts) == 1 ? TimeText(parts) : "an unknown time";
}

std::string NowText() { return TimeText(fmt::gmtime(std::time(nullptr))); }

// The names and addresses that the certificate is for.
std::string NamesOf(X509* certificate) {
  auto* const names = static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr));
  std::string text;
  for (int i = 0; i < sk_GENERAL_NAME_num(names); ++i) {
    const GENERAL_NAME* const name = sk_GENERAL_NAME_value(names, i);
    std::string one;
    if (name->type == GEN_DNS) {
      one.assign(reinterpret_cast<const char*>(ASN1_STRING_get0_data(name->d.dNSName)),
                 static_cast<std::size_t>(ASN1_STRING_length(name->d.dNSName)));
    } else if (name->type == GEN_IPADD) {
      const ASN1_OCTET_STRING* const bytes = name->d.iPAddress;
      char address[INET6_ADDRSTRLEN] = {};
      const int family = ASN1_STRING_length(bytes) == 4 ? AF_INET : AF_INET6;
      inet_ntop(family, ASN1_STRING_get0_data(bytes), address, sizeof address);
      one = address;
    }
    if (!one.empty()) text += fmt::format("{}{}", text.empty() ? "" : ", ", one);
  }
  GENERAL_NAMES_free(names);
  return text.empty() ? "no host" : text;
}

std::string LastReason() {
  const unsigned long error = ERR_peek_last_error();
  const char* const reason = ERR_reason_error_string(error);
  return reason != nullptr ? reason : "no reason given";
}

// An alert of the peer is a sign that it speaks TLS.
bool IsAlert(unsigned long error) {
  return ERR_GET_LIB(error) == ERR_LIB_SSL && ERR_GET_REASON(error) >= SSL_AD_REASON_OFFSET;
}

}  // namespace

TlsProbe::TlsProbe(const Credentials& credentials, std::string host, bool verify)
    : credentials_(credentials), host_(std::move(host)), verify_(verify) {}
TlsProbe::~TlsProbe() = default;

bool TlsProbe::LoadFiles() {
  const auto failed = [&](const std::string& path, const char* what) {
    failure_ = fmt::format("{} has no usable {}: {}", path, what, LastReason());
    return false;
  };
  const std::string& authority = credentials_.ca_file;
  if (authority.empty()) {
    SSL_CTX_set_default_verify_paths(context_.get());
  } else if (SSL_CTX_load_verify_locations(context_.get(), authority.c_str(), nullptr) != 1) {
    return failed(authority, "certificate of an authority");
  }
  if (credentials_.certificate.empty()) return true;
  if (SSL_CTX_use_certificate_chain_file(context_.get(), credentials_.certificate.c_str()) != 1) {
    return failed(credentials_.certificate, "certificate");
  }
  if (SSL_CTX_use_PrivateKey_file(context_.get(), credentials_.key.c_str(), SSL_FILETYPE_PEM) !=
      1) {
    return failed(credentials_.key, "private key for the certificate");
  }
  return true;
}

void TlsProbe::SetName() {
  const std::string& name = credentials_.server_name.empty() ? host_ : credentials_.server_name;
  if (net::IsNumeric(name)) {
    X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(session_.get()), name.c_str());
    return;
  }
  SSL_set1_host(session_.get(), name.c_str());
  // SSL_set_tlsext_host_name() is a macro with a C cast. OpenSSL copies the name.
  SSL_ctrl(session_.get(), SSL_CTRL_SET_TLSEXT_HOSTNAME, TLSEXT_NAMETYPE_host_name,
           const_cast<char*>(name.c_str()));
}

int TlsProbe::OnVerified(int ok, X509_STORE_CTX* store) {
  if (ok == 1) return 1;
  const auto* const session =
      static_cast<SSL*>(X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx()));
  auto* const self = static_cast<TlsProbe*>(SSL_get_ex_data(session, 0));
  self->ExplainCertificate(X509_STORE_CTX_get_error(store), X509_STORE_CTX_get_current_cert(store));
  return 0;
}

void TlsProbe::ExplainCertificate(int error, X509* certificate) {
  switch (error) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
      failure_ = fmt::format(
          "its certificate expired on {}, and this host's clock says {}; issue a new certificate "
          "(phubctl pki issue)",
          TimeText(X509_get0_notAfter(certificate)), NowText());
      return;
    case X509_V_ERR_CERT_NOT_YET_VALID:
      failure_ = fmt::format(
          "its certificate is not valid before {}, and this host's clock says {}; correct the "
          "clock, or issue a new certificate (phubctl pki issue)",
          TimeText(X509_get0_notBefore(certificate)), NowText());
      return;
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
      failure_ = fmt::format(
          "its certificate is for {}, not for the name {}; connect to one of these names, or pass "
          "one as server_name (--server-name)",
          NamesOf(certificate),
          credentials_.server_name.empty() ? host_ : credentials_.server_name);
      return;
    default:
      failure_ = fmt::format(
          "its certificate was not issued by the authority in {} ({}); pass the ca.crt that the "
          "daemon's certificate was issued with (ca_file, --ca-file)",
          credentials_.ca_file.empty() ? "the system's list" : credentials_.ca_file,
          X509_verify_cert_error_string(error));
  }
}

bool TlsProbe::Wait(int result, const net::Deadline& deadline) {
  switch (SSL_get_error(session_.get(), result)) {
    case SSL_ERROR_WANT_READ: return net::WaitSocket(socket_, POLLIN, deadline.at, deadline.clock);
    case SSL_ERROR_WANT_WRITE:
      return net::WaitSocket(socket_, POLLOUT, deadline.at, deadline.clock);
    default: return false;
  }
}

TlsProbe::Result TlsProbe::Handshake(int socket, const net::Deadline& deadline) {
  const SigpipeBlock block;
  socket_ = socket;
  ERR_clear_error();
  context_.reset(SSL_CTX_new(TLS_client_method()));
  if (verify_ && !LoadFiles()) return Result::kFailed;
  SSL_CTX_set_alpn_protos(context_.get(), kHttp2.data(), kHttp2.size());
  session_.reset(SSL_new(context_.get()));
  SSL_set_ex_data(session_.get(), 0, this);
  if (verify_) {
    SSL_set_verify(session_.get(), SSL_VERIFY_PEER, OnVerified);
    SetName();
  }
  SSL_set_fd(session_.get(), socket);
  for (;;) {
    ERR_clear_error();
    const int result = SSL_connect(session_.get());
    if (result == 1) return Result::kOk;
    if (Wait(result, deadline)) continue;
    if (!failure_.empty()) return Result::kFailed;
    if (!IsAlert(ERR_peek_last_error())) return Result::kNoTls;
    failure_ = fmt::format("it refused the TLS handshake: {}", LastReason());
    return Result::kFailed;
  }
}

std::size_t TlsProbe::Receive(std::span<std::byte> answer, const net::Deadline& deadline) {
  for (;;) {
    ERR_clear_error();
    const int got = SSL_read(session_.get(), answer.data(), static_cast<int>(answer.size()));
    if (got > 0) return static_cast<std::size_t>(got);
    if (!Wait(got, deadline)) return 0;
  }
}

std::size_t TlsProbe::Exchange(std::span<const std::byte> request, std::span<std::byte> answer,
                               const net::Deadline& deadline) {
  const SigpipeBlock block;
  // In TLS 1.3 the peer judges the caller's certificate after the handshake. Bytes that it never
  // reads would make its kernel discard the alert, so the alert gets time to arrive first.
  const net::Deadline soon{deadline.clock,
                           std::min(deadline.at, deadline.clock.Now() + kAlertTimeout),
                           deadline.timeout};
  std::size_t got = Receive(answer, soon);
  if (got == 0 && ERR_peek_last_error() == 0 &&
      SSL_write(session_.get(), request.data(), static_cast<int>(request.size())) > 0) {
    got = Receive(answer, deadline);
  }
  if (got > 0) return got;
  if (IsAlert(ERR_peek_last_error())) {
    failure_ = credentials_.certificate.empty()
                   ? fmt::format("it ended the TLS connection: {}", LastReason())
                   : fmt::format("it refused the certificate in {}: {}", credentials_.certificate,
                                 LastReason());
  }
  return 0;
}

}  // namespace phub::client
