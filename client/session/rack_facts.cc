#include "client/session/rack_facts.h"

#include <fmt/core.h>

#include "common/base/named_values.h"
#include "common/net/address.h"

namespace phub::client {

std::string DifferenceOf(const v1::Rack& one, const std::string& one_name, const v1::Rack& other,
                         const std::string& other_name) {
  const auto settings_of = [](const v1::Rack& rack) {
    NamedValues values;
    for (const v1::SharedSetting& each : rack.settings()) {
      values.push_back({each.name(), each.value()});
    }
    return values;
  };
  std::string text;
  if (!one.settings().empty() && !other.settings().empty()) {
    text = DescribeDifferences(settings_of(one), one_name, settings_of(other), other_name);
  }
  if (!text.empty()) return text;
  return fmt::format("hashes {:.12} and {:.12}", one.configuration(), other.configuration());
}

Result<Endpoint> EndpointToKeep(const Endpoint& asked, const v1::Rack& rack) {
  const std::string& own = rack.daemons(static_cast<int>(rack.self())).endpoint();
  if (own.empty() || own == asked.ToString()) return asked;
  const auto addresses = net::Resolve(asked.host, asked.port, /*passive=*/false);
  if (!addresses.ok() || addresses->size() < 2) return asked;
  return ParseEndpoint(own);
}

}  // namespace phub::client
