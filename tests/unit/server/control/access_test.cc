#include "server/control/rpc/access.h"

#include <gtest/gtest.h>

#include <string>

#include "common/base/clock.h"
#include "common/rpc/rpcs.h"

namespace phub::server {
namespace {

TEST(AccessTest, ACertificateThatExpiresDuringItsConnectionIsRefused) {
  const Directory directory;
  const Access access(&directory, true, "rack.example");
  Credentials credentials;
  credentials.peer = "10.0.0.5:40112";
  credentials.certificate =
      CertificateFacts{{"spiffe://rack.example/admin/root"}, WallNow() + 3600 * kSecond};
  const Admission admitted = access.Admit(credentials, rpc::WhoAmI::kMethod);
  EXPECT_TRUE(admitted.status.ok()) << admitted.status;
  // The connection is still the same.
  credentials.certificate->end = WallNow() - 1;
  const Admission refused = access.Admit(credentials, rpc::WhoAmI::kMethod);
  EXPECT_EQ(refused.status.code(), absl::StatusCode::kUnauthenticated) << refused.status;
  EXPECT_NE(refused.status.ToString().find("has expired"), std::string::npos) << refused.status;
}

}  // namespace
}  // namespace phub::server
