// How a program of the bench was built. The harness asks each program before it uses it, and
// refuses programs that are not optimised.
#pragma once

namespace phub::bench {

// Prints {"build_type":"Release","optimized":true,"sanitizer":"","compiler":"..."} to standard
// output. Returns main()'s status.
int PrintBuildInfo();

}  // namespace phub::bench
