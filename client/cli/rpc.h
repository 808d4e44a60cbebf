// Calls to a daemon, and messages for failed calls. One thread.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <string>

#include "client/cli/cli.h"
#include "client/cli/output.h"
#include "phub/v1/admin.grpc.pb.h"

namespace phub::client::cli {

// The gRPC target for "phub://host:port", "host:port", "host" (port 7700) or "unix:/path".
std::string Target(const std::string& endpoint);
// FAILED_PRECONDITION or INVALID_ARGUMENT: the message says what is wrong with the credential
// files.
grpc::Status Connect(const Options& options, std::shared_ptr<grpc::Channel>& channel);
// Sets the deadline of options.timeout.
void Prepare(grpc::ClientContext& context, const Options& options);

// Prints to standard error what failed, at which daemon, and what to try. Returns the exit code.
int Report(const grpc::Status& status, const Options& options);
ExitCode ExitCodeOf(const grpc::Status& status);

// One unary call:
//   Call(options, &v1::Admin::Stub::ListJobs, request, response)
template <typename Stub, typename Request, typename Response>
grpc::Status Call(const Options& options,
                  grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                  const Request& request, Response& response) {
  std::shared_ptr<grpc::Channel> channel;
  if (grpc::Status status = Connect(options, channel); !status.ok()) return status;
  Stub stub(channel);
  grpc::ClientContext context;
  Prepare(context, options);
  return (stub.*method)(&context, request, &response);
}

// A list, page by page. A daemon without pages answers with the whole list. INTERNAL: a page does
// not follow the page before, so the pages would have no end.
template <typename Stub, typename Request, typename Response>
grpc::Status CallPages(const Options& options,
                       grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                    Response*),
                       Request request, std::uint32_t page_size, Response& response) {
  request.set_page_size(page_size);
  do {
    Response page;
    if (grpc::Status status = Call(options, method, request, page); !status.ok()) return status;
    if (!page.next_page_token().empty() && page.next_page_token() == request.page_token())
      return {grpc::StatusCode::INTERNAL, "the daemon answered with the same page twice"};
    request.set_page_token(page.next_page_token());
    page.clear_next_page_token();
    response.MergeFrom(page);
  } while (!request.page_token().empty());
  return grpc::Status::OK;
}
inline constexpr std::uint32_t kEntriesPerPage = 1024;  // the daemon may send fewer

// Gets the jobs of a tenant (empty: every tenant's), page by page.
grpc::Status CallListJobs(const Options& options, const std::string& tenant,
                          v1::ListJobsResponse& response);

// Gets an answer by ask(answer) and prints it, as JSON or as text(answer). Repeats this if
// `watch_text` (AddWatch) is set. Returns the exit code.
template <typename Response, typename Ask, typename Text>
int ShowResponse(const Options& options, const std::string& watch_text, Ask ask, Text text) {
  return Show(WatchInterval(watch_text), [&]() -> Shown {
    Response answer;
    const grpc::Status status = ask(answer);
    if (!status.ok()) return {Report(status, options), ""};
    if constexpr (requires { answer.warning(); }) PrintWarning(answer.warning());
    if (options.output == Output::kJson) {
      return {kOk, ToJson(answer, /*compact=*/!watch_text.empty())};
    }
    return {kOk, text(answer)};
  });
}

// The same for a list in pages.
template <typename Stub, typename Request, typename Response, typename Text>
int ShowPages(const Options& options, const std::string& watch_text,
              grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
              const Request& request, Text text) {
  return ShowResponse<Response>(
      options, watch_text,
      [&](Response& answer) {
        return CallPages(options, method, request, kEntriesPerPage, answer);
      },
      text);
}

// The same for one call.
template <typename Stub, typename Request, typename Response, typename Text>
int ShowAnswer(const Options& options, const std::string& watch_text,
               grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
               const Request& request, Text text) {
  return ShowResponse<Response>(
      options, watch_text, [&](Response& answer) { return Call(options, method, request, answer); },
      text);
}

}  // namespace phub::client::cli
