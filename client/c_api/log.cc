// phub_set_log_level and phub_set_log_callback.
#include <mutex>

#include "client/c_api/structs.h"
#include "client/session/client_log.h"

namespace phub::c_api {
namespace {

struct Callback {
  phub_log_callback function = nullptr;
  void* context = nullptr;
};

// Under the log's lock when a line is passed on.
void PassOn(void* context, LogLevel level, const std::string& line) {
  const auto* const callback = static_cast<const Callback*>(context);
  callback->function(callback->context, static_cast<std::int32_t>(level), line.c_str());
}

}  // namespace
}  // namespace phub::c_api

phub_result phub_set_log_level(int32_t level, phub_error** error) {
  return phub::c_api::Run({}, error, [&] {
    phub::Status status = phub::c_api::CheckChoice("level", level, PHUB_LOG_ERROR);
    if (status.ok()) phub::client::ChooseLogLevel(static_cast<phub::LogLevel>(level));
    return status;
  });
}

void phub_set_log_callback(phub_log_callback function, void* context) {
  using phub::c_api::Callback;
  static std::mutex mutex;
  static Callback callbacks[2];  // one in use, one for the next call
  static std::size_t used = 0;
  const std::lock_guard lock(mutex);
  if (function == nullptr) return phub::SetLogSink(nullptr, nullptr);
  used = 1 - used;
  callbacks[used] = {function, context};
  phub::SetLogSink(&phub::c_api::PassOn, &callbacks[used]);
}
