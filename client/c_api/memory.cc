// phub_name_read_only.
#include "client/c_api/structs.h"
#include "client/session/named_memory.h"

phub_result phub_name_read_only(const void* data, uint64_t bytes, const char* name,
                                phub_error** error) {
  return phub::c_api::Run({}, error, [&]() -> phub::Status {
    if (data == nullptr && bytes > 0)
      return {phub::StatusCode::kInvalidArgument, "phub_name_read_only: data is NULL"};
    if (phub::client::NameMemory(data, bytes, name == nullptr ? "" : name)) return {};
    return {phub::StatusCode::kResourceExhausted,
            "phub_name_read_only: this process has named 65536 places already"};
  });
}
