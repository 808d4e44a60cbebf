// phubctl store copy, show, thaw: control stores as a whole. phubctl has no engine of control
// stores; phubd has, so these commands start it.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>
#include <vector>

#include "client/cli/cli.h"

namespace phub::client::cli {
namespace {

struct Store {
  std::vector<std::string> stores;
  std::string store;
  std::string file;
  std::string expect;
  std::string token_key;
  std::string etcd_ca;
  std::string etcd_certificate;
  std::string etcd_key;
  std::string etcd_prefix = "/phub";
  bool insecure = false;
  bool dry_run = false;
  bool entries = false;
};

// Next to phubctl, or in PATH.
std::string FindPhubd() {
  std::error_code error;
  const std::filesystem::path own = std::filesystem::read_symlink("/proc/self/exe", error);
  for (const char* const place : {"phubd", "../sbin/phubd"}) {
    const std::filesystem::path found = own.parent_path() / place;
    if (!own.empty() && std::filesystem::exists(found, error)) return found.string();
  }
  return "phubd";
}

int RunPhubd(const Store& store, const Options& options, std::vector<std::string> arguments) {
  if (options.output == Output::kJson) {
    fmt::print(stderr, "phubctl: phubctl store has no JSON output; leave -o json out\n");
    return kUsage;
  }
  const auto add = [&](const char* name, const std::string& value) {
    if (!value.empty()) arguments.push_back(fmt::format("{}={}", name, value));
  };
  add("token_key", store.token_key);
  add("file", store.file);
  add("expect", store.expect);
  add("etcd_ca", store.etcd_ca);
  add("etcd_certificate", store.etcd_certificate);
  add("etcd_key", store.etcd_key);
  add("etcd_prefix", store.etcd_prefix);
  add("insecure", store.insecure ? "1" : "");
  add("dry_run", store.dry_run ? "1" : "");
  add("entries", store.entries ? "1" : "");
  const std::string program = FindPhubd();
  arguments.insert(arguments.begin(), {program, "store"});
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  std::fflush(nullptr);
  execvp(program.c_str(), pointers.data());
  fmt::print(stderr,
             "phubctl: cannot run phubd, which this command needs: {}. Run it on the host of a "
             "daemon, or add phubd's folder to PATH\n",
             std::strerror(errno));
  return kFailure;
}

void AddEtcdOptions(Subcommand command, Store& store) {
  command
      .AddOption("--token-key", store.token_key,
                 "File of the cluster's token key, as in phubd's settings")
      .TypeName("FILE");
  command.AddOption("--etcd-ca", store.etcd_ca, "Certificate of etcd's authority (PEM)")
      .TypeName("FILE");
  command.AddOption("--etcd-certificate", store.etcd_certificate, "Certificate for etcd (PEM)")
      .TypeName("FILE");
  command.AddOption("--etcd-key", store.etcd_key, "Private key of that certificate (PEM)")
      .TypeName("FILE");
  command.AddOption("--etcd-prefix", store.etcd_prefix, "Prefix of the cluster's keys in etcd")
      .TypeName("PREFIX")
      .ShowDefault();
  command.AddFlag("--insecure", store.insecure, "Allow etcd on other hosts without TLS");
}

int CopyStores(const Store& store, const Options& options) {
  if (store.stores.size() < 2) {
    fmt::print(stderr, "phubctl: name the stores to copy, and then the one to copy them to\n");
    return kUsage;
  }
  std::vector<std::string> arguments = {"copy"};
  for (std::size_t i = 0; i + 1 < store.stores.size(); ++i)
    arguments.push_back("from=" + store.stores[i]);
  arguments.push_back("to=" + store.stores.back());
  return RunPhubd(store, options, std::move(arguments));
}

}  // namespace

void AddStore(Subcommand parent, const Options& options, Command& command) {
  const Subcommand noun = parent.AddSubcommand(
      "store", "Copy control stores between SQLite and etcd; needs phubd on this host");
  const Subcommand copy = noun.AddSubcommand(
      "copy", "Copy tenants, tokens and audit logs, and freeze the stores they come from");
  auto request = std::make_shared<Store>();
  copy.AddOption("STORE", request->stores,
                 "Stores to copy, and then the target: sqlite:DIR or etcd:URL,URL,...")
      .Required()
      .TypeName("");
  copy.AddFlag("--dry-run", request->dry_run, "Show what would be copied, and write nothing");
  AddEtcdOptions(copy, *request);
  copy.SetFooter(
      "The daemons of SQLite stores must be stopped. Run it as their user. See docs/cluster.md.\n"
      "\nExit codes: 0 copied, or nothing to do; 1 refused, for example because stores differ;\n"
      "2 wrong usage; 3 a store does not exist; 4 no permission; 5 etcd does not answer.\n\n"
      "Example:\n"
      "  phubctl store copy sqlite:/var/lib/phub etcd:https://etcd1:2379 \\\n"
      "    --token-key /var/lib/phub/cluster.key --etcd-ca /etc/phub/etcd-ca.crt");
  copy.OnNamed([&command, &options, request] {
    command = [&options, request] { return CopyStores(*request, options); };
  });

  const auto add = [&](const char* name, const char* help) {
    const auto asked = std::make_shared<Store>();
    const Subcommand verb = noun.AddSubcommand(name, help);
    verb.AddOption("STORE", asked->store, "sqlite:DIR or etcd:URL,URL,...").Required().TypeName("");
    AddEtcdOptions(verb, *asked);
    verb.OnNamed([&command, &options, asked, name] {
      command = [&options, asked, name] {
        return RunPhubd(*asked, options, {name, "store=" + asked->store});
      };
    });
    return std::pair(verb, asked);
  };
  const auto [show, shown] = add("show", "Show what a store has, and verify its audit logs");
  show.AddFlag("--entries", shown->entries, "Show all audit entries, too");
  add("thaw", "Allow changes of a store again that was copied elsewhere");
  const auto [set, declared] =
      add("set-view", "Declare a cluster's view in etcd before its daemons start (see `view set`)");
  set.AddOption("FILE", declared->file, "File with the view").Required().TypeName("");
  set.AddOption("--expect", declared->expect,
                "Change the view only if it has this number now (0: none was declared)")
      .TypeName("NUMBER");
}

}  // namespace phub::client::cli
