#include "client/session/plan_option.h"

#include <fmt/format.h>

#include <fstream>
#include <iterator>
#include <utility>

namespace phub::client {

Status ReadPlanFile(JobOptions& options) {
  const bool is_path =
      options.plan.find('/') != std::string::npos || options.plan.ends_with(".json");
  if (!is_path || options.plan.starts_with("{")) return Status();
  std::ifstream file(options.plan, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (!file.is_open() || file.bad() || first == std::string::npos || text[first] != '{') {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("plan {} (job {}): the file cannot be read or is not a plan in JSON; "
                              "write one with `phubctl plan make -o FILE`",
                              options.plan, options.job));
  }
  options.plan = text.substr(first);
  return Status();
}

}  // namespace phub::client
