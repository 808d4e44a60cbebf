// Checks in checked builds that a function runs on a core loop's thread, inside some
// CoreLoop::RunOnce(). Functions of stages begin with PHUB_ON_CORE_LOOP().
//
// A simulation runs many loops in one thread, so each RunOnce() marks the thread while it runs. A
// test that calls stages without a loop must have an OnCoreLoop object.
#pragma once

#include "common/base/check.h"
#include "common/base/thread_mark.h"

namespace phub::server {

using OnCoreLoop = ThreadMark<class CoreLoopMark>;

}  // namespace phub::server

#ifdef NDEBUG
#define PHUB_ON_CORE_LOOP() static_cast<void>(0)
#else
#define PHUB_ON_CORE_LOOP() PHUB_CHECK(::phub::server::OnCoreLoop::Holds(), "not on a core loop")
#endif
