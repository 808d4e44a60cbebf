// Figures that a daemon reports about its jobs.
#pragma once

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "phub/v1/admin.grpc.pb.h"

namespace phub::process {

inline std::uint64_t ReservedBytes(const std::string& endpoint) {
  const auto channel = grpc::CreateChannel(endpoint, grpc::InsecureChannelCredentials());
  grpc::ClientContext context;
  v1::ServerInfo info;
  const grpc::Status status = v1::Admin::NewStub(channel)->GetServer(&context, {}, &info);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return info.memory_bytes();
}

// A metric of a tenant, as phubctl stats shows it.
inline std::uint64_t TenantMetric(const std::string& endpoint, const std::string& name,
                                  const std::string& tenant = "default") {
  const auto channel = grpc::CreateChannel(endpoint, grpc::InsecureChannelCredentials());
  grpc::ClientContext context;
  v1::GetStatsResponse stats;
  const grpc::Status status = v1::Admin::NewStub(channel)->GetStats(&context, {}, &stats);
  EXPECT_TRUE(status.ok()) << status.error_message();
  for (const v1::Counter& counter : stats.counters()) {
    if (counter.name() == name && counter.tenant() == tenant) return counter.value();
  }
  ADD_FAILURE() << "there is no " << name;
  return 0;
}

}  // namespace phub::process
