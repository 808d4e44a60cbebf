// Checks in checked builds that a function runs under control's lock. The public functions of
// control's parts begin with PHUB_ON_CONTROL().
//
// ControlThread marks its thread while it holds the lock. A simulation or a test that uses a
// Control without a ControlThread must have an OnControl object.
#pragma once

#include "common/base/thread_mark.h"

namespace phub::server {

using OnControl = ThreadMark<class ControlMark>;

}  // namespace phub::server

#define PHUB_ON_CONTROL() PHUB_CHECK_MARK(::phub::server::OnControl, "control's lock is not held")
