// The conformance suite over verbs. The tests' memory is not registered, so all payload goes
// through outbox and inbox. direct_test.cc tests registered memory.
#include "common/base/check.h"
#include "tests/conformance/harness.h"
#include "tests/verbs/verbs_pair.h"

namespace phub::conformance {
namespace {

class VerbsHarness final : public Harness {
 public:
  VerbsHarness(const HarnessLimits& limits, const transport::VerbsLimits& verbs_limits,
               bool daemon_is_left, transport::VerbsEnd dialled = transport::VerbsEnd::kClient)
      : limits_(verbs_limits),
        daemon_is_left_(daemon_is_left),
        dialled_(dialled),
        daemon_("rxe1", limits.connections_max),
        client_("rxe0", limits.connections_max) {}

  transport::Transport& left() override {
    return daemon_is_left_ ? daemon_.transport : client_.transport;
  }
  transport::Transport& right() override {
    return daemon_is_left_ ? client_.transport : daemon_.transport;
  }

  ConnectionPair Connect() override {
    auto [daemon, client] = verbs_tests::ConnectVerbs(daemon_, client_, limits_, {}, dialled_);
    if (daemon_is_left_) return {std::move(daemon), std::move(client)};
    return {std::move(client), std::move(daemon)};
  }

  // hostile_test.cc tests hostile peers: they do not send bytes in order.
  std::unique_ptr<RawPeer> ConnectRaw(std::unique_ptr<transport::Connection>&) override {
    return nullptr;
  }

  void Pump() override { verbs_tests::WaitForEither(left(), right()); }

 private:
  const transport::VerbsLimits limits_;
  const bool daemon_is_left_;
  const transport::VerbsEnd dialled_;
  verbs_tests::VerbsHost daemon_;
  verbs_tests::VerbsHost client_;
};

transport::VerbsLimits Limits(const HarnessLimits& limits) {
  return {.send_queue = limits.send_queue,
          .received_lent = limits.received_lent,
          .ack_timeout = verbs_tests::kGuestAckTimeout};
}

std::unique_ptr<Harness> MakeVerbsDaemonHarness(const HarnessLimits& limits) {
  return std::make_unique<VerbsHarness>(limits, Limits(limits), /*daemon_is_left=*/true);
}

std::unique_ptr<Harness> MakeVerbsClientHarness(const HarnessLimits& limits) {
  return std::make_unique<VerbsHarness>(limits, Limits(limits), /*daemon_is_left=*/false);
}

// Between two daemons.
std::unique_ptr<Harness> MakeVerbsDialerHarness(const HarnessLimits& limits) {
  return std::make_unique<VerbsHarness>(limits, Limits(limits), /*daemon_is_left=*/false,
                                        transport::VerbsEnd::kDialer);
}

// With these sizes, everything wraps and fills all the time.
std::unique_ptr<Harness> MakeVerbsSmallHarness(const HarnessLimits& limits) {
  transport::VerbsLimits small = Limits(limits);
  small.messages_max = wire::kVerbsMessagesMin;
  small.inbox_bytes = small.outbox_bytes = wire::kInboxBytesMin;
  return std::make_unique<VerbsHarness>(limits, small, /*daemon_is_left=*/true);
}

}  // namespace

std::vector<HarnessFactory> AllHarnesses() {
  return {{"VerbsDaemon", MakeVerbsDaemonHarness, true, false},
          {"VerbsClient", MakeVerbsClientHarness, true, false},
          {"VerbsDialer", MakeVerbsDialerHarness, true, false},
          {"VerbsSmall", MakeVerbsSmallHarness, true, false}};
}

}  // namespace phub::conformance
