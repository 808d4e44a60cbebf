#include "server/store_command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <string_view>
#include <utility>

#include "common/base/host_name.h"
#include "common/base/log.h"
#include "common/base/printable.h"
#include "common/base/random.h"
#include "common/base/status_text.h"
#include "server/store_ends.h"
#include "server/store_view.h"
#include "server/tenant/tenant_admin.h"
#include "server/tenant/token.h"

namespace phub::server {
namespace {

constexpr std::size_t kTextBytesShown = 1024;

struct StoreCommand {
  std::string verb;
  std::vector<std::string> from;
  std::string to;
  std::string store;
  std::string file;
  std::string expect;
  bool dry_run = false;
  bool entries = false;
  Settings settings;
};

int ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk: return 0;
    case absl::StatusCode::kInvalidArgument: return 2;
    case absl::StatusCode::kNotFound: return 3;
    case absl::StatusCode::kPermissionDenied: return 4;
    case absl::StatusCode::kUnavailable: return 5;
    default: return 1;
  }
}

absl::StatusOr<StoreCommand> Parse(const std::vector<std::string>& arguments) {
  StoreCommand command;
  if (arguments.empty()) return absl::InvalidArgumentError("use phubctl store");
  command.verb = arguments.front();
  Settings& settings = command.settings;
  const std::map<std::string_view, std::string*> texts = {
      {"to", &command.to},
      {"store", &command.store},
      {"file", &command.file},
      {"expect", &command.expect},
      {"token_key", &settings.token_key},
      {"etcd_ca", &settings.etcd_ca},
      {"etcd_certificate", &settings.etcd_certificate},
      {"etcd_key", &settings.etcd_key},
      {"etcd_prefix", &settings.etcd_prefix}};
  const std::map<std::string_view, bool*> flags = {{"dry_run", &command.dry_run},
                                                   {"entries", &command.entries},
                                                   {"insecure", &settings.insecure}};
  for (auto next = arguments.begin() + 1; next != arguments.end(); ++next) {
    const std::size_t equals = next->find('=');
    const std::string name = next->substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : next->substr(equals + 1);
    if (name == "from") {
      command.from.push_back(value);
    } else if (const auto text = texts.find(name); text != texts.end()) {
      *text->second = value;
    } else if (const auto flag = flags.find(name); flag != flags.end()) {
      *flag->second = true;
    } else {
      return absl::InvalidArgumentError(fmt::format(
          "\"{}\" is not known; phubctl and phubd probably have different versions", *next));
    }
  }
  return command;
}

AuditNote Note(const std::string& action, const std::string& subject, const std::string& detail) {
  return {.actor = fmt::format("uid {} with phubctl store, host {}", getuid(), HostName()),
          .peer = "",
          .action = action,
          .subject = subject,
          .detail = detail};
}

// Text from a record, which somebody may have written by hand.
std::string Shown(const std::string& text) { return Printable(text, kTextBytesShown); }

void Print(const CopyPlan& plan, const std::string& key_path) {
  fmt::print("tenants        {} to copy, {} equal\n", plan.tenants.size(), plan.equal_tenants);
  for (const Tenant& tenant : plan.tenants) {
    fmt::print("  {}: {}\n", tenant.name, DescribeState(tenant));
  }
  fmt::print("tokens         {} to copy, {} equal\n", plan.tokens.size(), plan.equal_tokens);
  fmt::print("audit entries  {} to copy\n", plan.entry_count());
  for (const AuditLog& log : plan.logs) {
    fmt::print("  log {} of {}: entries {} to {}, token key {}\n", log.id, Shown(log.source),
               log.entries.front().sequence, log.entries.back().sequence, log.key_id);
  }
  for (const auto& [id, key] : plan.keys) fmt::print("token key      {}.{}\n", key_path, id);
}

class Copy {
 public:
  explicit Copy(const StoreCommand& command) : command_(command) {}

  absl::Status Run() {
    if (absl::Status made = MakeEnds(); !made.ok()) return made;
    // A first look at everything changes nothing, also not in case of a conflict.
    auto plan = Look();
    if (!plan.ok()) return plan.status();
    for (const auto& source : sources_) fmt::print("from           {}\n", source->name());
    fmt::print("to             {}\n", target_->name());
    if (command_.dry_run) {
      Print(*plan, target_->key_path());
      fmt::print("dry run: nothing was written\n");
      return absl::OkStatus();
    }
    plan = Settle();
    if (!plan.ok()) return plan.status();
    Print(*plan, target_->key_path());
    if (plan->empty()) {
      fmt::print("nothing is to be done: the target has everything\n");
      return absl::OkStatus();
    }
    const AuditNote note =
        Note("store.copy", target_->name(),
             fmt::format("from {}: {} tenants, {} tokens, {} audit entries", SourceNames(),
                         plan->tenants.size(), plan->tokens.size(), plan->entry_count()));
    if (absl::Status written = target_->Import(*plan, note); !written.ok()) return written;
    fmt::print("copied. The sources are frozen; start their daemons with the new control_store\n");
    fmt::print("every daemon needs {} and all files of that name with a suffix of 8 digits\n",
               target_->key_path());
    return absl::OkStatus();
  }

 private:
  absl::Status MakeEnds() {
    for (const std::string& from : command_.from) {
      auto source = MakeStoreEnd(from, command_.settings, random_);
      if (!source.ok()) return source.status();
      sources_.push_back(*std::move(source));
    }
    auto target = MakeStoreEnd(command_.to, command_.settings, random_);
    if (!target.ok()) return target.status();
    target_ = *std::move(target);
    std::vector<std::string> names = {target_->name()};
    for (const auto& source : sources_) names.push_back(source->name());
    std::sort(names.begin(), names.end());
    if (std::adjacent_find(names.begin(), names.end()) == names.end()) return absl::OkStatus();
    return absl::InvalidArgumentError("a store is named twice");
  }

  absl::StatusOr<CopyPlan> Look() {
    std::vector<StoreImage> images;
    for (const auto& source : sources_) {
      auto image = source->Look();
      if (!image.ok()) return image.status();
      images.push_back(*std::move(image));
    }
    first_key_ = images.front().key;
    auto target = target_->Look();
    if (absl::IsNotFound(target.status())) {
      target = StoreImage{.name = target_->name(), .key = first_key_};
    }
    if (!target.ok()) return target.status();
    return Plan(images, *target);
  }

  // Nobody changes any of them from now on, so this plan is the one that counts.
  absl::StatusOr<CopyPlan> Settle() {
    absl::Status status =
        target_->Hold(fmt::format("{} is copied into it", SourceNames()), first_key_);
    if (!status.ok()) return status;
    const std::string why = fmt::format("it was copied to {}", target_->name());
    std::vector<StoreImage> images;
    for (const auto& source : sources_) {
      status = source->Freeze(why, Note("store.freeze", source->name(), why));
      if (!status.ok()) return status;
      auto image = source->Read();
      if (!image.ok()) return image.status();
      images.push_back(*std::move(image));
    }
    const auto target = target_->Read();
    if (!target.ok()) return target.status();
    return Plan(images, *target);
  }

  static absl::StatusOr<CopyPlan> Plan(std::vector<StoreImage>& images, const StoreImage& target) {
    for (StoreImage& image : images) {
      if (absl::Status checked = CheckLogs(image); !checked.ok()) return checked;
      image.log.source = fmt::format("{} on host {}", image.name, HostName());
      image.log.closed_at = WallNow();
    }
    return PlanCopy(images, target);
  }

  std::string SourceNames() const {
    std::string names;
    for (const auto& source : sources_) names += (names.empty() ? "" : ", ") + source->name();
    return names;
  }

  const StoreCommand& command_;
  SystemRandom random_;
  std::vector<std::unique_ptr<StoreEnd>> sources_;
  std::unique_ptr<StoreEnd> target_;
  std::string first_key_;
};

void PrintLog(const AuditLog& log, bool own, bool entries) {
  fmt::print("audit log {}: {} entries, verified with token key {}{}\n",
             log.id.empty() ? "(none)" : log.id, log.entries.size(), log.key_id,
             own ? "" : ", of " + Shown(log.source));
  if (!entries) return;
  for (const AuditEntry& entry : log.entries) {
    fmt::print("  {} {} {} {} ({}) by {}: {}\n", entry.sequence, entry.at, Shown(entry.action),
               Shown(entry.subject), Shown(entry.detail), Shown(entry.actor), Shown(entry.outcome));
  }
}

absl::Status Show(const StoreCommand& command) {
  SystemRandom random;
  const auto end = MakeStoreEnd(command.store, command.settings, random);
  if (!end.ok()) return end.status();
  const auto image = (*end)->Look();
  if (!image.ok()) return image.status();
  fmt::print("{}\n", (*end)->name());
  for (const Tenant& tenant : image->tenants) {
    fmt::print("tenant {}: {}\n", tenant.name, DescribeState(tenant));
  }
  for (const Token& token : image->tokens) {
    fmt::print(
        "token {}: {}, label \"{}\", token key {}, created_at_ns {}, expires_at_ns {}, "
        "revoked_at_ns {}, by {}\n",
        Shown(token.id),
        token.tenant.empty() ? ToString(token.role) : "tenant " + Shown(token.tenant),
        Shown(token.label), token.key_id, token.created_at, token.expires_at, token.revoked_at,
        Shown(token.created_by));
  }
  if (absl::Status checked = CheckLogs(*image); !checked.ok()) return checked;
  PrintLog(image->log, /*own=*/true, command.entries);
  for (const AuditLog& log : image->old_logs) PrintLog(log, /*own=*/false, command.entries);
  return absl::OkStatus();
}

absl::Status Thaw(const StoreCommand& command) {
  SystemRandom random;
  const auto end = MakeStoreEnd(command.store, command.settings, random);
  if (!end.ok()) return end.status();
  const absl::Status thawed = (*end)->Thaw(Note("store.thaw", (*end)->name(), ""));
  if (thawed.ok()) fmt::print("{} can be changed again\n", (*end)->name());
  return thawed;
}

absl::Status Run(const StoreCommand& command) {
  if (command.verb == "copy" && !command.from.empty()) return Copy(command).Run();
  if (command.verb == "show") return Show(command);
  if (command.verb == "thaw") return Thaw(command);
  if (command.verb == "set-view") {
    return DeclareViewIn(command.store, command.settings, command.file, command.expect,
                         Note("view.set", "", ""));
  }
  return absl::InvalidArgumentError("use phubctl store");
}

}  // namespace

int RunStoreCommand(const std::vector<std::string>& arguments) {
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  SetLogLevel(LogLevel::kWarning);
  const auto command = Parse(arguments);
  const absl::Status status = command.ok() ? Run(*command) : command.status();
  if (!status.ok()) fmt::print(stderr, "phubctl: {}\n", MessageOf(status));
  return ExitCodeOf(status);
}

}  // namespace phub::server
