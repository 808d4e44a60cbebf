// A phub-aggregator of its own, and calls of its control socket.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/aggregation/packet.h"
#include "phub/v1/aggregator.grpc.pb.h"
#include "tests/process/process.h"
#include "tests/support/temporary_folder.h"

namespace phub::process {

extern const char* const kAggregator;

class AggregatorProcess {
 public:
  using Starter =
      std::function<Process(const std::string& program, const std::vector<std::string>&)>;
  // Waits until it serves. With a metrics port.
  explicit AggregatorProcess(std::vector<std::string> arguments = {});
  // Started in another way, such as in another network namespace.
  AggregatorProcess(const std::string& listen, std::vector<std::string> arguments, Starter start);
  // Kills it and starts another on the same port.
  void Restart();

  Process& process() { return *process_; }
  const phub_endpoint& endpoint() const { return endpoint_; }
  std::uint16_t metrics_port() const { return metrics_port_; }
  std::string control() const { return folder_.path() + "/control.sock"; }

  grpc::Status Grant(const v1::GrantLeaseRequest& request, v1::GrantLeaseResponse& response);
  bool Renew(std::uint32_t number);
  bool End(std::uint32_t number);
  v1::ListLeasesResponse List();
  // "dropped_total/forged"; 0 if it does not exist.
  std::uint64_t Counter(const std::string& name);

 private:
  void Start(const std::string& listen);

  TemporaryFolder folder_;
  std::vector<std::string> arguments_;
  Starter start_;
  std::unique_ptr<Process> process_;
  std::string listen_;
  phub_endpoint endpoint_{};
  std::uint16_t metrics_port_ = 0;
  std::unique_ptr<v1::Aggregator::Stub> stub_;
};

}  // namespace phub::process
