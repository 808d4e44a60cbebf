// Describes a tenant to administrators. Under control's lock.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "phub/v1/tenants.pb.h"
#include "server/control/control.h"
#include "server/tenant/tenant.h"

namespace phub::server {

using PushedBytes = std::map<std::string, std::uint64_t>;  // [tenant]

v1::TenantInfo DescribeTenant(Control& control, const Tenant& tenant, const PushedBytes& pushed);

}  // namespace phub::server
