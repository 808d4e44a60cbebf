// Whether data lanes over TCP use TLS. Pure.
#pragma once

#include <string>

#include "server/config/settings.h"

namespace phub::server {

struct DataTls {
  bool on = false;
  std::string reason = {};  // why it is on or off, for administrators
  bool beyond_loopback = false;
  std::string problem = {};  // why the settings contradict, and what to do; empty: they do not
};
// REQUIRES: each setting by itself is valid.
DataTls DataTlsOf(const Settings& settings);

}  // namespace phub::server
