// The fixture of the conformance suite: two sides, lanes between them, and everything that each
// side's transport has reported, copied at the time of its completion.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "common/base/random.h"
#include "common/wire/message.h"
#include "tests/conformance/harness.h"

namespace phub::conformance {

using transport::Completion;
using transport::CompletionKind;
using transport::ConnectionId;
using transport::ProtocolError;
using transport::SendRequest;
using transport::TransportError;
using Bytes = std::vector<std::byte>;

inline std::string HarnessName(const ::testing::TestParamInfo<HarnessFactory>& factory) {
  return factory.param.name;
}

inline Bytes PatternBytes(std::size_t count, std::uint64_t seed) {
  Bytes bytes(count);
  SeededRandom random(seed);
  random.Fill(bytes);
  return bytes;
}

// Memory for payload, and the landing table over it.
struct Landing {
  Landing(std::uint32_t slots, std::uint32_t slot_bytes)
      : memory(std::size_t{slots} * slot_bytes), table(slots) {
    for (std::uint32_t i = 0; i < slots; ++i) {
      table[i] = {memory.data() + std::size_t{i} * slot_bytes, slot_bytes};
    }
  }
  Bytes memory;
  std::vector<transport::LandingSlot> table;
};

// The defaults of lanes that tests open.
inline constexpr std::uint32_t kSlots = 16;
inline constexpr std::uint32_t kSlotBytes = 4096;

struct Seen {
  Completion completion;
  wire::MessageHeader header;  // for kReceived
  Bytes payload;               // for kReceived
};

struct Side {
  transport::Transport* transport = nullptr;
  std::vector<std::pair<ConnectionId, const Landing*>> landings;
  std::vector<Seen> seen;
  std::vector<Completion> lent;  // not released yet, if release_at_once is off
  bool release_at_once = true;

  const Landing* LandingOf(ConnectionId id) const {
    for (const auto& [connection, landing] : landings) {
      if (connection == id) return landing;
    }
    return nullptr;
  }

  void Poll(std::size_t burst = 16) {
    std::vector<Completion> completions(burst);
    completions.resize(transport->Poll(completions));
    for (const Completion& completion : completions) {
      Seen item{completion, {}, {}};
      if (completion.kind == CompletionKind::kReceived) {
        item.header = completion.message->header;
        const std::byte* from = completion.message->inline_payload.data();
        const bool lands = item.header.kind == wire::MessageKind::kGradient ||
                           item.header.kind == wire::MessageKind::kParameters;
        const bool is_empty = item.header.payload_bytes == 0;
        if (lands && !is_empty)
          from = LandingOf(completion.connection)->table[item.header.slot.value].data;
        item.payload.assign(from, from + item.header.payload_bytes);
        item.completion.message = nullptr;
        if (!release_at_once) lent.push_back(completion);
      }
      seen.push_back(std::move(item));
    }
    if (release_at_once) transport->Release(completions);
  }

  void ReleaseAll() {
    transport->Release(lent);
    lent.clear();
  }

  std::vector<Seen> Of(CompletionKind kind, ConnectionId id) const {
    std::vector<Seen> found;
    for (const Seen& item : seen) {
      if (item.completion.kind == kind && item.completion.connection == id) found.push_back(item);
    }
    return found;
  }
  std::size_t Count(CompletionKind kind) const {
    std::size_t count = 0;
    for (const Seen& item : seen) count += item.completion.kind == kind;
    return count;
  }
  std::size_t received() const { return Count(CompletionKind::kReceived); }
  std::size_t sent() const { return Count(CompletionKind::kSent); }
  std::size_t closed() const { return Count(CompletionKind::kClosed); }

  std::size_t Post(const SendRequest& request) { return transport->Post({&request, 1}); }
};

struct Lane {
  std::unique_ptr<transport::Connection> left_connection;
  std::unique_ptr<transport::Connection> right_connection;
  std::unique_ptr<Landing> left_landing;
  std::unique_ptr<Landing> right_landing;
  ConnectionId left;
  ConnectionId right;
};

class LaneTest : public ::testing::TestWithParam<HarnessFactory> {
 protected:
  void Start(const HarnessLimits& limits = {}) {
    harness = GetParam().make(limits);
    left = Side{};
    right = Side{};
    left.transport = &harness->left();
    right.transport = &harness->right();
  }

  // Lanes live as long as the fixture, so that payloads and connections outlive their users.
  Lane& Open(std::uint32_t slots = kSlots, std::uint32_t slot_bytes = kSlotBytes) {
    auto lane = std::make_unique<Lane>();
    std::tie(lane->left_connection, lane->right_connection) = harness->Connect();
    lane->left_landing = std::make_unique<Landing>(slots, slot_bytes);
    lane->right_landing = std::make_unique<Landing>(slots, slot_bytes);
    lane->left = left.transport->Adopt(*lane->left_connection, lane->left_landing->table);
    lane->right = right.transport->Adopt(*lane->right_connection, lane->right_landing->table);
    left.landings.emplace_back(lane->left, lane->left_landing.get());
    right.landings.emplace_back(lane->right, lane->right_landing.get());
    lanes.push_back(std::move(lane));
    return *lanes.back();
  }

  template <typename Condition>
  [[nodiscard]] bool Until(Condition condition) {
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!condition()) {
      if (std::chrono::steady_clock::now() > give_up) return false;
      left.Poll();
      right.Poll();
      harness->Pump();
    }
    return true;
  }

  // Waits long enough for everything in flight to arrive, to check that nothing more comes.
  void Settle() {
    for (int i = 0; i < 60; ++i) {
      left.Poll();
      right.Poll();
      harness->Pump();
    }
  }

  static wire::MessageHeader Gradient(std::uint32_t slot, std::size_t payload_bytes,
                                      std::uint64_t iteration = 1) {
    wire::MessageHeader header;
    header.kind = wire::MessageKind::kGradient;
    header.slot = SlotIndex{slot};
    header.iteration = Iteration{iteration};
    header.incarnation = Incarnation{0xABCDEF0123456789u};
    header.payload_bytes = static_cast<std::uint32_t>(payload_bytes);
    return header;
  }
  static wire::MessageHeader Credit(std::uint32_t slot, std::uint64_t iteration = 1) {
    wire::MessageHeader header;
    header.kind = wire::MessageKind::kCredit;
    header.slot = SlotIndex{slot};
    header.iteration = Iteration{iteration};
    return header;
  }

  std::vector<std::unique_ptr<Lane>> lanes;  // outlives the use by the harness's transports
  std::unique_ptr<Harness> harness;
  Side left;
  Side right;

  void TearDown() override {
    // Connections refer to the harness's network; transports to connections.
    for (const std::unique_ptr<Lane>& lane : lanes) {
      left.transport->Close(lane->left);
      right.transport->Close(lane->right);
    }
    for (int i = 0; i < 8; ++i) {
      left.Poll(256);
      right.Poll(256);
    }
    raw_connections.clear();
    lanes.clear();
    harness.reset();
  }

  std::vector<std::unique_ptr<transport::Connection>> raw_connections;
};

}  // namespace phub::conformance
