// Whether data lanes over tcp are TLS. Pure.
#pragma once

#include <string>

#include "server/config/settings.h"

namespace phub::server {

struct DataTls {
  bool on = false;
  std::string reason = {};  // for administrators: why it is so
  bool beyond_loopback = false;
  std::string problem = {};  // what cannot be, and what to do; empty: all is well
};
// Of settings that are right one by one.
DataTls DataTlsOf(const Settings& settings);

}  // namespace phub::server
