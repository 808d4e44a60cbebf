#include "tests/verbs/fake_verbs.h"

#include <fcntl.h>
#include <infiniband/verbs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "common/base/check.h"
#include "common/transport/verbs/verbs_library.h"

// The library's own names, since macros of its header replace some of them.
#undef ibv_reg_mr
#undef ibv_query_port

namespace phub {

// The fake takes the place of the library, so nothing is loaded.
const std::string& transport::VerbsLibraryProblem() {
  static const std::string none;
  return none;
}

}  // namespace phub

namespace phub::fake_verbs {
namespace {

struct State {
  Device device;
  std::atomic<bool> gone{false};
  std::mutex mutex;
  std::vector<int> hang_up;  // the other ends of open descriptors
  std::vector<std::shared_ptr<void>> kept;
  std::atomic<std::uint32_t> next_number{17};
};

State& TheState() {
  static State state;
  return state;
}

void Pass(const std::atomic<DurationNs>& time) {
  const DurationNs duration = time.load();
  if (duration > 0) std::this_thread::sleep_for(std::chrono::nanoseconds(duration));
}

// The result of a call that the kernel answers.
int Answer() { return TheState().gone ? EIO : 0; }

// A descriptor without events until it hangs up.
int MakeDescriptor() {
  int ends[2];
  PHUB_CHECK(pipe2(ends, O_CLOEXEC) == 0, "errno={}", errno);
  State& state = TheState();
  const std::lock_guard lock(state.mutex);
  state.hang_up.push_back(ends[1]);
  return ends[0];
}

int PollQueue(ibv_cq*, int, ibv_wc*) { return TheDevice().poll_fails ? -1 : 0; }
int Notify(ibv_cq*, int) { return TheDevice().notify_fails ? EINVAL : Answer(); }
int PostSend(ibv_qp*, ibv_send_wr*, ibv_send_wr**) { return 0; }
int PostReceive(ibv_qp*, ibv_recv_wr*, ibv_recv_wr**) { return 0; }
ibv_mw* AllocWindow(ibv_pd* domain, ibv_mw_type type) {
  auto* window = new ibv_mw{};
  window->context = domain->context;
  window->pd = domain;
  window->type = type;
  window->rkey = TheState().next_number++ << 8;
  return window;
}
// The library keeps an object if the kernel no longer answers.
template <typename T>
int Free(T* object) {
  State& state = TheState();
  if (!state.gone) {
    delete object;
    return 0;
  }
  const std::lock_guard lock(state.mutex);
  state.kept.push_back(std::shared_ptr<T>(object));
  return EIO;
}
int DeallocWindow(ibv_mw* window) { return Free(window); }

ibv_device* DeviceOfHost(int number) {
  const auto make = [](const char* name, const char* node) {
    ibv_device made{};
    std::strcpy(made.name, name);
    std::strcpy(made.dev_name, node);
    return made;
  };
  static std::array<ibv_device, 2> devices = {make("fake0", "uverbs0"), make("fake1", "uverbs1")};
  return &devices.at(static_cast<std::size_t>(number));
}

}  // namespace

Device& TheDevice() { return TheState().device; }

void TakeAway(bool hang_up) {
  State& state = TheState();
  state.gone = true;
  const std::lock_guard lock(state.mutex);
  for (const int descriptor : state.hang_up) {
    if (hang_up) close(descriptor);
  }
  state.hang_up.clear();
}

void Reset() {
  State& state = TheState();
  TakeAway();
  state.gone = false;
  state.kept.clear();
  state.device.register_time = state.device.unregister_time = state.device.connect_time = 0;
  state.device.poll_fails = state.device.notify_fails = state.device.reset_fails = false;
  state.device.regions = state.device.registered_bytes = state.device.queue_pairs = 0;
  state.device.registrations = 0;
  state.device.first_is_full = false;
  state.device.bare_first_port = state.device.second_device = state.device.connect_fails = false;
}

}  // namespace phub::fake_verbs

using phub::fake_verbs::Answer;
using phub::fake_verbs::Free;
using phub::fake_verbs::TheDevice;
using phub::fake_verbs::TheState;

extern "C" {

ibv_device** ibv_get_device_list(int* count) {
  const int there = TheDevice().second_device ? 2 : 1;
  auto** list = new ibv_device* [3] {};
  for (int i = 0; i < there; ++i) list[i] = phub::fake_verbs::DeviceOfHost(i);
  if (count != nullptr) *count = there;
  return list;
}
void ibv_free_device_list(ibv_device** list) { delete[] list; }
const char* ibv_get_device_name(ibv_device* device) { return device->name; }

ibv_context* ibv_open_device(ibv_device* device) {
  auto* context = new ibv_context{};
  context->device = device;
  context->async_fd = phub::fake_verbs::MakeDescriptor();
  context->ops.alloc_mw = phub::fake_verbs::AllocWindow;
  context->ops.dealloc_mw = phub::fake_verbs::DeallocWindow;
  context->ops.poll_cq = phub::fake_verbs::PollQueue;
  context->ops.req_notify_cq = phub::fake_verbs::Notify;
  context->ops.post_send = phub::fake_verbs::PostSend;
  context->ops.post_recv = phub::fake_verbs::PostReceive;
  return context;
}
int ibv_close_device(ibv_context* context) {
  close(context->async_fd);
  delete context;
  return 0;
}

int ibv_query_device(ibv_context*, ibv_device_attr* attributes) {
  *attributes = {};
  attributes->phys_port_cnt = TheDevice().bare_first_port ? 2 : 1;
  attributes->max_cqe = 1 << 20;
  attributes->max_qp_wr = 1 << 14;
  attributes->max_sge = 16;
  attributes->device_cap_flags = IBV_DEVICE_MEM_WINDOW_TYPE_2B;
  return Answer();
}
int ibv_query_port(ibv_context*, uint8_t, _compat_ibv_port_attr* compatible) {
  auto* const attributes = reinterpret_cast<ibv_port_attr*>(compatible);
  attributes->state = IBV_PORT_ACTIVE;
  attributes->link_layer = IBV_LINK_LAYER_ETHERNET;
  attributes->active_mtu = attributes->max_mtu = IBV_MTU_1024;
  attributes->max_msg_sz = 1u << 30;
  return Answer();
}
ssize_t _ibv_query_gid_table(ibv_context* context, ibv_gid_entry* entries, size_t entries_max,
                             uint32_t, size_t) {
  if (entries_max == 0) return -EINVAL;
  entries[0] = {};
  entries[0].gid_index = 1;
  entries[0].port_num = TheDevice().bare_first_port ? 2 : 1;
  entries[0].gid_type = IBV_GID_TYPE_ROCE_V2;
  const bool second = context->device == phub::fake_verbs::DeviceOfHost(1);
  const uint8_t address[] = {0xFF, 0xFF, 10, 0, second ? uint8_t{1} : uint8_t{0}, 1};  // 10.0.0.1
  std::memcpy(entries[0].gid.raw + 10, address, sizeof address);
  return 1;
}
const char* ibv_port_state_str(ibv_port_state) { return "PORT_ACTIVE"; }
const char* ibv_wc_status_str(ibv_wc_status) { return "a status"; }
const char* ibv_event_type_str(ibv_event_type) { return "an event"; }
int ibv_get_async_event(ibv_context*, ibv_async_event*) { return -1; }
void ibv_ack_async_event(ibv_async_event*) {}

ibv_pd* ibv_alloc_pd(ibv_context* context) {
  if (TheDevice().first_is_full && context->device == phub::fake_verbs::DeviceOfHost(0)) {
    errno = ENOMEM;
    return nullptr;
  }
  auto* domain = new ibv_pd{};
  domain->context = context;
  return domain;
}
int ibv_dealloc_pd(ibv_pd* domain) { return Free(domain); }

ibv_mr* ibv_reg_mr(ibv_pd* domain, void* data, size_t bytes, int) {
  ++TheDevice().registrations;
  phub::fake_verbs::Pass(TheDevice().register_time);
  if (TheState().gone) {
    errno = EIO;
    return nullptr;
  }
  auto* region = new ibv_mr{};
  region->context = domain->context;
  region->pd = domain;
  region->addr = data;
  region->length = bytes;
  region->lkey = region->rkey = TheState().next_number++ << 8;
  ++TheDevice().regions;
  TheDevice().registered_bytes += bytes;
  return region;
}
ibv_mr* ibv_reg_mr_iova2(ibv_pd* domain, void* data, size_t bytes, uint64_t, unsigned access) {
  return ibv_reg_mr(domain, data, bytes, static_cast<int>(access));
}
int ibv_dereg_mr(ibv_mr* region) {
  phub::fake_verbs::Pass(TheDevice().unregister_time);
  if (!TheState().gone) {
    --TheDevice().regions;
    TheDevice().registered_bytes -= region->length;
  }
  return Free(region);
}

ibv_comp_channel* ibv_create_comp_channel(ibv_context* context) {
  auto* channel = new ibv_comp_channel{};
  channel->context = context;
  channel->fd = phub::fake_verbs::MakeDescriptor();
  return channel;
}
int ibv_destroy_comp_channel(ibv_comp_channel* channel) {
  close(channel->fd);
  delete channel;
  return 0;
}
ibv_cq* ibv_create_cq(ibv_context* context, int entries, void*, ibv_comp_channel* channel, int) {
  auto* queue = new ibv_cq{};
  queue->context = context;
  queue->channel = channel;
  queue->cqe = entries;
  return queue;
}
int ibv_destroy_cq(ibv_cq* queue) { return Free(queue); }
int ibv_get_cq_event(ibv_comp_channel*, ibv_cq**, void**) { return -1; }
void ibv_ack_cq_events(ibv_cq*, unsigned) {}

ibv_qp* ibv_create_qp(ibv_pd* domain, ibv_qp_init_attr* attributes) {
  if (TheState().gone) {
    errno = EIO;
    return nullptr;
  }
  auto* queue_pair = new ibv_qp{};
  queue_pair->context = domain->context;
  queue_pair->pd = domain;
  queue_pair->send_cq = attributes->send_cq;
  queue_pair->recv_cq = attributes->recv_cq;
  queue_pair->qp_num = TheState().next_number++;
  ++TheDevice().queue_pairs;
  return queue_pair;
}
int ibv_modify_qp(ibv_qp*, ibv_qp_attr* attributes, int mask) {
  if ((mask & IBV_QP_STATE) != 0 && attributes->qp_state == IBV_QPS_RTR) {
    phub::fake_verbs::Pass(TheDevice().connect_time);
    if (TheDevice().connect_fails) return EHOSTUNREACH;
  }
  if (attributes->qp_state == IBV_QPS_RESET && TheDevice().reset_fails) return EINVAL;
  return Answer();
}
int ibv_destroy_qp(ibv_qp* queue_pair) {
  if (!TheState().gone) --TheDevice().queue_pairs;
  return Free(queue_pair);
}

}  // extern "C"
