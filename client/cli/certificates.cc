#include "client/cli/certificates.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <memory>

namespace phub::client::cli {
namespace {

constexpr int kSerialBits = 127;      // positive and unpredictable
constexpr long kClockSkew = -5 * 60;  // other hosts' clocks may be behind
constexpr long kSecondsPerDay = 24 * 3600;

struct Free {
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(BIGNUM* number) const { BN_free(number); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(X509_EXTENSION* extension) const { X509_EXTENSION_free(extension); }
};
template <typename Type>
using Owned = std::unique_ptr<Type, Free>;

absl::Status Failed(const char* doing) {
  char text[256] = "";
  ERR_error_string_n(ERR_get_error(), text, sizeof text);
  ERR_clear_error();
  return absl::InternalError(fmt::format("OpenSSL cannot {}: {}", doing, text));
}

std::string Drain(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  return {data, static_cast<std::size_t>(size)};
}

absl::StatusOr<Pem> ToPem(X509* certificate, EVP_PKEY* key) {
  const Owned<BIO> certificate_text(BIO_new(BIO_s_mem()));
  const Owned<BIO> key_text(BIO_new(BIO_s_mem()));
  if (PEM_write_bio_X509(certificate_text.get(), certificate) != 1 ||
      PEM_write_bio_PrivateKey(key_text.get(), key, nullptr, nullptr, 0, nullptr, nullptr) != 1) {
    return Failed("write PEM");
  }
  return Pem{Drain(certificate_text.get()), Drain(key_text.get())};
}

bool AddExtension(X509* certificate, X509* issuer, int kind, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const Owned<X509_EXTENSION> extension(
      X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str()));
  return extension != nullptr && X509_add_ext(certificate, extension.get(), -1) == 1;
}

bool SetSerial(X509* certificate) {
  const Owned<BIGNUM> number(BN_new());
  return BN_rand(number.get(), kSerialBits, BN_RAND_TOP_ANY, BN_RAND_BOTTOM_ANY) == 1 &&
         BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(certificate)) != nullptr;
}

// Sets version, serial number, name, times and key, which every certificate has.
bool SetBasics(X509* certificate, EVP_PKEY* key, const std::string& common_name, long seconds) {
  X509_NAME* const name = X509_get_subject_name(certificate);
  return X509_set_version(certificate, 2) == 1 && SetSerial(certificate) &&
         X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_UTF8,
                                    reinterpret_cast<const unsigned char*>(common_name.data()),
                                    static_cast<int>(common_name.size()), -1, 0) == 1 &&
         X509_gmtime_adj(X509_getm_notBefore(certificate), std::min(kClockSkew, 2 * seconds)) !=
             nullptr &&
         X509_gmtime_adj(X509_getm_notAfter(certificate), seconds) != nullptr &&
         X509_set_pubkey(certificate, key) == 1;
}

bool IsIpAddress(const std::string& host) {
  unsigned char bytes[16];
  return inet_pton(AF_INET, host.c_str(), bytes) == 1 ||
         inet_pton(AF_INET6, host.c_str(), bytes) == 1;
}

std::string AlternativeNames(const CertificateRequest& request) {
  std::string names = "URI:" + request.uri;
  for (const std::string& host : request.hosts) {
    names += fmt::format(",{}:{}", IsIpAddress(host) ? "IP" : "DNS", host);
  }
  return names;
}

}  // namespace

absl::StatusOr<Pem> MakeAuthority(const std::string& trust_domain, int days) {
  const Owned<EVP_PKEY> key(EVP_EC_gen("P-256"));
  const Owned<X509> certificate(X509_new());
  if (key == nullptr || certificate == nullptr) return Failed("make a key");
  X509* const raw = certificate.get();
  const bool made = SetBasics(raw, key.get(), fmt::format("phub authority of {}", trust_domain),
                              days * kSecondsPerDay) &&
                    X509_set_issuer_name(raw, X509_get_subject_name(raw)) == 1 &&
                    AddExtension(raw, raw, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") &&
                    AddExtension(raw, raw, NID_key_usage, "critical,keyCertSign,cRLSign") &&
                    AddExtension(raw, raw, NID_subject_key_identifier, "hash") &&
                    AddExtension(raw, raw, NID_subject_alt_name, "URI:spiffe://" + trust_domain) &&
                    X509_sign(raw, key.get(), EVP_sha256()) > 0;
  if (!made) return Failed("create the authority's certificate");
  return ToPem(raw, key.get());
}

absl::StatusOr<Pem> MakeCertificate(const Pem& authority, const CertificateRequest& request) {
  const Owned<BIO> certificate_text(BIO_new_mem_buf(
      authority.certificate.data(), static_cast<int>(authority.certificate.size())));
  const Owned<BIO> key_text(
      BIO_new_mem_buf(authority.key.data(), static_cast<int>(authority.key.size())));
  const Owned<X509> issuer(PEM_read_bio_X509(certificate_text.get(), nullptr, nullptr, nullptr));
  const auto no_passphrase = [](char*, int, int, void*) { return 0; };
  const Owned<EVP_PKEY> issuer_key(
      PEM_read_bio_PrivateKey(key_text.get(), nullptr, no_passphrase, nullptr));
  if (issuer == nullptr || issuer_key == nullptr ||
      X509_check_private_key(issuer.get(), issuer_key.get()) != 1) {
    ERR_clear_error();
    return absl::InvalidArgumentError(
        "the authority's certificate and key are not valid PEM or do not match");
  }
  const Owned<EVP_PKEY> key(EVP_EC_gen("P-256"));
  const Owned<X509> certificate(X509_new());
  if (key == nullptr || certificate == nullptr) return Failed("make a key");
  X509* const raw = certificate.get();
  const long seconds = request.days != 0 ? request.days * kSecondsPerDay : request.seconds;
  const std::string name = request.uri.substr(request.uri.rfind('/') + 1);
  const bool made =
      SetBasics(raw, key.get(), name, seconds) &&
      X509_set_issuer_name(raw, X509_get_subject_name(issuer.get())) == 1 &&
      AddExtension(raw, issuer.get(), NID_basic_constraints, "critical,CA:FALSE") &&
      AddExtension(raw, issuer.get(), NID_key_usage, "critical,digitalSignature") &&
      AddExtension(raw, issuer.get(), NID_ext_key_usage, "serverAuth,clientAuth") &&
      AddExtension(raw, issuer.get(), NID_subject_key_identifier, "hash") &&
      AddExtension(raw, issuer.get(), NID_authority_key_identifier, "keyid") &&
      AddExtension(raw, issuer.get(), NID_subject_alt_name, AlternativeNames(request)) &&
      X509_sign(raw, issuer_key.get(), EVP_sha256()) > 0;
  if (!made) return Failed("create the certificate");
  return ToPem(raw, key.get());
}

}  // namespace phub::client::cli
