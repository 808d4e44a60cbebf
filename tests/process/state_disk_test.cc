// The disk of state_dir: no tenant can fill it with audit entries, and what an administrator needs
// works while it is full. Another tenant's job trains
// on meanwhile, and has the bits of an undisturbed one.
#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "common/base/descriptor.h"
#include "tests/process/identity_fixture.h"
#include "tests/process/steady_training.h"
#include "tests/support/eventually.h"

namespace phub::process {
namespace {

constexpr DurationNs kPatience = 60 * kSecond;

std::size_t CountOf(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

class StateDisk : public ::testing::Test {
 protected:
  void Start(std::function<void(const std::string&)> prepare) {
    daemon_ = std::make_unique<IdentityDaemon>(IdentityDaemon::Options{
        .arguments = {"--insecure", "--liveness-timeout", "60s"}, .prepare = std::move(prepare)});
    ASSERT_NE(daemon_->endpoint(), "") << daemon_->process().Outputs();
    for (const char* tenant : {"acme", "zeta"})
      ASSERT_EQ(daemon_->AskAsRoot({"tenant", "create", tenant}).exit, Exit::WithCode(0));
    token_ = daemon_->IssueToken("acme", {"--tenant", "acme"});
    // libphub reads it for the victim.
    setenv("PHUB_TOKEN_FILE", daemon_->IssueToken("victim", {"--tenant", "zeta"}).c_str(), 1);
    victim_ = std::make_unique<SteadyTraining>(std::vector{daemon_->endpoint()},
                                               JobOptions{.job = "victim", .world_size = 2},
                                               50 * kMillisecond);
    ASSERT_TRUE(victim_->WaitFor(1)) << Log();
  }
  grpc::Status Join(const std::string& job) {
    const auto stub = v1::Session::NewStub(daemon_->Channel(daemon_->WithToken(token_)));
    v1::JoinRequest request;
    request.set_protocol_version_min(1);
    request.set_protocol_version_max(1);
    request.set_job(job);
    request.mutable_options()->set_world_size(1);
    grpc::ClientContext context;
    v1::JoinResponse joined;
    return stub->Join(&context, request, &joined);
  }
  std::string AuditLog() { return daemon_->AskAsRoot({"audit", "tail", "-n", "1000"}).output; }
  std::string Log() { return daemon_->process().Outputs(); }

  std::unique_ptr<IdentityDaemon> daemon_;
  std::string token_;
  std::unique_ptr<SteadyTraining> victim_;
};

TEST_F(StateDisk, ATenantThatEvictsItsJobsInALoopFillsNoLog) {
  Start({});
  const auto channel = daemon_->Channel(daemon_->WithToken(token_));
  const auto admin = v1::Admin::NewStub(channel);
  constexpr int kJobs = 80;
  const SystemClock clock;
  const TimeNs begun = clock.Now();
  for (int i = 0; i < kJobs; ++i) {
    ASSERT_TRUE(Join("loop" + std::to_string(i)).ok());
    v1::EvictJobRequest evict;
    evict.set_job("loop" + std::to_string(i));
    grpc::ClientContext context;
    v1::JobInfo info;
    const grpc::Status status = admin->EvictJob(&context, evict, &info);
    ASSERT_TRUE(status.ok()) << status.error_message();
  }
  EXPECT_EQ(victim_->Finish(), "");
  const auto earned = static_cast<std::size_t>((clock.Now() - begun) / (10 * kSecond) + 1);
  // The administrator's own entries are recorded however many the tenant makes.
  ASSERT_TRUE(Join("watched").ok());
  ASSERT_EQ(daemon_->AskAsRoot({"job", "evict", "watched", "--tenant", "acme", "--yes"}).exit,
            Exit::WithCode(0));
  const std::string log = AuditLog();
  EXPECT_GE(CountOf(log, "job.evict acme/loop"), 30u);
  EXPECT_LE(CountOf(log, "job.evict acme/loop"), 30 + earned) << log;
  EXPECT_THAT(log, HasSubstr("job.evict acme/watched"));
  // A summary of the rest is written, at the latest when phubd stops.
  daemon_->process().Signal(SIGTERM);
  ASSERT_EQ(daemon_->process().Wait(kPatience), Exit::WithCode(0));
  ASSERT_TRUE(daemon_->Start()) << Log();
  const std::string later = AuditLog();
  const std::size_t left_out = kJobs - CountOf(later, "job.evict acme/loop");
  EXPECT_THAT(later, HasSubstr("audit.suppressed acme (" + std::to_string(left_out) +
                               " entries suppressed in "));
  EXPECT_THAT(Log(), Not(HasSubstr("audit_log_broken")));
}

// A tmpfs for the daemon's state.
class SmallDisk {
 public:
  bool Mount(const std::string& path) {
    std::filesystem::create_directory(path);
    if (mount("tmpfs", path.c_str(), "tmpfs", 0, "size=4m,mode=0700") != 0) return false;
    path_ = path;
    return true;
  }
  ~SmallDisk() {
    if (!path_.empty()) umount2(path_.c_str(), MNT_DETACH);
  }
  void Fill() const {
    const Descriptor file(
        open((path_ + "/filler").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_APPEND, 0600));
    const std::string block(4096, 'x');
    while (write(file.get(), block.data(), block.size()) > 0) continue;
  }
  void Empty() const { std::filesystem::remove(path_ + "/filler"); }
  bool mounted() const { return !path_.empty(); }

 private:
  std::string path_;
};

TEST_F(StateDisk, AdministratorsChangesWorkWhileItIsFull) {
  SmallDisk disk;
  Start([&](const std::string& folder) { static_cast<void>(disk.Mount(folder + "/state")); });
  if (!disk.mounted()) GTEST_SKIP() << "no right to mount a tmpfs";
  const std::string operator_token = daemon_->IssueToken("op", {"--role", "operator"});
  ASSERT_TRUE(Join("before").ok());
  disk.Fill();
  // New jobs are refused first, without anybody's change that fails.
  grpc::Status refused;
  int attempts = 0;
  EXPECT_TRUE(Eventually([&] {
    refused = Join("after" + std::to_string(++attempts));
    return !refused.ok();
  })) << Log();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(refused.error_message(), HasSubstr("the file system of state_dir has only"));
  disk.Fill();  // what SQLite has freed meanwhile
  const auto works = [&](std::vector<std::string> arguments) {
    const Finished done = daemon_->AskAsRoot(std::move(arguments));
    EXPECT_EQ(done.exit, Exit::WithCode(0)) << done.error;
    EXPECT_THAT(done.error, HasSubstr("not on disk, and are lost if phubd stops"));
    return done.output;
  };
  works({"tenant", "suspend", "acme", "--yes"});
  works({"tenant", "set-quota", "acme", "--jobs", "7"});
  works({"server", "drain", "--deadline", "1h", "--yes"});
  works({"server", "undrain"});
  const Finished who = daemon_->Ask(operator_token, {"-o", "json", "whoami"});
  ASSERT_EQ(who.exit, Exit::WithCode(0));
  const std::size_t op = who.output.find("token ");
  ASSERT_NE(op, std::string::npos) << who.output;
  works({"token", "revoke", who.output.substr(op + 6, 16), "--yes"});
  EXPECT_NE(daemon_->Ask(operator_token, {"whoami"}).exit, Exit::WithCode(0));
  const std::string shown = daemon_->AskAsRoot({"tenant", "list"}).output;
  EXPECT_THAT(shown, HasSubstr("suspended"));
  EXPECT_THAT(Log(), HasSubstr("event=change_not_durable deferred=1 "));
  // What can wait fails, with the reason.
  const Finished created = daemon_->AskAsRoot({"tenant", "create", "late"});
  EXPECT_NE(created.exit, Exit::WithCode(0));
  EXPECT_THAT(created.error, HasSubstr("full"));
  // Tenants are not stopped from ending their own jobs.
  EXPECT_EQ(daemon_->Ask(token_, {"job", "evict", "before", "--yes"}).exit, Exit::WithCode(0));
  const std::uint64_t trained = victim_->iteration();
  EXPECT_TRUE(victim_->WaitFor(trained + 1));

  disk.Empty();
  ASSERT_TRUE(daemon_->process().WaitForOutput("event=control_store_recovered", kPatience))
      << Log();
  EXPECT_EQ(victim_->Finish(), "");
  daemon_->Kill();
  ASSERT_TRUE(daemon_->Start()) << Log();
  // Expect: everything is on disk, in one unbroken log.
  EXPECT_THAT(Log(), Not(HasSubstr("audit_log_broken")));
  const std::string log = AuditLog();
  for (const char* entry : {"tenant.suspend acme", "tenant.set-quota acme", "server.drain",
                            "server.undrain", "token.revoke"}) {
    EXPECT_THAT(log, HasSubstr(entry));
  }
  EXPECT_THAT(daemon_->AskAsRoot({"tenant", "list"}).output, HasSubstr("suspended"));
  EXPECT_NE(daemon_->Ask(operator_token, {"whoami"}).exit, Exit::WithCode(0));
  ASSERT_EQ(daemon_->AskAsRoot({"tenant", "resume", "acme"}).exit, Exit::WithCode(0));
  EXPECT_TRUE(Join("again").ok());
}

}  // namespace
}  // namespace phub::process
