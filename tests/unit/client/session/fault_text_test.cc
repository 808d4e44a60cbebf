#include "client/session/fault_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace phub::client {
namespace {

using ::testing::HasSubstr;

const Endpoint kDaemon{.host = "rack7", .port = 7700};

TEST(CallStatus, AnswersOfTheDaemonAreWholeAndItsAbsenceGetsItsName) {
  const Status answer =
      CallStatus("Join", kDaemon, absl::ResourceExhaustedError("job a needs 3 MiB more"));
  EXPECT_EQ(answer.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(answer.message(), "job a needs 3 MiB more");
  const Status absent = CallStatus("Join", kDaemon, absl::UnavailableError("refused"));
  EXPECT_EQ(absent.message(), "Join: daemon rack7:7700: refused");
}

TEST(DaemonSilent, SaysSinceWhenInTenthsOfASecond) {
  EXPECT_EQ(DaemonSilent(kDaemon, 2'049 * kMillisecond, "digits", 3).message(),
            "daemon rack7:7700 has not answered for 2.0 s (job digits, rank 3)");
  EXPECT_THAT(DaemonSilent(kDaemon, 2'050 * kMillisecond, "digits", 3).message(),
              HasSubstr("2.1 s"));
}

TEST(LaneLost, TellsALossFromABreach) {
  const Status lost =
      LaneLost(kDaemon, 1, {.error = transport::TransportError::kReset}, "digits", 0);
  EXPECT_EQ(lost.code(), StatusCode::kUnavailable);
  EXPECT_THAT(lost.message(), HasSubstr("lane to core 1: connection reset"));
  const Status breach =
      LaneLost(kDaemon, 1,
               {.fault = LaneFault::kSlotRange, .error = transport::TransportError::kLocalClosed},
               "digits", 0);
  EXPECT_EQ(breach.code(), StatusCode::kInternal);
  const Status form = LaneLost(kDaemon, 1,
                               {.error = transport::TransportError::kProtocol,
                                .protocol_error = transport::ProtocolError::kMagic},
                               "digits", 0);
  EXPECT_EQ(form.code(), StatusCode::kInternal);
  EXPECT_THAT(form.message(), HasSubstr("magic"));
}

TEST(FaultStatus, MessageOfTheDaemonIsTheMessage) {
  v1::Fault fault;
  fault.set_job("digits");
  fault.set_code("worker_died");
  EXPECT_THAT(FaultStatus(fault).message(), HasSubstr("worker_died"));
  fault.set_message("rank 2 on node5 died 1.3 s ago (job digits, key a)");
  EXPECT_EQ(FaultStatus(fault).message(), fault.message());
}

}  // namespace
}  // namespace phub::client
