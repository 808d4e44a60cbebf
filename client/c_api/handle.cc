// phub_handle_*.
#include <chrono>

#include "client/c_api/objects.h"

using namespace phub::c_api;  // NOLINT: this file has functions of phub.h only

phub_result phub_handle_wait(const phub_handle* handle, int64_t timeout_ns, phub_error** error) {
  return Run(handle, error, [&] {
    if (handle == nullptr) return NullArgument("phub_handle_wait", "handle");
    return timeout_ns < 0 ? handle->handle.Wait()
                          : handle->handle.Wait(std::chrono::nanoseconds(timeout_ns));
  });
}

phub_result phub_handle_explain(const phub_handle* handle, phub_error** error) {
  return Run(handle, error, [&] {
    return handle == nullptr ? NullArgument("phub_handle_explain", "handle")
                             : handle->handle.Explain();
  });
}

int32_t phub_handle_test(const phub_handle* handle) {
  return handle == nullptr || handle->handle.Test();
}

phub_result phub_handle_cancel(const phub_handle* handle, phub_error** error) {
  return Run(handle, error, [&] {
    return handle == nullptr ? NullArgument("phub_handle_cancel", "handle")
                             : handle->handle.Cancel();
  });
}

void phub_handle_free(phub_handle* handle) { delete handle; }
