#include "tests/process/aggregator_process.h"

#include <signal.h>

#include <chrono>
#include <utility>

#include "common/aggregation/endpoint_text.h"
#include "common/base/check.h"
#include "tests/process/daemon_process.h"

namespace phub::process {
namespace {

std::string Field(const std::string& text, const std::string& name) {
  const std::size_t found = text.find(" " + name + "=");
  if (found == std::string::npos) return {};
  const std::size_t begin = found + name.size() + 2;
  return text.substr(begin, text.find_first_of(" \n", begin) - begin);
}

template <typename Call>
grpc::Status Do(const Call& call) {
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::nanoseconds(kStartPatience));
  return call(&context);
}

}  // namespace

const char* const kAggregator = PHUB_TEST_AGGREGATOR;

AggregatorProcess::AggregatorProcess(std::vector<std::string> arguments)
    : AggregatorProcess("127.0.0.1:0", std::move(arguments),
                        [](const std::string& program, const std::vector<std::string>& all) {
                          return Process::Start(program, all);
                        }) {}

AggregatorProcess::AggregatorProcess(const std::string& listen, std::vector<std::string> arguments,
                                     Starter start)
    : arguments_(std::move(arguments)), start_(std::move(start)) {
  Start(listen);
}

void AggregatorProcess::Start(const std::string& listen) {
  std::vector<std::string> all{"--listen", listen,      "--control",
                               control(),  "--metrics", "127.0.0.1:0"};
  all.insert(all.end(), arguments_.begin(), arguments_.end());
  process_ = std::make_unique<Process>(start_(kAggregator, all));
  PHUB_CHECK(process_->WaitForOutput("event=serving", kStartPatience), "{}", process_->Outputs());
  const std::string log = process_->StandardError();
  listen_ = Field(log, "listen");
  endpoint_ = *aggregation::ParseEndpoint(listen_);
  const std::string metrics = Field(log, "metrics");
  metrics_port_ = static_cast<std::uint16_t>(std::stoul(metrics.substr(metrics.rfind(':') + 1)));
  stub_ = v1::Aggregator::NewStub(
      grpc::CreateChannel("unix:" + control(), grpc::InsecureChannelCredentials()));
}

void AggregatorProcess::Restart() {
  process_->Signal(SIGKILL);
  PHUB_CHECK(process_->Wait(kStartPatience) == Exit::BySignal(SIGKILL));
  Start(listen_);
}

grpc::Status AggregatorProcess::Grant(const v1::GrantLeaseRequest& request,
                                      v1::GrantLeaseResponse& response) {
  return Do([&](auto* context) { return stub_->Grant(context, request, &response); });
}

bool AggregatorProcess::Renew(std::uint32_t number) {
  v1::RenewLeasesRequest request;
  request.add_numbers(number);
  v1::RenewLeasesResponse response;
  const auto status = Do([&](auto* context) { return stub_->Renew(context, request, &response); });
  return status.ok() && response.unknown_size() == 0;
}

bool AggregatorProcess::End(std::uint32_t number) {
  v1::EndLeaseRequest request;
  request.set_number(number);
  v1::EndLeaseResponse response;
  return Do([&](auto* context) { return stub_->End(context, request, &response); }).ok();
}

v1::ListLeasesResponse AggregatorProcess::List() {
  v1::ListLeasesResponse response;
  const auto status = Do([&](auto* context) { return stub_->List(context, {}, &response); });
  PHUB_CHECK(status.ok(), "{}", status.error_message());
  return response;
}

std::uint64_t AggregatorProcess::Counter(const std::string& name) {
  const v1::ListLeasesResponse list = List();
  for (const v1::AggregatorCounter& each : list.counters()) {
    if ((each.label().empty() ? each.name() : each.name() + "/" + each.label()) == name)
      return each.value();
  }
  return 0;
}

}  // namespace phub::process
