#include "server/config/data_tls.h"

#include "server/config/setting_kind.h"

namespace phub::server {
DataTls DataTlsOf(const Settings& settings) {
  DataTls data;
  const bool control_beyond = IsBeyondLoopback(settings.listen);
  data.beyond_loopback =
      IsBeyondLoopback(settings.data_listen.empty() ? settings.listen : settings.data_listen);
  // The keys of lanes travel over the control plane, so they are as safe as that is.
  const bool keys_are_safe = !settings.tls_certificate.empty() || !control_beyond;
  switch (settings.data_tls) {
    case DataTlsMode::kOn:
      data.on = true;
      data.reason = "TLS 1.3: data_tls = on";
      if (!keys_are_safe) {
        data.problem =
            "data_tls = on needs tls_certificate: the control plane carries the keys of lanes and "
            "must be encrypted";
      }
      break;
    case DataTlsMode::kOff:
      data.reason = "not encrypted: data_tls = off";
      if (data.beyond_loopback && !settings.insecure) {
        data.problem =
            "data_tls = off would send gradients and parameters to other hosts unencrypted; set it "
            "to auto, set data_listen to 127.0.0.1:0, or accept the risk with --insecure";
      }
      break;
    case DataTlsMode::kAuto:
      data.on = data.beyond_loopback && keys_are_safe;
      data.reason = data.on                 ? "TLS 1.3: data_listen is not a loopback address"
                    : !data.beyond_loopback ? "not encrypted: data_listen is a loopback address"
                                            : "not encrypted: tls_certificate is not set";
      break;
  }
  return data;
}

}  // namespace phub::server
