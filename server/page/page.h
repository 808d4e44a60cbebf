// The page to look at: read-only, for people. Answers /, its files, /status.json and /plan.svg.
//
// - It answers only requests whose Host is an address, "localhost" or the host of page_listen.
//   Otherwise a web site could give its own name the address of this host, and read the page
//   through a browser here (DNS rebinding).
// - With identities, a request needs the token of an operator or an administrator, as the password
//   of HTTP's Basic authentication, which browsers ask for.
// - All viewers share one status, made at most once per kStatusAgeMax, in bounded turns of control.
//
// For the port's thread.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/http/http_server.h"
#include "server/control/ports/control_thread.h"
#include "server/tenant/directory.h"

namespace phub::server {

class Page {
 public:
  static constexpr DurationNs kStatusAgeMax = kSecond;
  // Pictures that are kept. A plan never changes, but a name may get another job.
  static constexpr std::size_t kPicturesMax = 64;
  static constexpr DurationNs kPictureAgeMax = 10 * kSecond;

  struct Options {
    std::string host;                     // of page_listen
    bool identities = false;              // requests need a token
    std::vector<std::string> racks = {};  // control endpoints of all racks
  };
  Page(Options options, ControlThread& control, const Directory& directory, const Clock& clock)
      : options_(std::move(options)), control_(control), directory_(directory), clock_(clock) {}

  http::HttpReply Answer(const http::HttpRequest& request);

 private:
  struct Kept {
    http::HttpReply reply;
    TimeNs since = 0;
  };
  bool IsOwnHost(std::string_view host) const;
  bool MayRead(const http::HttpRequest& request) const;
  http::HttpReply Find(const http::HttpRequest& request);
  http::HttpReply Status();
  http::HttpReply Picture(const http::HttpRequest& request);

  const Options options_;
  ControlThread& control_;
  const Directory& directory_;
  const Clock& clock_;
  Kept status_;
  std::map<std::pair<std::string, std::string>, Kept> pictures_;  // [tenant, job]
};

// The password in "Basic <base64 of user:password>"; empty if the text has no password. Pure.
std::string BasicPassword(std::string_view authorization);

}  // namespace phub::server
