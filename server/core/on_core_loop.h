// Checks in checked builds that a function runs on a core loop's thread, inside some
// CoreLoop::RunOnce(). Functions of stages begin with PHUB_ON_CORE_LOOP().
//
// A simulation runs many loops in one thread, so each RunOnce() marks the thread while it runs. A
// test that calls stages without a loop must have an OnCoreLoop object.
#pragma once

#include "common/base/thread_mark.h"

namespace phub::server {

using OnCoreLoop = ThreadMark<class CoreLoopMark>;

}  // namespace phub::server

#define PHUB_ON_CORE_LOOP() PHUB_CHECK_MARK(::phub::server::OnCoreLoop, "not on a core loop")
