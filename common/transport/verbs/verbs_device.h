// An open RDMA device, with the port and the address that lanes use.
//
// Off the data path; any thread. Immutable after Open, except for its events(). All objects on the
// device share it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/transport/verbs/gid_choice.h"
#include "common/transport/verbs/verbs_events.h"

struct ibv_context;

namespace phub::transport {

// The limits and features that the device reports.
struct VerbsDeviceLimits {
  std::uint32_t queue_entries_max = 0;  // entries of one completion queue
  std::uint32_t requests_max = 0;       // requests in each queue of one queue pair
  std::uint32_t parts_max = 0;          // parts of one request (scatter/gather)
  std::uint64_t message_bytes_max = 0;
  bool windows = false;  // supports memory windows that belong to one queue pair (type 2)
};

struct VerbsDeviceOptions {
  std::string name = {};                        // "mlx5_0"; empty: the first with an active port
  std::uint8_t port = 0;                        // from 1; 0: the first active one with an address
  std::optional<std::uint32_t> gid_index = {};  // empty: chosen, see gid_choice.h
  std::optional<Gid> peer = {};                 // address of the other end, if known
};

// Whether the device was removed: unplugged, or its driver unloaded or reset. Queries the kernel,
// which fails the call after it has released everything on the device.
bool IsGone(ibv_context* context);
// Checks the result of `call`, which releases an object of the device. Aborts if it failed although
// the device is present: calls were made in the wrong order, and the device could still write to
// memory that was not released.
void CheckGivenBack(ibv_context* context, const char* call, int error);

// The addresses of a port, without empty entries.
std::vector<GidEntry> ReadGids(ibv_context* context, std::uint8_t port);

class VerbsDevice {
 public:
  // The names of all devices of this host, in the order of the system. Empty if it has none, or
  // if the kernel has no RDMA support.
  static std::vector<std::string> Names();
  // Why Names() is empty, and what to do.
  static std::string NoDeviceText();

  // kNotFound: no such device, or no device at all. kFailedPrecondition: no port is active, or the
  // port has no address. kPermissionDenied: no permission to open the device file. The messages say
  // what to do.
  static absl::StatusOr<std::shared_ptr<const VerbsDevice>> Open(const VerbsDeviceOptions& options);
  ~VerbsDevice();
  VerbsDevice(const VerbsDevice&) = delete;
  VerbsDevice& operator=(const VerbsDevice&) = delete;

  ibv_context* context() const { return context_; }
  const std::string& name() const { return name_; }
  std::uint8_t port() const { return port_; }
  const GidEntry& gid() const { return gid_.entry; }
  const std::string& gid_reason() const { return gid_.reason; }
  // The NUMA node that the device is attached to, in the kernel's numbering. Empty on hosts with
  // one node, and for software devices.
  std::optional<std::uint32_t> numa_node() const { return numa_node_; }
  bool ethernet() const { return ethernet_; }
  std::uint16_t lid() const { return lid_; }
  std::uint8_t mtu() const { return mtu_; }  // active MTU as an ibv_mtu: 1 is 256 bytes
  const VerbsDeviceLimits& limits() const { return limits_; }
  const VerbsEvents& events() const { return *events_; }

 private:
  VerbsDevice() = default;
  absl::Status QueryDevice();
  absl::Status FindPort(std::uint8_t wanted);
  absl::Status FindGid(const VerbsDeviceOptions& options);

  ibv_context* context_ = nullptr;
  std::string name_;
  std::uint8_t port_ = 0;
  GidChoice gid_;
  std::optional<std::uint32_t> numa_node_;
  bool ethernet_ = true;
  std::uint16_t lid_ = 0;
  std::uint8_t mtu_ = 0;
  std::uint8_t port_count_ = 0;
  VerbsDeviceLimits limits_;
  std::unique_ptr<VerbsEvents> events_;
};

}  // namespace phub::transport
