#include "server/page/page.h"

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "common/base/status_text.h"
#include "common/net/host_port.h"
#include "server/control/rpc/page_status.h"
#include "server/page/site_files.h"

namespace phub::server {
namespace {

using http::HttpReply;
using http::HttpRequest;
using http::TextReply;

// Nothing but the page's own files: no inline scripts, no other origins, no frames.
constexpr const char* kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
// A picture is SVG with inline styles. Opened by itself it must not run or load anything either.
constexpr const char* kPicturePolicy =
    "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; sandbox";
constexpr const char* kJson = "application/json; charset=utf-8";

HttpReply FileReply(std::string_view text, const char* content_type) {
  return {200, std::make_shared<const std::string>(text), content_type};
}

// "[::1]:7781" -> "::1", "localhost:7781" -> "localhost"
std::string_view HostOf(std::string_view host_and_port) {
  if (host_and_port.starts_with('[')) {
    const std::size_t end = host_and_port.find(']');
    return end == std::string_view::npos ? std::string_view() : host_and_port.substr(1, end - 1);
  }
  return host_and_port.substr(0, host_and_port.find(':'));
}

std::string Lower(std::string_view text) { return absl::AsciiStrToLower(std::string(text)); }

void AddHeaders(const char* policy, HttpReply& reply) {
  reply.headers.insert(reply.headers.end(), {{"Content-Security-Policy", policy},
                                             {"X-Content-Type-Options", "nosniff"},
                                             {"X-Frame-Options", "DENY"},
                                             {"Referrer-Policy", "no-referrer"},
                                             {"Cross-Origin-Resource-Policy", "same-origin"},
                                             {"Cache-Control", "no-store"}});
}

}  // namespace

std::string BasicPassword(std::string_view authorization) {
  constexpr std::string_view kBasic = "basic ";
  if (Lower(authorization.substr(0, kBasic.size())) != kBasic) return "";
  std::string decoded;
  if (!absl::Base64Unescape(std::string(authorization.substr(kBasic.size())), &decoded)) return "";
  const std::size_t colon = decoded.find(':');
  return colon == std::string::npos ? "" : decoded.substr(colon + 1);
}

HttpReply Page::Answer(const HttpRequest& request) {
  HttpReply reply;
  if (!request.host.has_value() || !IsOwnHost(HostOf(*request.host))) {
    reply = TextReply(421,
                      "phubd's page answers only to addresses, localhost and the host of "
                      "page_listen; open it by its address\n");
  } else if (!MayRead(request)) {
    reply = TextReply(401,
                      "this page needs the token of an operator or an administrator as the "
                      "password; the user name does not matter\n");
    reply.headers.emplace_back("WWW-Authenticate",
                               "Basic realm=\"phub: any name, a token as password\", "
                               "charset=\"UTF-8\"");
  } else {
    reply = Find(request);
  }
  AddHeaders(request.path == "/plan.svg" ? kPicturePolicy : kPolicy, reply);
  return reply;
}

bool Page::IsOwnHost(std::string_view host) const {
  const std::string name = Lower(host);
  return net::IsNumeric(name) || name == "localhost" ||
         (!name.empty() && name == Lower(options_.host));
}

bool Page::MayRead(const HttpRequest& request) const {
  if (!options_.identities) return true;
  if (!request.authorization.has_value()) return false;
  IdentityFault fault = IdentityFault::kNone;
  const auto caller =
      directory_.IdentifyToken(BasicPassword(*request.authorization), WallNow(), fault);
  return caller.ok() && (caller->role == Role::kAdmin || caller->role == Role::kOperator);
}

HttpReply Page::Find(const HttpRequest& request) {
  if (request.path == "/") return FileReply(kSite_index_html, "text/html; charset=utf-8");
  if (request.path == "/page.css") return FileReply(kSite_page_css, "text/css; charset=utf-8");
  if (request.path == "/page.js") return FileReply(kSite_page_js, "text/javascript; charset=utf-8");
  if (request.path == "/status.json") return Status();
  if (request.path == "/plan.svg") return Picture(request);
  return TextReply(404, "phubd's page is at /, and its data at /status.json\n");
}

HttpReply Page::Status() {
  const TimeNs now = clock_.Now();
  if (status_.reply.body != nullptr && now - status_.since < kStatusAgeMax) return status_.reply;
  auto text = ReadPageStatus(control_, directory_, options_.racks);
  if (text.ok()) {
    status_.reply = {200, std::make_shared<const std::string>(*std::move(text)), kJson};
  } else {
    status_.reply = TextReply(503, std::string(MessageOf(text.status())) + "\n");
  }
  status_.since = clock_.Now();
  return status_.reply;
}

HttpReply Page::Picture(const HttpRequest& request) {
  const std::string tenant(request.argument("tenant").value_or(""));
  const std::string job(request.argument("job").value_or(""));
  const TimeNs now = clock_.Now();
  std::erase_if(pictures_,
                [&](const auto& kept) { return now - kept.second.since >= kPictureAgeMax; });
  if (const auto found = pictures_.find({tenant, job}); found != pictures_.end())
    return found->second.reply;
  auto picture = DrawPlanOf(control_, tenant, job);
  if (!picture.ok()) return TextReply(404, std::string(MessageOf(picture.status())) + "\n");
  HttpReply reply{200, std::make_shared<const std::string>(*std::move(picture)), "image/svg+xml"};
  if (pictures_.size() < kPicturesMax) pictures_[{tenant, job}] = {reply, now};
  return reply;
}

}  // namespace phub::server
