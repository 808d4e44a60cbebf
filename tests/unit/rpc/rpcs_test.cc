// Compares the list of RPCs with the services of the .proto files.
#include "common/rpc/rpcs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

#include "phub/v1/admin.pb.h"
#include "phub/v1/cluster.pb.h"
#include "phub/v1/peer.pb.h"
#include "phub/v1/probe.pb.h"
#include "phub/v1/session.pb.h"
#include "phub/v1/tenants.pb.h"

namespace phub::rpc {
namespace {

// "phub.v1.Session/Join" -> the method.
std::map<std::string, const google::protobuf::MethodDescriptor*> MethodsOfProtos() {
  std::map<std::string, const google::protobuf::MethodDescriptor*> methods;
  for (const google::protobuf::FileDescriptor* file :
       {v1::JoinRequest::descriptor()->file(), v1::GetServerRequest::descriptor()->file(),
        v1::WhoAmIRequest::descriptor()->file(), v1::PeerEnvelope::descriptor()->file(),
        v1::ProbePairRequest::descriptor()->file(), v1::GetClusterRequest::descriptor()->file()}) {
    for (int i = 0; i < file->service_count(); ++i) {
      for (int j = 0; j < file->service(i)->method_count(); ++j) {
        const auto* const method = file->service(i)->method(j);
        methods[file->service(i)->full_name() + "/" + method->name()] = method;
      }
    }
  }
  return methods;
}

Kind KindOf(const google::protobuf::MethodDescriptor& method) {
  if (method.client_streaming() && method.server_streaming()) return Kind::kBothStreams;
  if (method.client_streaming()) return Kind::kClientStream;
  return method.server_streaming() ? Kind::kServerStream : Kind::kUnary;
}

TEST(Rpcs, AreThoseOfTheProtoFilesEachOnce) {
  auto methods = MethodsOfProtos();
  EXPECT_EQ(methods.size(), All::kCount);
  All::ForEach([&]<typename Rpc>() {
    const auto found = methods.find(std::string(Rpc::kMethod));
    ASSERT_NE(found, methods.end()) << Rpc::kMethod << " is in no .proto file, or listed twice";
    EXPECT_EQ(found->second->input_type(), Rpc::Request::descriptor()) << Rpc::kMethod;
    EXPECT_EQ(found->second->output_type(), Rpc::Response::descriptor()) << Rpc::kMethod;
    EXPECT_EQ(KindOf(*found->second), Rpc::kKind) << Rpc::kMethod;
    methods.erase(found);
  });
  for (const auto& [name, method] : methods) {
    ADD_FAILURE() << name << " is in a .proto file and not in common/rpc/rpcs.h";
  }
}

template <typename Service>
void ExpectIsOfOneService(const std::string& name) {
  Service::ForEach([&]<typename Rpc>() {
    EXPECT_TRUE(Rpc::kMethod.starts_with("phub.v1." + name + "/")) << Rpc::kMethod;
  });
}

TEST(Rpcs, EachListIsOfOneService) {
  ExpectIsOfOneService<Session>("Session");
  ExpectIsOfOneService<Peer>("Peer");
  ExpectIsOfOneService<Probe>("Probe");
  ExpectIsOfOneService<Admin>("Admin");
  ExpectIsOfOneService<Tenants>("Tenants");
  ExpectIsOfOneService<Membership>("Membership");
}

}  // namespace
}  // namespace phub::rpc
