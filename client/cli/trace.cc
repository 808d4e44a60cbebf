// phubctl job trace: what the daemon's core loops do with the rounds of a running job.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <memory>
#include <system_error>
#include <thread>

#include "client/cli/cli.h"
#include "client/cli/interrupt.h"
#include "client/cli/job_name.h"
#include "client/cli/output.h"
#include "client/cli/rpc.h"
#include "client/cli/trace_file.h"
#include "common/base/units.h"

namespace phub::client::cli {
namespace {

constexpr std::uint32_t kIterationsDefault = 10;
constexpr std::uint32_t kSecondsDefault = 60;
constexpr std::chrono::milliseconds kPause{20};  // while no page is ready
constexpr DurationNs kProgressEvery = kSecond;

struct TraceQuery {
  std::string job;
  std::string file;
  std::uint32_t iterations = 0;  // 0: not given
  std::uint32_t seconds = 0;     // 0: not given
};

std::int64_t UnixNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// Reads one trace, over one connection.
class TraceReader {
 public:
  TraceReader(const Options& options, const JobName& job) : options_(options) {
    request_.set_tenant(job.tenant);
    request_.set_job(job.name);
  }

  // Begins the trace. Later calls name its number.
  grpc::Status Begin(v1::TraceJobResponse& first) {
    std::shared_ptr<grpc::Channel> channel;
    if (grpc::Status status = Connect(options_, channel); !status.ok()) return status;
    stub_ = v1::Admin::NewStub(channel);
    const grpc::Status status = Next(first);
    request_.set_trace(first.trace());
    return status;
  }
  grpc::Status Next(v1::TraceJobResponse& page) {
    grpc::ClientContext context;
    Prepare(context, options_);
    return stub_->TraceJob(&context, request_, &page);
  }
  // The daemon would end it later anyway, so an error does not matter: the page is empty then.
  v1::TraceJobResponse End() {
    request_.set_end(true);
    v1::TraceJobResponse last;
    Next(last);
    return last;
  }

 private:
  const Options& options_;
  v1::TraceJobRequest request_;
  std::unique_ptr<v1::Admin::Stub> stub_;
};

// Reads pages until the trace has what was asked for. An error ends it, too, and so does Ctrl-C.
grpc::Status ReadPages(TraceReader& reader, const TraceQuery& query, const Interrupt& interrupt,
                       TraceFile& trace) {
  const std::uint64_t iterations =
      query.iterations == 0 && query.seconds == 0 ? kIterationsDefault : query.iterations;
  const DurationNs time = (query.seconds == 0 ? kSecondsDefault : query.seconds) * kSecond;
  const SystemClock clock;
  const TimeNs begun = clock.Now();
  TimeNs progress_at = begun + kProgressEvery;
  while (!trace.full() && !interrupt.noted()) {
    v1::TraceJobResponse page;
    if (grpc::Status status = reader.Next(page); !status.ok()) return status;
    trace.Add(page);
    const TimeNs now = clock.Now();
    if ((iterations > 0 && trace.iterations() >= iterations) || now - begun >= time) break;
    if (now >= progress_at && isatty(STDERR_FILENO) != 0) {
      fmt::print(stderr, "phubctl: traced {} iterations in {}\n", trace.iterations(),
                 HumanDuration(now - begun));
      progress_at = now + kProgressEvery;
    }
    if (!page.more()) std::this_thread::sleep_for(kPause);
  }
  return grpc::Status::OK;
}

int WriteFile(const std::string& path, std::FILE* file, const TraceFile& trace) {
  errno = 0;
  const bool written = trace.Write([file](std::string_view text) {
    return std::fwrite(text.data(), 1, text.size(), file) == text.size();
  });
  if (std::fclose(file) == 0 && written) return kOk;
  fmt::print(stderr, "phubctl: cannot write {}: {}\n", path,
             std::generic_category().message(errno));
  return kFailure;
}

// Only this daemon's part of the rounds is in the trace.
void WarnOfOtherDaemons(const v1::TraceJobResponse& page) {
  if (page.daemons() > 1) {
    PrintWarning(fmt::format(
        "the trace has only the chunks of daemon {} of the rack's {} daemons; trace the others "
        "with --endpoint",
        page.daemon(), page.daemons()));
  }
  if (page.racks_size() > 0) {
    PrintWarning(fmt::format(
        "the job spans {} racks; the trace has only what this daemon did in rack {}; trace the "
        "others with --endpoint",
        page.racks_size(), page.rack()));
  }
}

int Trace(const Options& options, const TraceQuery& query) {
  JobName job;
  if (grpc::Status status = FindJob(options, query.job, job); !status.ok())
    return Report(status, options);
  TraceReader reader(options, job);
  v1::TraceJobResponse first;
  const std::int64_t asked_at = UnixNs();
  grpc::Status status = reader.Begin(first);
  if (!status.ok()) return Report(status, options);
  TraceFile trace(job.name, first, asked_at + (UnixNs() - asked_at) / 2);
  const Interrupt interrupt;
  errno = 0;
  std::FILE* const file = std::fopen(query.file.c_str(), "we");
  if (file == nullptr) {
    fmt::print(stderr, "phubctl: cannot write {}: {}\n", query.file,
               std::generic_category().message(errno));
    reader.End();
    return kFailure;
  }
  trace.Add(first);
  status = ReadPages(reader, query, interrupt, trace);
  // The core loops are read one after the other, so the first ones lack what the others have.
  if (status.ok()) trace.Add(reader.End());
  const int written = WriteFile(query.file, file, trace);
  WarnOfOtherDaemons(first);
  if (trace.dropped() > 0) {
    PrintWarning(fmt::format(
        "the trace is incomplete: {} spans were dropped because they were read too slowly",
        trace.dropped()));
  }
  if (trace.full()) {
    PrintWarning(
        fmt::format("the trace ended early, because a file has at most {} spans", trace.spans()));
  }
  fmt::print(stderr, "phubctl: {} iterations, {} spans of core loops in {}\n", trace.iterations(),
             trace.spans(), query.file);
  if (!status.ok()) return Report(status, options);
  if (trace.spans() > 0) return written;
  fmt::print(
      stderr,
      "phubctl: no round of job {} was completed while it was traced; `phubctl job stalls {}` "
      "shows which ranks it waits for\n",
      query.job, query.job);
  return kFailure;
}

}  // namespace

void AddTrace(Subcommand job, const Options& options, Command& command) {
  const Subcommand trace = job.AddSubcommand(
      "trace", "Record when the daemon receives, sums, updates and sends each key");
  const auto query = std::make_shared<TraceQuery>();
  trace.AddOption("NAME", query->job, "Name of the job, or TENANT/NAME").Required().TypeName("");
  trace.AddOption("FILE", query->file, "Write the trace here, as Chrome trace JSON")
      .Required()
      .TypeName("");
  trace
      .AddOption("--iterations", query->iterations,
                 "End after this many iterations (default: 10, or no limit with --seconds)")
      .TypeName("NUMBER")
      .InRange(1, 1'000'000);
  trace
      .AddOption("--seconds", query->seconds,
                 "End after this time, even if there were fewer iterations (default: 60)")
      .TypeName("SECONDS")
      .InRange(1, 3600);
  trace.SetFooter(
      "The job's ranks take no part and need no setting. The daemon records the job's rounds\n"
      "only while this command runs. Open the file at https://ui.perfetto.dev, or join it with\n"
      "the ranks' files of PHUB_TIMELINE by bench/draw-timeline.\n"
      "\n"
      "The file has only the chunks of the daemon that answers. If the job uses several daemons\n"
      "or racks, run the command for each of them with --endpoint. If the job ends meanwhile,\n"
      "or you press Ctrl-C, the file has the rounds that were read before.\n"
      "\n"
      "Example:\n"
      "  phubctl job trace digits trace.json --iterations 20\n"
      "  phubctl: 20 iterations, 240 spans of core loops in trace.json");
  trace.OnNamed([&, query] { command = [&, query] { return Trace(options, *query); }; });
}

}  // namespace phub::client::cli
