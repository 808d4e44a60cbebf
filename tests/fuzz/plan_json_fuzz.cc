#include "tests/fuzz/plan_properties.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const phub::plan::Topology& topology = phub::fuzz::SmallTopology();
  phub::fuzz::CheckForest(topology,
                          phub::plan::ParseForestJson(topology, phub::fuzz::Text(data, size),
                                                      phub::plan::PlanScope::kGroupsToo));
  return 0;
}
