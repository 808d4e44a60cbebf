// phubctl job dump: a dump as text. Pure functions.
#pragma once

#include <string>

#include "phub/v1/admin.pb.h"

namespace phub::client::cli {

// First who waits for whom, then what each rank has recorded. In lines; texts of ranks are indented
// and have no control characters. all_rounds: every round of a rank instead of the oldest.
std::string DumpText(const v1::JobDump& dump, bool all_rounds);

}  // namespace phub::client::cli
