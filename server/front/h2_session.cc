#include "server/front/h2_session.h"

#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <span>

#include "common/base/check.h"

namespace phub::server {
namespace {

// What RFC 9113 adds to each header when it counts a list.
constexpr std::size_t kHeaderOverhead = 32;
// Frames are given to nghttp2 in pieces of this size, so that a header block without an end is
// noticed soon.
constexpr std::size_t kPieceBytes = 4096;
constexpr std::size_t kContinuationsMax = 4;
constexpr std::size_t kSettingsMax = 16;
constexpr std::size_t kOutboundAcksMax = 64;
// Resets of streams that a client opened: a burst, then so many per second.
constexpr std::uint64_t kResetBurst = 1000;
constexpr std::uint64_t kResetsPerSecond = 100;

bool HasEnd(const nghttp2_frame& frame) { return (frame.hd.flags & NGHTTP2_FLAG_END_STREAM) != 0; }

std::vector<nghttp2_nv> Fields(const HeaderList& headers) {
  std::vector<nghttp2_nv> fields;
  fields.reserve(headers.size());
  for (const auto& [name, value] : headers) {
    // nghttp2 copies both and does not change them.
    const auto bytes = [](const std::string& text) {
      return const_cast<std::uint8_t*>(reinterpret_cast<const std::uint8_t*>(text.data()));
    };
    fields.push_back({bytes(name), bytes(value), name.size(), value.size(), NGHTTP2_NV_FLAG_NONE});
  }
  return fields;
}

}  // namespace

std::string_view FindHeader(const HeaderList& headers, std::string_view name) {
  for (const auto& [each, value] : headers) {
    if (each == name) return value;
  }
  return {};
}

struct H2Session::Calls {
  static H2Session& Self(void* user) { return *static_cast<H2Session*>(user); }

  static void* Allocate(std::size_t bytes, void* user) { return Reallocate(nullptr, bytes, user); }
  static void* AllocateZeros(std::size_t count, std::size_t bytes, void* user) {
    H2Session& self = Self(user);
    if (!self.HasRoom(count * bytes)) return nullptr;
    void* const made = std::calloc(count, bytes);
    self.memory_bytes_ += malloc_usable_size(made);
    return made;
  }
  static void* Reallocate(void* old, std::size_t bytes, void* user) {
    H2Session& self = Self(user);
    const std::size_t before = malloc_usable_size(old);
    if (bytes > before && !self.HasRoom(bytes - before)) return nullptr;
    void* const made = std::realloc(old, bytes);
    if (made != nullptr || bytes == 0) self.memory_bytes_ += malloc_usable_size(made) - before;
    return made;
  }
  static void Free(void* old, void* user) {
    Self(user).memory_bytes_ -= malloc_usable_size(old);
    std::free(old);
  }

  static int OnBegin(nghttp2_session*, const nghttp2_frame* frame, void* user) {
    H2Session& self = Self(user);
    self.headers_of_ = frame->hd.stream_id;
    self.in_headers_ = true;
    self.block_bytes_ = self.list_bytes_ = 0;
    self.list_.clear();
    return 0;
  }
  static int OnHeader(nghttp2_session*, const nghttp2_frame*, const std::uint8_t* name,
                      std::size_t name_size, const std::uint8_t* value, std::size_t value_size,
                      std::uint8_t, void* user) {
    H2Session& self = Self(user);
    self.list_bytes_ += name_size + value_size + kHeaderOverhead;
    if (self.list_bytes_ > self.limits_.header_list_bytes_max) {
      self.list_.clear();
      return 0;
    }
    self.list_.emplace_back(std::string(reinterpret_cast<const char*>(name), name_size),
                            std::string(reinterpret_cast<const char*>(value), value_size));
    return 0;
  }
  static int OnFrame(nghttp2_session*, const nghttp2_frame* frame, void* user) {
    H2Session& self = Self(user);
    H2Events& events = self.events_;
    const auto cheap = [&] { return events.OnCheapFrame() ? 0 : NGHTTP2_ERR_CALLBACK_FAILURE; };
    switch (frame->hd.type) {
      case NGHTTP2_HEADERS: {
        self.in_headers_ = false;
        const bool first = frame->headers.cat == NGHTTP2_HCAT_REQUEST ||
                           frame->headers.cat == NGHTTP2_HCAT_RESPONSE;
        events.OnHeaders(frame->hd.stream_id,
                         {.kind = first ? HeadersKind::kFirst : HeadersKind::kTrailers,
                          .list = std::exchange(self.list_, {}),
                          .end = HasEnd(*frame),
                          .too_large = self.list_bytes_ > self.limits_.header_list_bytes_max});
        return 0;
      }
      case NGHTTP2_DATA:
        if (HasEnd(*frame)) {
          events.OnEnd(frame->hd.stream_id);
          return 0;
        }
        return frame->hd.length == 0 ? cheap() : 0;
      case NGHTTP2_PING:
        events.OnPing(frame->ping.opaque_data, (frame->hd.flags & NGHTTP2_FLAG_ACK) != 0);
        return cheap();
      case NGHTTP2_GOAWAY:
        events.OnGoaway(frame->goaway.last_stream_id, frame->goaway.error_code);
        return cheap();
      case NGHTTP2_WINDOW_UPDATE:
        if (self.window_updates_due_ == 0) return cheap();
        --self.window_updates_due_;
        return 0;
      default: return cheap();
    }
  }
  static int OnInvalid(nghttp2_session*, const nghttp2_frame*, int, void* user) {
    return Self(user).events_.OnCheapFrame() ? 0 : NGHTTP2_ERR_CALLBACK_FAILURE;
  }
  static int OnData(nghttp2_session*, std::uint8_t, std::int32_t stream, const std::uint8_t* bytes,
                    std::size_t size, void* user) {
    Self(user).events_.OnData(stream, {reinterpret_cast<const char*>(bytes), size});
    return 0;
  }
  static int OnClosed(nghttp2_session*, std::int32_t stream, std::uint32_t error, void* user) {
    Self(user).events_.OnClosed(stream, error);
    return 0;
  }
  static int OnSent(nghttp2_session*, const nghttp2_frame* frame, void* user) {
    H2Session& self = Self(user);
    if (frame->hd.type == NGHTTP2_DATA)
      self.window_updates_due_ += self.limits_.window_updates_per_frame;
    const bool ends = frame->hd.type == NGHTTP2_DATA || frame->hd.type == NGHTTP2_HEADERS;
    if (ends && HasEnd(*frame)) self.events_.OnEndSent(frame->hd.stream_id);
    return 0;
  }
  static ssize_t Supply(nghttp2_session*, std::int32_t stream, std::uint8_t* bytes,
                        std::size_t size, std::uint32_t* flags, nghttp2_data_source*, void* user) {
    const H2Events::Supply supply =
        Self(user).events_.OnSupply(stream, reinterpret_cast<char*>(bytes), size);
    if (supply.end) *flags |= NGHTTP2_DATA_FLAG_EOF;
    if (supply.trailers) *flags |= NGHTTP2_DATA_FLAG_NO_END_STREAM;
    if (supply.bytes == 0 && !supply.end) return NGHTTP2_ERR_DEFERRED;
    return static_cast<ssize_t>(supply.bytes);
  }
  static constexpr nghttp2_data_provider kSupply{.source = {.ptr = nullptr},
                                                 .read_callback = Supply};
};

H2Session::H2Session(H2Side side, const Limits& limits, H2Events& events)
    : limits_(limits), events_(events) {
  MakeSession(side);
  std::vector<nghttp2_settings_entry> settings = {
      {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, limits.stream_window},
      {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE,
       static_cast<std::uint32_t>(limits.header_list_bytes_max)},
  };
  if (side == H2Side::kServer) {
    settings.push_back({NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, limits.streams_max});
  } else {
    settings.push_back({NGHTTP2_SETTINGS_ENABLE_PUSH, 0});
  }
  Check(nghttp2_submit_settings(session_, NGHTTP2_FLAG_NONE, settings.data(), settings.size()));
  Check(nghttp2_session_set_local_window_size(session_, NGHTTP2_FLAG_NONE, 0,
                                              static_cast<std::int32_t>(limits.connection_window)));
}

void H2Session::MakeSession(H2Side side) {
  memory_ = {this, Calls::Allocate, Calls::Free, Calls::AllocateZeros, Calls::Reallocate};
  nghttp2_session_callbacks* callbacks = nullptr;
  nghttp2_option* option = nullptr;
  PHUB_CHECK(nghttp2_session_callbacks_new(&callbacks) == 0 && nghttp2_option_new(&option) == 0);
  nghttp2_session_callbacks_set_on_begin_headers_callback(callbacks, Calls::OnBegin);
  nghttp2_session_callbacks_set_on_header_callback(callbacks, Calls::OnHeader);
  nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, Calls::OnFrame);
  nghttp2_session_callbacks_set_on_invalid_frame_recv_callback(callbacks, Calls::OnInvalid);
  nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, Calls::OnData);
  nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, Calls::OnClosed);
  nghttp2_session_callbacks_set_on_frame_send_callback(callbacks, Calls::OnSent);
  nghttp2_option_set_no_auto_window_update(option, 1);
  nghttp2_option_set_no_auto_ping_ack(option, 1);
  nghttp2_option_set_no_closed_streams(option, 1);
  nghttp2_option_set_max_outbound_ack(option, kOutboundAcksMax);
  nghttp2_option_set_max_settings(option, kSettingsMax);
  nghttp2_option_set_max_continuations(option, kContinuationsMax);
  nghttp2_option_set_stream_reset_rate_limit(option, kResetBurst, kResetsPerSecond);
  nghttp2_option_set_peer_max_concurrent_streams(option, limits_.streams_max);
  nghttp2_option_set_max_send_header_block_length(option, 1 << 20);
  const int result =
      side == H2Side::kServer
          ? nghttp2_session_server_new3(&session_, callbacks, this, option, &memory_)
          : nghttp2_session_client_new3(&session_, callbacks, this, option, &memory_);
  PHUB_CHECK(result == 0, "result={}", result);
  nghttp2_session_callbacks_del(callbacks);
  nghttp2_option_del(option);
}

H2Session::~H2Session() { nghttp2_session_del(session_); }

bool H2Session::HasRoom(std::size_t bytes) {
  const bool room = memory_bytes_ + bytes <= limits_.memory_bytes_max;
  out_of_memory_ |= !room;
  return room;
}

void H2Session::Check(int result) { failed_ |= nghttp2_is_fatal(result) != 0; }

bool H2Session::Receive(std::string_view bytes) {
  while (!bytes.empty() && !failed_) {
    const std::string_view piece = bytes.substr(0, kPieceBytes);
    bytes.remove_prefix(piece.size());
    const ssize_t done = nghttp2_session_mem_recv(
        session_, reinterpret_cast<const std::uint8_t*>(piece.data()), piece.size());
    if (done < 0) failed_ = true;
    if (in_headers_) block_bytes_ += piece.size();
    const std::size_t block_bytes_max = 2 * limits_.header_list_bytes_max + kPieceBytes;
    if (in_headers_ && block_bytes_ > block_bytes_max && !failed_) EndBlock();
  }
  return !failed_;
}

// The block has no end in sight. The client learns why; nothing more is read.
void H2Session::EndBlock() {
  Reset(headers_of_, NGHTTP2_ENHANCE_YOUR_CALM);
  Check(nghttp2_session_terminate_session(session_, NGHTTP2_ENHANCE_YOUR_CALM));
  failed_ = true;
}

std::string_view H2Session::Next() {
  const std::uint8_t* bytes = nullptr;
  const ssize_t size = nghttp2_session_mem_send(session_, &bytes);
  if (size < 0) failed_ = true;
  if (size <= 0) return {};
  return {reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(size)};
}

bool H2Session::Finished() const {
  return nghttp2_session_want_read(session_) == 0 && nghttp2_session_want_write(session_) == 0;
}

std::int32_t H2Session::Request(const HeaderList& headers, bool end) {
  const std::vector<nghttp2_nv> fields = Fields(headers);
  const std::int32_t stream = nghttp2_submit_request(
      session_, nullptr, fields.data(), fields.size(), end ? nullptr : &Calls::kSupply, nullptr);
  if (stream < 0) Check(stream);
  return stream;
}

void H2Session::Respond(std::int32_t stream, const HeaderList& headers, bool end) {
  const std::vector<nghttp2_nv> fields = Fields(headers);
  Check(nghttp2_submit_response(session_, stream, fields.data(), fields.size(),
                                end ? nullptr : &Calls::kSupply));
}

void H2Session::Trailers(std::int32_t stream, const HeaderList& headers) {
  const std::vector<nghttp2_nv> fields = Fields(headers);
  Check(nghttp2_submit_trailer(session_, stream, fields.data(), fields.size()));
}

void H2Session::Resume(std::int32_t stream) {
  Check(nghttp2_session_resume_data(session_, stream));
}

void H2Session::Reset(std::int32_t stream, std::uint32_t error) {
  Check(nghttp2_submit_rst_stream(session_, NGHTTP2_FLAG_NONE, stream, error));
}

void H2Session::Consume(std::int32_t stream, std::size_t bytes) {
  Check(nghttp2_session_consume(session_, stream, bytes));
}

void H2Session::Ping(const std::uint8_t* opaque, bool ack) {
  const std::uint8_t flags = ack ? NGHTTP2_FLAG_ACK : NGHTTP2_FLAG_NONE;
  Check(nghttp2_submit_ping(session_, flags, opaque));
}

void H2Session::Goaway(std::int32_t last_stream, std::uint32_t error) {
  Check(nghttp2_submit_goaway(session_, NGHTTP2_FLAG_NONE, last_stream, error, nullptr, 0));
}

void H2Session::Widen(const Limits& limits) {
  limits_.memory_bytes_max = limits.memory_bytes_max;
  const nghttp2_settings_entry window{NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, limits.stream_window};
  Check(nghttp2_submit_settings(session_, NGHTTP2_FLAG_NONE, &window, 1));
  Check(nghttp2_session_set_local_window_size(session_, NGHTTP2_FLAG_NONE, 0,
                                              static_cast<std::int32_t>(limits.connection_window)));
}

}  // namespace phub::server
