#include "server/config/data_tls.h"

#include "common/base/check.h"
#include "server/config/setting_kind.h"

namespace phub::server {
namespace {

bool IsBeyondLoopback(const std::string& text) {
  const auto address = ParseHostAndPort(text);
  PHUB_CHECK(address.ok(), "address={}", text);
  return !IsLoopback(address->host);
}

}  // namespace

DataTls DataTlsOf(const Settings& settings) {
  DataTls data;
  const bool control_beyond = IsBeyondLoopback(settings.listen);
  data.beyond_loopback =
      IsBeyondLoopback(settings.data_listen.empty() ? settings.listen : settings.data_listen);
  // Whoever can read the control plane can read the keys of lanes.
  const bool keys_are_safe = !settings.tls_certificate.empty() || !control_beyond;
  switch (settings.data_tls) {
    case DataTlsMode::kOn:
      data.on = true;
      data.reason = "TLS 1.3: data_tls = on";
      if (!keys_are_safe) {
        data.problem =
            "data_tls = on needs tls_certificate: the keys of lanes travel over the control plane";
      }
      break;
    case DataTlsMode::kOff:
      data.reason = "not encrypted: data_tls = off";
      if (data.beyond_loopback && !settings.insecure) {
        data.problem =
            "data_tls = off would send gradients and parameters to other hosts in the clear; leave "
            "it at auto, listen for data on 127.0.0.1, or accept the risk with --insecure";
      }
      break;
    case DataTlsMode::kAuto:
      data.on = data.beyond_loopback && keys_are_safe;
      data.reason = data.on                 ? "TLS 1.3: data_listen is beyond loopback"
                    : !data.beyond_loopback ? "not encrypted: data_listen is loopback"
                                            : "not encrypted: there is no tls_certificate";
      break;
  }
  return data;
}

}  // namespace phub::server
