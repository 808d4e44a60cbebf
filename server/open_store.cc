#include "server/open_store.h"

#include <signal.h>

#include <utility>

#include "server/config/control_store_setting.h"
#include "server/config/place_setting.h"
#include "server/tenant/sqlite_store.h"

namespace phub::server {
namespace {

template <typename Store>
absl::StatusOr<std::unique_ptr<ControlStore>> AsStore(
    absl::StatusOr<std::unique_ptr<Store>> opened) {
  if (!opened.ok()) return opened.status();
  return std::unique_ptr<ControlStore>(*std::move(opened));
}

}  // namespace

bool IsAskedToStop() {
  sigset_t pending;
  sigemptyset(&pending);
  sigpending(&pending);
  return sigismember(&pending, SIGTERM) == 1 || sigismember(&pending, SIGINT) == 1;
}

absl::StatusOr<etcd::StoreOptions> EtcdOptions(const Settings& settings) {
  auto endpoints = etcd::ParseEndpoints(EtcdEndpointsOf(settings));
  if (!endpoints.ok()) return endpoints.status();
  etcd::StoreOptions options;
  options.client = {*std::move(endpoints), settings.etcd_ca, settings.etcd_certificate,
                    settings.etcd_key};
  options.prefix = settings.etcd_prefix;
  options.token_key_path = settings.token_key;
  options.stale_max = settings.control_store_stale_max;
  options.daemon_id = settings.daemon_id;
  options.endpoint = AdvertisedEndpoint(settings);
  options.place = ViewPlaceOf(settings);
  options.quota_grace = settings.quota_grace;
  return options;
}

absl::StatusOr<std::unique_ptr<ControlStore>> OpenStore(const Settings& settings, Random& random,
                                                        const std::function<void()>& waiting) {
  if (EtcdEndpointsOf(settings).empty())
    return AsStore(SqliteStore::Open(settings.state_dir, random));
  const auto options = EtcdOptions(settings);
  if (!options.ok()) return options.status();
  const auto stopped = [&waiting] {
    waiting();
    return IsAskedToStop();
  };
  return AsStore(etcd::EtcdStore::Open(*options, random, stopped));
}

}  // namespace phub::server
