#include "common/base/host_boot_id.h"

#include <fstream>

namespace phub {

std::string HostBootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

}  // namespace phub
