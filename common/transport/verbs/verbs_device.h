// An RDMA device that is open, and the port and address on it that lanes use.
//
// Cold; any thread. Immutable once opened, but for what it says on its own (events()); shared by
// everything that is made on it.
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

// What the device itself says that it can do. Nothing is assumed.
struct VerbsDeviceLimits {
  std::uint32_t queue_entries_max = 0;  // of one completion queue
  std::uint32_t requests_max = 0;       // of one queue pair's queues
  std::uint32_t parts_max = 0;          // of one request (scatter/gather)
  std::uint64_t message_bytes_max = 0;
  bool windows = false;  // memory windows that belong to one queue pair (type 2)
};

struct VerbsDeviceOptions {
  std::string name = {};                        // "mlx5_0"; empty: the first with an active port
  std::uint8_t port = 0;                        // from 1; 0: the first active, with an address
  std::optional<std::uint32_t> gid_index = {};  // empty: chosen, see gid_choice.h
  std::optional<Gid> peer = {};                 // to be reached from here, as far as it is known
};

// Whether the device was taken away: unplugged, or its driver unloaded or reset. Asks the kernel,
// which stops answering for a device as it lets go of all that was made on it.
bool IsGone(ibv_context* context);
// For what `call` was to give back. Aborts if it failed and the device is there: then it was called
// out of order, and what is not given back may still be written to.
void CheckGivenBack(ibv_context* context, const char* call, int error);

// The addresses of a port, without empty entries.
std::vector<GidEntry> ReadGids(ibv_context* context, std::uint8_t port);

class VerbsDevice {
 public:
  // Every device of this host, by name, in the system's order. Empty where there is none, or no
  // kernel support for any.
  static std::vector<std::string> Names();

  // kNotFound: no such device, or none at all; kFailedPrecondition: no port is active, or it has no
  // address; kPermissionDenied: the device file is not ours to open. Texts say what to do.
  static absl::StatusOr<std::shared_ptr<const VerbsDevice>> Open(const VerbsDeviceOptions& options);
  ~VerbsDevice();
  VerbsDevice(const VerbsDevice&) = delete;
  VerbsDevice& operator=(const VerbsDevice&) = delete;

  ibv_context* context() const { return context_; }
  const std::string& name() const { return name_; }
  std::uint8_t port() const { return port_; }
  const GidEntry& gid() const { return gid_.entry; }
  const std::string& gid_reason() const { return gid_.reason; }
  // Where it is attached, as the kernel numbers nodes; nothing on hosts with one, and of no
  // hardware.
  std::optional<std::uint32_t> numa_node() const { return numa_node_; }
  bool ethernet() const { return ethernet_; }
  std::uint16_t lid() const { return lid_; }
  std::uint8_t mtu() const { return mtu_; }  // active, as InfiniBand counts: 1 is 256 bytes
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
