// The internals of public keys and handles, for the C functions (client/c_api) and for pools.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "client/session/completion_queue.h"
#include "client/session/key_impl.h"
#include "client/session/pool_rounds.h"
#include "phub/client.h"

namespace phub::client {

struct RoundAccess {
  static Key Make(std::shared_ptr<KeyImpl> state) { return Key(std::move(state)); }
  static const std::shared_ptr<KeyImpl>& KeyOf(const Key& key) { return key.impl_; }
  // Null: the push was refused, and handle.Wait() returns the reason.
  static const std::shared_ptr<KeyImpl>& KeyOf(const Handle& handle) { return handle.key_; }

  static Handle Refused(Status status) { return Handle(std::move(status)); }
  // For an operation of a pool, whose last round is `ticket` of `key`.
  static Handle Started(std::shared_ptr<KeyImpl> key, std::uint64_t ticket,
                        std::shared_ptr<const PoolRounds> rounds) {
    Handle handle(std::move(key), ticket);
    handle.pool_rounds_ = std::move(rounds);
    return handle;
  }

  // Reports the handle to `queue`, once, when handle.Test() is true. REQUIRES: it was not refused.
  static void Watch(const Handle& handle, std::uint64_t tag, std::shared_ptr<RoundSink> queue) {
    const PoolRounds* const rounds = handle.pool_rounds_.get();
    if (rounds == nullptr || rounds->earlier.empty()) {
      handle.key_->Watch(One({.ticket = handle.ticket_, .tag = tag, .queue = std::move(queue)}));
      return;
    }
    auto count = std::make_shared<RoundCount>(rounds->earlier.size() + 1,
                                              One({.ticket = handle.ticket_,
                                                   .tag = tag,
                                                   .key = handle.key_,
                                                   .earlier = handle.pool_rounds_}),
                                              std::move(queue));
    for (const PoolRounds::Round& round : rounds->earlier)
      round.key->Watch(One({.ticket = round.ticket, .queue = count}));
    handle.key_->Watch(One({.ticket = handle.ticket_, .queue = std::move(count)}));
  }

 private:
  static WatchedRounds One(WatchedRound round) {
    WatchedRounds one;
    one.push_back(std::move(round));
    return one;
  }
};

}  // namespace phub::client
