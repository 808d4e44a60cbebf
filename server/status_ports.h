// The ports over HTTP: for Prometheus (metrics_listen), for supervisors (health_listen) and for
// people (page_listen). One thread.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/http/health_paths.h"
#include "common/http/http_server.h"
#include "common/http/metrics_server.h"
#include "server/config/settings.h"
#include "server/control/ports/control_thread.h"
#include "server/page/page.h"
#include "server/tenant/directory.h"

namespace phub::server {

class StatusPorts {
 public:
  // Opens health_listen, if it is set. What `health` uses must outlive it.
  absl::Status StartHealth(const Settings& settings, http::Health health, const Clock& clock);
  // Opens the other ports that are set. The others must outlive them.
  absl::Status Start(const Settings& settings, http::Health health, ControlThread& control,
                     const Directory& directory, const Clock& clock);
  void Stop();

  const http::MetricsServer* metrics() const { return metrics_.get(); }  // null: not set
  const http::HttpServer* health() const { return health_.get(); }       // null: not set
  const http::HttpServer* page() const { return server_.get(); }         // null: not set

 private:
  absl::Status StartMetrics(const Settings& settings, const http::Health& health,
                            ControlThread& control, const Clock& clock);

  std::unique_ptr<http::MetricsServer> metrics_;
  std::unique_ptr<http::HttpServer> health_;
  std::unique_ptr<Page> page_;
  std::unique_ptr<http::HttpServer> server_;
};

}  // namespace phub::server
