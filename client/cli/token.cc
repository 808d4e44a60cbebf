// phubctl token issue, list, revoke; phubctl whoami.
#include <fmt/format.h>

#include <memory>

#include "client/cli/cli.h"
#include "client/cli/output.h"
#include "client/cli/rpc.h"
#include "common/base/printable.h"
#include "common/base/secret_file.h"
#include "common/base/status_text.h"
#include "common/base/units.h"
#include "phub/v1/tenants.grpc.pb.h"

namespace phub::client::cli {
namespace {

using Stub = v1::Tenants::Stub;

struct Issue {
  std::string role;
  std::string label;
  std::string lifetime_text;
  std::string replaces;
  std::string grace_text = "1h";
  std::string file;
};
struct Revocation {
  std::string id;
  bool yes = false;
};

std::string CheckDuration(const std::string& text) {
  const auto duration = ParseDuration(text);
  if (duration && *duration >= 0) return {};
  return fmt::format("\"{}\" is not a duration such as \"720h\" or \"15m\"", text);
}

int IssueToken(const Options& options, const Issue& issue) {
  v1::IssueTokenRequest request;
  request.set_tenant(options.tenant);
  request.set_role(issue.role);
  request.set_label(issue.label);
  if (!issue.lifetime_text.empty()) {
    request.set_lifetime_ns(ParseDuration(issue.lifetime_text).value_or(0));
  }
  request.set_replaces(issue.replaces);
  request.set_grace_ns(ParseDuration(issue.grace_text).value_or(0));
  v1::IssuedToken issued;
  const grpc::Status status = Call(options, &Stub::IssueToken, request, issued);
  if (!status.ok()) return Report(status, options);
  if (!issue.file.empty()) {
    const absl::Status written =
        WriteFileDurably(issue.file, issued.token() + "\n", kSecretFileMode, /*replace=*/true);
    if (!written.ok()) {
      fmt::print(stderr,
                 "phubctl: {}; token {} was issued but not saved: revoke it with `phubctl token "
                 "revoke`\n",
                 MessageOf(written), issued.info().id());
      return kFailure;
    }
    issued.clear_token();
  }
  if (options.output == Output::kJson) {
    fmt::print("{}", ToJson(issued, /*compact=*/false));
  } else if (issue.file.empty()) {
    fmt::print("{}\n", issued.token());
  }
  const std::string end = issued.info().expires_at_ns() == 0
                              ? "does not expire"
                              : "expires " + DateText(issued.info().expires_at_ns());
  fmt::print(stderr, "phubctl: token {} {}; {}\n", issued.info().id(), end,
             issue.file.empty() ? "it cannot be shown again: store it in a file with mode 0600"
                                : "saved in " + issue.file);
  return kOk;
}

std::string TokensTable(const v1::ListTokensResponse& response, bool wide) {
  std::vector<Table::Column> columns = {{"ID"},    {"TENANT"},  {"ROLE"},
                                        {"STATE"}, {"EXPIRES"}, {"LABEL"}};
  if (wide) {
    for (const char* title : {"CREATED", "CREATED BY", "REVOKED"}) columns.push_back({title});
  }
  Table table(columns);
  for (const v1::TokenInfo& token : response.tokens()) {
    std::vector<std::string> cells = {token.id(),
                                      token.tenant().empty() ? "-" : token.tenant(),
                                      token.role(),
                                      token.state(),
                                      DateText(token.expires_at_ns()),
                                      token.label().empty() ? "-" : token.label()};
    if (wide) {
      cells.push_back(DateText(token.created_at_ns()));
      cells.push_back(token.created_by());
      cells.push_back(DateText(token.revoked_at_ns()));
    }
    table.Add(std::move(cells));
  }
  return table.Text();
}

int ListTokens(const Options& options, const std::string& watch_text) {
  v1::ListTokensRequest request;
  request.set_tenant(options.tenant);
  return ShowPages(options, watch_text, &Stub::ListTokens, request,
                   [&](const v1::ListTokensResponse& response) {
                     return TokensTable(response, options.output == Output::kWide);
                   });
}

int RevokeToken(const Options& options, const Revocation& revocation) {
  if (!Confirmed(revocation.yes, fmt::format("Revoke token {}?", revocation.id))) {
    return kUsage;
  }
  v1::RevokeTokenRequest request;
  request.set_id(revocation.id);
  return ShowAnswer(options, kOnce, &Stub::RevokeToken, request,
                    [](const v1::TokenInfo&) { return std::string(); });
}

int WhoAmI(const Options& options) {
  return ShowAnswer(
      options, kOnce, &Stub::WhoAmI, v1::WhoAmIRequest(), [&](const v1::Identity& identity) {
        return identity.identities() ? fmt::format("{}, role {}\n", Printable(identity.name()),
                                                   Printable(identity.role()))
                                     : fmt::format("anonymous: {} does not use identities\n",
                                                   Target(options.endpoint));
      });
}

}  // namespace

void AddToken(Subcommand parent, const Options& options, Command& command) {
  const Subcommand token = parent.AddSubcommand("token", "Issue, list and revoke tokens");
  token.SetFooter(
      "Examples:\n"
      "  phubctl token issue --tenant acme --lifetime 720h --file acme.token\n"
      "  phubctl token issue --role operator --label \"night shift\" --file operator.token\n"
      "  phubctl token issue --replaces 3f2a... --grace 24h --file acme.token   (rotation)\n"
      "  phubctl token revoke 3f2a... --yes\n"
      "Each daemon stores its own tokens and tenants, unless they share a control store in etcd.");

  const Subcommand issue = token.AddSubcommand("issue", "Issue a token; it is shown only once");
  const auto request = std::make_shared<Issue>();
  issue
      .AddOption("--role", request->role,
                 "Role: tenant (with --tenant NAME), operator, admin or server")
      .TypeName("ROLE")
      .OneOf({"tenant", "operator", "admin", "server"});
  issue.AddOption("--label", request->label, "Purpose of the token").TypeName("TEXT");
  issue
      .AddOption("--lifetime", request->lifetime_text,
                 "Lifetime (default: that of the replaced token, else never expires)")
      .TypeName("DURATION")
      .Check(CheckDuration);
  issue.AddOption("--replaces", request->replaces, "Id of the token to replace").TypeName("ID");
  issue.AddOption("--grace", request->grace_text, "Time until the replaced token expires")
      .TypeName("DURATION")
      .ShowDefault()
      .Check(CheckDuration);
  issue
      .AddOption("--file", request->file,
                 "Write the token to this file (mode 0600) instead of printing it")
      .TypeName("FILE");
  issue.OnNamed([&, request] { command = [&, request] { return IssueToken(options, *request); }; });

  const Subcommand list = token.AddSubcommand("list", "List tokens, without their secrets");
  const auto watch_text = std::make_shared<std::string>();
  AddWatch(list, *watch_text);
  list.OnNamed(
      [&, watch_text] { command = [&, watch_text] { return ListTokens(options, *watch_text); }; });

  const Subcommand revoke = token.AddSubcommand("revoke", "Revoke a token");
  const auto revocation = std::make_shared<Revocation>();
  revoke.AddOption("ID", revocation->id, "Id of the token").Required().TypeName("");
  revoke.AddFlag("--yes", revocation->yes, "Do not ask for confirmation");
  revoke.SetFooter(
      "Jobs that were joined with the token keep running; end them with `phubctl job evict`.\n"
      "If the control store is in etcd and etcd does not answer, the token is revoked only at\n"
      "this daemon until it does: repeat the command at the other daemons (-e).");
  revoke.OnNamed(
      [&, revocation] { command = [&, revocation] { return RevokeToken(options, *revocation); }; });
}

void AddWhoAmI(Subcommand parent, const Options& options, Command& command) {
  const Subcommand whoami =
      parent.AddSubcommand("whoami", "Show your identity and role at the daemon");
  whoami.OnNamed([&] { command = [&] { return WhoAmI(options); }; });
}

}  // namespace phub::client::cli
