// phub_timeline_on and phub_timeline_add.
#include "client/session/timeline.h"

#include "phub/phub.h"

using phub::client::Timeline;

int32_t phub_timeline_on(void) { return Timeline::OfProcess() == nullptr ? 0 : 1; }

void phub_timeline_add(const char* name, uint64_t iteration, int64_t begin_ns, int64_t end_ns) {
  Timeline* const timeline = Timeline::OfProcess();
  if (timeline == nullptr || name == nullptr) return;
  timeline->AddComputation(name, iteration, begin_ns, end_ns);
}
