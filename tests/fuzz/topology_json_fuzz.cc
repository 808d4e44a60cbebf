#include "tests/fuzz/plan_properties.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  phub::fuzz::CheckTopology(phub::plan::ParseTopologyJson(phub::fuzz::Text(data, size)));
  return 0;
}
