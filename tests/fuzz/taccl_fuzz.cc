// TACCL's sketches and profiles. An input is a sketch, a line with '%', and a profile. Without such
// a line the whole input is read as each of them.
#include "common/plan/sketches/taccl_expand.h"
#include "common/plan/topology_toml.h"
#include "tests/fuzz/plan_properties.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  namespace plan = phub::plan;
  const std::string_view text = phub::fuzz::Text(data, size);
  const std::size_t line = text.find("\n%\n");
  const auto sketch = plan::ParseTacclSketch(text.substr(0, line));
  const auto profile =
      plan::ParseTacclProfile(line == std::string_view::npos ? text : text.substr(line + 3), {});
  PHUB_CHECK(sketch.ok() || !sketch.status().message().empty());
  PHUB_CHECK(profile.ok() || !profile.status().message().empty());
  if (!sketch.ok() || !profile.ok() || sketch->nodes * profile->gpus > 64) return 0;
  const auto expanded = plan::Expand(*sketch, *profile);
  if (!expanded.ok()) {
    PHUB_CHECK(!expanded.status().message().empty());
    return 0;
  }
  PHUB_CHECK(expanded->topology.members().size() == sketch->nodes * profile->gpus);
  PHUB_CHECK(expanded->pairs_across <= expanded->pairs);
  phub::fuzz::CheckTopology(expanded->topology);
  const auto again = plan::ParseTopologyToml(plan::TopologyToToml(expanded->topology));
  PHUB_CHECK(again.ok(), "status={}", again.status().ToString());
  PHUB_CHECK(again->links().size() == expanded->topology.links().size());
  return 0;
}
