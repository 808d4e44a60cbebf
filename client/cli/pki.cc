// phubctl pki init, issue: a certificate authority in a directory. Needs no daemon.
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <memory>

#include "client/cli/certificates.h"
#include "client/cli/cli.h"
#include "client/cli/output.h"
#include "common/base/secret_file.h"

namespace phub::client::cli {
namespace {

constexpr mode_t kPublicFileMode = 0644;
constexpr mode_t kFolderMode = 0700;

struct Pki {
  std::string folder;
  std::string key_file;  // the authority's private key; empty: ca.key in `folder`
  std::string trust_domain = "phub";
  std::string role;
  std::string name;
  std::vector<std::string> hosts;
  int days = 0;
};

std::string CheckName(const std::string& name) {
  constexpr std::string_view kAllowed = "abcdefghijklmnopqrstuvwxyz0123456789.-_";
  const bool right =
      !name.empty() && name.size() <= 63 && name.find_first_not_of(kAllowed) == std::string::npos;
  return right ? ""
               : fmt::format("\"{}\" is not a valid name: 1 to 63 of a-z, 0-9, '.', '-' and '_'",
                             name);
}

std::string CheckHost(const std::string& host) {
  const bool right = !host.empty() && std::all_of(host.begin(), host.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '-' || c == ':';
  });
  return right ? "" : fmt::format("\"{}\" is neither a host name nor an IP address", host);
}

std::string KeyFileOf(const Pki& pki) {
  return pki.key_file.empty() ? pki.folder + "/ca.key" : pki.key_file;
}

int Init(const Pki& pki) {
  if (mkdir(pki.folder.c_str(), kFolderMode) != 0 && errno != EEXIST) {
    return ReportError(
        absl::FailedPreconditionError(fmt::format("cannot create directory {}", pki.folder)));
  }
  const absl::StatusOr<Pem> made = MakeAuthority(pki.trust_domain, pki.days);
  if (!made.ok()) return ReportError(made.status());
  // Write the key first: this fails if the directory already has an authority.
  const std::string key_file = KeyFileOf(pki);
  absl::Status status = WriteFileDurably(key_file, made->key, kSecretFileMode, /*replace=*/false);
  if (absl::IsAlreadyExists(status)) {
    return ReportError(absl::AlreadyExistsError(
        fmt::format("{} already exists, and a new authority would invalidate its certificates; use "
                    "another directory",
                    key_file)));
  }
  if (status.ok()) {
    status = WriteFileDurably(pki.folder + "/ca.crt", made->certificate, kPublicFileMode,
                              /*replace=*/true);
  }
  if (status.ok()) {
    status = WriteFileDurably(pki.folder + "/trust_domain", pki.trust_domain + "\n",
                              kPublicFileMode, /*replace=*/true);
  }
  if (!status.ok()) return ReportError(status);
  fmt::print("{}/ca.crt\n{}\n", pki.folder, key_file);
  fmt::print(stderr,
             "phubctl: keep {} off the hosts of daemons, because anyone who has it can impersonate "
             "any identity; copy only ca.crt and a host's own certificate and key to that host\n",
             key_file);
  return kOk;
}

std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

int Issue(const Pki& pki) {
  const absl::StatusOr<std::string> key = ReadSecretFile(KeyFileOf(pki));
  if (!key.ok()) return ReportError(key.status());
  std::string trust_domain = ReadText(pki.folder + "/trust_domain");
  while (!trust_domain.empty() && trust_domain.back() == '\n') trust_domain.pop_back();
  if (trust_domain.empty()) {
    return ReportError(absl::FailedPreconditionError(fmt::format(
        "{}/trust_domain is missing; create the authority with `phubctl pki init`", pki.folder)));
  }
  if (pki.role == "server" && pki.hosts.empty()) {
    return ReportError(absl::InvalidArgumentError(
        "a daemon's certificate needs the names or addresses of its host: pass --host"));
  }
  const absl::StatusOr<Pem> made =
      MakeCertificate({ReadText(pki.folder + "/ca.crt"), *key},
                      {.uri = fmt::format("spiffe://{}/{}/{}", trust_domain, pki.role, pki.name),
                       .hosts = pki.hosts,
                       .days = pki.days});
  if (!made.ok()) return ReportError(made.status());
  const std::string path = fmt::format("{}/{}-{}", pki.folder, pki.role, pki.name);
  absl::Status status =
      WriteFileDurably(path + ".key", made->key, kSecretFileMode, /*replace=*/true);
  if (status.ok()) {
    status = WriteFileDurably(path + ".crt", made->certificate, kPublicFileMode, /*replace=*/true);
  }
  if (!status.ok()) return ReportError(status);
  fmt::print("{0}.crt\n{0}.key\n", path);
  return kOk;
}

}  // namespace

void AddPki(Subcommand parent, Command& command) {
  const Subcommand pki =
      parent.AddSubcommand("pki", "Create a certificate authority and certificates");
  pki.SetFooter(
      "Examples:\n"
      "  phubctl pki init phub-pki --trust-domain rack.example\n"
      "  phubctl pki issue phub-pki server node7 --host node7 --host 10.0.0.7\n"
      "  phubctl pki issue phub-pki tenant acme --days 30\n"
      "Anyone who has ca.key can impersonate any identity: keep it off the daemons' hosts.\n"
      "A daemon needs ca.crt (tls_client_ca), its certificate (tls_certificate) and its key\n"
      "(tls_key). A caller needs ca.crt and its own certificate and key. No daemon is called.");
  const auto request = std::make_shared<Pki>();
  const Subcommand init = pki.AddSubcommand("init", "Create an authority in a directory");
  init.AddOption("DIRECTORY", request->folder, "Directory for the authority")
      .Required()
      .TypeName("");
  init.AddOption("--trust-domain", request->trust_domain,
                 "Namespace of identities; the daemons' trust_domain")
      .TypeName("NAME")
      .Check(CheckName)
      .ShowDefault();
  init.AddOption("--days", request->days, "Lifetime in days (default: 3650)")
      .TypeName("COUNT")
      .InRange(1, 36500);
  const auto add_key_file = [&](Subcommand to) {
    to.AddOption("--key-file", request->key_file,
                 "Private key of the authority, such as on a removable disk (default:\n"
                 "DIRECTORY/ca.key)")
        .TypeName("FILE");
  };
  add_key_file(init);
  init.OnNamed([&command, request] {
    command = [request] {
      if (request->days == 0) request->days = 3650;
      return Init(*request);
    };
  });
  const Subcommand issue = pki.AddSubcommand("issue", "Issue a certificate and its private key");
  issue.AddOption("DIRECTORY", request->folder, "Directory of the authority")
      .Required()
      .TypeName("");
  issue.AddOption("ROLE", request->role, "Role: tenant, operator, admin or server")
      .Required()
      .TypeName("")
      .OneOf({"tenant", "operator", "admin", "server"});
  issue.AddOption("NAME", request->name, "Name of the tenant, person or daemon")
      .Required()
      .TypeName("")
      .Check(CheckName);
  issue
      .AddOption("--host", request->hosts, "Host name or IP address of the daemon; may be repeated")
      .TypeName("HOST")
      .Check(CheckHost);
  issue.AddOption("--days", request->days, "Lifetime in days (default: 90)")
      .TypeName("COUNT")
      .InRange(1, 36500);
  add_key_file(issue);
  issue.OnNamed([&command, request] {
    command = [request] {
      if (request->days == 0) request->days = 90;
      return Issue(*request);
    };
  });
}

}  // namespace phub::client::cli
