// What `phubctl store` does. It needs the engines of control stores, which phubctl does not have,
// so it starts phubd:
//   phubd store copy from=sqlite:/var/lib/phub to=etcd:https://a:2379 token_key=... [dry_run=1]
//   phubd store show store=... [entries=1]
//   phubd store thaw store=...
#pragma once

#include <string>
#include <vector>

namespace phub::server {

inline constexpr char kStoreArgument[] = "store";

// Returns the exit code, as phubctl's: 0 ok; 1 failure; 2 wrong usage; 3 not found; 4 not allowed;
// 5 etcd does not answer.
int RunStoreCommand(const std::vector<std::string>& arguments);

}  // namespace phub::server
