#include "tests/conformance/harness.h"

namespace phub::conformance {

std::vector<HarnessFactory> BlockingHarnesses() {
  std::vector<HarnessFactory> harnesses = AllHarnesses();
  std::erase_if(harnesses, [](const HarnessFactory& factory) { return !factory.blocks; });
  return harnesses;
}

std::vector<HarnessFactory> StreamHarnesses() {
  std::vector<HarnessFactory> harnesses = AllHarnesses();
  std::erase_if(harnesses, [](const HarnessFactory& factory) { return !factory.streams; });
  return harnesses;
}

}  // namespace phub::conformance
