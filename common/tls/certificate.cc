#include "common/tls/certificate.h"

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <ctime>
#include <memory>

#include "common/base/clock.h"
#include "common/base/secret_file.h"
#include "common/base/status_text.h"

namespace phub {
namespace {

struct Free {
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};
template <typename Type>
using Owned = std::unique_ptr<Type, Free>;

Owned<BIO> Reader(std::string_view text) {
  return Owned<BIO>(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

Owned<X509> ReadCertificate(std::string_view pem) {
  const Owned<BIO> reader = Reader(pem);
  Owned<X509> certificate(PEM_read_bio_X509(reader.get(), nullptr, nullptr, nullptr));
  ERR_clear_error();
  return certificate;
}

}  // namespace

absl::StatusOr<std::string> UriOf(const CertificateFacts& certificate, std::string_view role,
                                  std::string_view trust_domain) {
  if (certificate.uris.size() != 1) {
    return absl::UnauthenticatedError(
        fmt::format("the certificate has {} URIs in its subject alternative names but must have "
                    "exactly one, such as spiffe://{}/{}/NAME",
                    certificate.uris.size(), trust_domain, role));
  }
  // TLS checked the certificate when the connection was made, which may be long ago.
  if (!certificate.end.has_value() || WallNow() >= *certificate.end) {
    return absl::UnauthenticatedError(
        "the certificate of the connection has expired; reconnect with a valid one");
  }
  return certificate.uris.front();
}

std::optional<WallTimeNs> CertificateEnd(std::string_view pem) {
  const Owned<X509> certificate = ReadCertificate(pem);
  std::tm end{};
  if (certificate == nullptr || ASN1_TIME_to_tm(X509_get0_notAfter(certificate.get()), &end) != 1) {
    return std::nullopt;
  }
  return WallTimeNs{timegm(&end)} * kSecond;
}

absl::Status CheckAuthorityFile(const std::string& path) {
  const absl::StatusOr<std::string> authority = ReadPublicFile(path);
  if (!authority.ok()) return authority.status();
  if (ReadCertificate(*authority) != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(path + " does not begin with a certificate (PEM)");
}

absl::Status CheckTlsFiles(const TlsFiles& files) {
  const auto bad = [](const std::string& path, std::string_view what) {
    return absl::FailedPreconditionError(fmt::format("{} {}", path, what));
  };
  const absl::StatusOr<std::string> chain = ReadPublicFile(files.certificate);
  if (!chain.ok()) return chain.status();
  const Owned<X509> certificate = ReadCertificate(*chain);
  if (certificate == nullptr)
    return bad(files.certificate, "does not begin with a certificate (PEM)");
  const std::optional<WallTimeNs> end = CertificateEnd(*chain);
  if (!end.has_value() || *end <= WallNow()) {
    return bad(files.certificate, "has expired; issue a new one (phubctl pki issue)");
  }
  const absl::StatusOr<std::string> key_text = ReadSecretFile(files.key);
  if (!key_text.ok()) return key_text.status();
  const Owned<BIO> reader = Reader(*key_text);
  // Without this callback OpenSSL would ask the terminal for a passphrase.
  const auto no_passphrase = [](char*, int, int, void*) { return 0; };
  const Owned<EVP_PKEY> key(PEM_read_bio_PrivateKey(reader.get(), nullptr, no_passphrase, nullptr));
  ERR_clear_error();
  if (key == nullptr) return bad(files.key, "is not a private key (PEM, without a passphrase)");
  const bool match = X509_check_private_key(certificate.get(), key.get()) == 1;
  ERR_clear_error();
  if (!match) return bad(files.key, fmt::format("is not the private key of {}", files.certificate));
  return files.client_ca.empty() ? absl::OkStatus() : CheckAuthorityFile(files.client_ca);
}

}  // namespace phub
