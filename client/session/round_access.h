// The internals of public keys and handles, for the C functions (client/c_api).
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "client/session/key_impl.h"
#include "phub/client.h"

namespace phub::client {

struct RoundAccess {
  static Key Make(std::shared_ptr<KeyImpl> state) { return Key(std::move(state)); }
  static const std::shared_ptr<KeyImpl>& KeyOf(const Key& key) { return key.impl_; }
  // Null: the push was refused, and handle.Wait() returns the reason.
  static const std::shared_ptr<KeyImpl>& KeyOf(const Handle& handle) { return handle.key_; }
  static std::uint64_t TicketOf(const Handle& handle) { return handle.ticket_; }
};

}  // namespace phub::client
