// How a program of the bench was built. The harness asks each before it uses it, and refuses what
// is not optimised.
#pragma once

namespace phub::bench {

// {"build_type":"Release","optimized":true,"sanitizer":"","compiler":"..."} on standard output.
// Returns main()'s status.
int PrintBuildInfo();

}  // namespace phub::bench
