#include "client/session/control_diagnosis.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "client/session/control_target.h"
#include "client/session/tls_probe.h"
#include "common/base/errno_text.h"
#include "common/base/status_text.h"

namespace phub::client {
namespace {

// The start of an HTTP/2 connection: the preface, empty settings, and two pings. Together they are
// longer than the first message of a lane, so a data port answers, too, and does not wait for more.
std::string Http2Start() {
  using std::string_view_literals::operator""sv;
  std::string start = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  start += "\0\0\0\4\0\0\0\0\0"sv;
  for (int i = 0; i < 2; ++i) start += "\0\0\x08\6\0\0\0\0\0diagnose"sv;
  return start;
}

enum class Speech { kNothing, kHttp2, kHttp1, kTls, kOther };

Speech SpeechOf(std::span<const std::byte> answer) {
  if (answer.empty()) return Speech::kNothing;
  const auto at = [&](std::size_t i) { return std::to_integer<int>(answer[i]); };
  if (answer.size() >= 9 && at(3) == 4 && at(0) == 0) return Speech::kHttp2;  // settings
  if (at(0) == 0x15 || at(0) == 0x16) return Speech::kTls;                    // alert, handshake
  const std::string_view text(reinterpret_cast<const char*>(answer.data()), answer.size());
  return text.starts_with("HTTP/1") ? Speech::kHttp1 : Speech::kOther;
}

Diagnosis Permanent(const std::string& target, std::string_view what) {
  return {absl::UnavailableError(fmt::format("connected to {}, but {}", target, what)), true};
}

// What to make of a peer that does not speak what a control port speaks.
Diagnosis WrongPort(const std::string& target, Speech speech) {
  if (speech == Speech::kHttp1) {
    return Permanent(target,
                     "it answers HTTP/1.1, so it is probably phubd's metrics port; use the control "
                     "port (listen, 7700 by default)");
  }
  return Permanent(target,
                   "it is not a control port: probably phubd's data port, or another program; use "
                   "the control port (listen, 7700 by default)");
}

// Sends HTTP/2's start without TLS and receives the first bytes of the answer.
std::span<std::byte> ExchangePlainly(int socket, std::span<std::byte> answer,
                                     const net::Deadline& deadline) {
  const std::string start = Http2Start();
  if (send(socket, start.data(), start.size(), MSG_NOSIGNAL) < 0) return {};
  if (!net::WaitSocket(socket, POLLIN, deadline.at, deadline.clock)) return {};
  const ssize_t got = recv(socket, answer.data(), answer.size(), 0);
  return got <= 0 ? std::span<std::byte>() : answer.first(static_cast<std::size_t>(got));
}

class PortProbe {
 public:
  PortProbe(const std::string& target, net::HostAndPort at, const Credentials& credentials,
            const net::Deadline& deadline)
      : target_(target), at_(std::move(at)), credentials_(credentials), deadline_(deadline) {}

  Diagnosis Run() const {
    const auto addresses = net::Resolve(at_.host, at_.port, /*passive=*/false);
    if (!addresses.ok()) {
      return {absl::UnavailableError(addresses.status().message()),
              absl::IsNotFound(addresses.status())};
    }
    const auto dialled = net::DialFirst(*addresses, target_, deadline_);
    if (absl::IsResourceExhausted(dialled.status())) return {dialled.status(), true};
    if (!dialled.ok()) {
      return {absl::UnavailableError(fmt::format("{}; phubd is probably not running there",
                                                 MessageOf(dialled.status()))),
              false};
    }
    return credentials_.tls() ? WithTls(dialled->socket.get()) : WithoutTls(dialled->socket.get());
  }

 private:
  Diagnosis WithTls(int socket) const {
    TlsProbe probe(credentials_, at_.host, /*verify=*/true);
    const TlsProbe::Result result = probe.Handshake(socket, deadline_);
    if (result == TlsProbe::Result::kFailed) return Permanent(target_, probe.failure());
    if (result == TlsProbe::Result::kNoTls) return NoTls();
    std::array<std::byte, 64> answer;
    const std::string start = Http2Start();
    const std::size_t got = probe.Exchange(std::as_bytes(std::span(start)), answer, deadline_);
    if (!probe.failure().empty()) return Permanent(target_, probe.failure());
    return Judge(SpeechOf(std::span(answer).first(got)));
  }

  Diagnosis NoTls() const {
    const Speech speech = AskPlainly();
    if (speech != Speech::kHttp2) return WrongPort(target_, speech);
    return Permanent(target_,
                     "it does not use TLS; remove ca_file (--ca-file) and the certificate, or set "
                     "tls_certificate and tls_key for phubd");
  }

  Diagnosis WithoutTls(int socket) const {
    std::array<std::byte, 64> bytes;
    const Speech speech = SpeechOf(ExchangePlainly(socket, bytes, deadline_));
    if (speech == Speech::kTls || (speech == Speech::kNothing && SpeaksTls())) {
      return Permanent(target_,
                       "it requires TLS; pass the authority's certificate (ca_file, "
                       "--ca-file)");
    }
    return Judge(speech);
  }

  Diagnosis Judge(Speech speech) const {
    if (speech == Speech::kHttp2) return {};
    if (speech != Speech::kNothing || deadline_.clock.Now() < deadline_.at) {
      return WrongPort(target_, speech);
    }
    return {absl::UnavailableError(fmt::format(
                "connected to {}, but it did not answer within {} ms; phubd is probably overloaded "
                "or stopped",
                target_, deadline_.timeout / kMillisecond)),
            false};
  }

  Speech AskPlainly() const {
    const auto dialled = net::Dial(at_.host, at_.port, deadline_);
    std::array<std::byte, 64> bytes;
    return dialled.ok() ? SpeechOf(ExchangePlainly(dialled->socket.get(), bytes, deadline_))
                        : Speech::kNothing;
  }

  bool SpeaksTls() const {
    const auto dialled = net::Dial(at_.host, at_.port, deadline_);
    if (!dialled.ok()) return false;
    TlsProbe probe(credentials_, at_.host, /*verify=*/false);
    return probe.Handshake(dialled->socket.get(), deadline_) == TlsProbe::Result::kOk;
  }

  const std::string& target_;
  const net::HostAndPort at_;
  const Credentials& credentials_;
  const net::Deadline& deadline_;
};

Diagnosis DiagnoseSocketFile(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return {absl::UnavailableError(fmt::format("the path of the control socket is longer than {} "
                                               "bytes: {}",
                                               sizeof address.sun_path - 1, path)),
            true};
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  const Descriptor socket = Descriptor(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket ||
      connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
    return {};
  }
  const int error = errno;
  const char* const advice = error == ENOENT ? "phubd is not running, or has another control_socket"
                             : error == EACCES || error == EPERM
                                 ? "only root and phubd's user may use it"
                                 : "phubd is not running";
  return {absl::UnavailableError(fmt::format("cannot connect to the control socket {}: {}; {}",
                                             path, ErrnoText(error), advice)),
          true};
}

}  // namespace

Diagnosis DiagnoseControlPort(const std::string& target, const Credentials& credentials,
                              const net::Deadline& deadline) {
  if (target.starts_with(kUnixScheme)) {
    return DiagnoseSocketFile(target.substr(kUnixScheme.size()));
  }
  const auto at = net::ParseHostAndPort(target);
  if (!at.ok()) return {};  // no channel could be made, which says why
  return PortProbe(target, *at, credentials, deadline).Run();
}

}  // namespace phub::client
