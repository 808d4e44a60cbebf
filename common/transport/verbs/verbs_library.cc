// The functions of libibverbs that phub uses, under their own names. They call those of the host's
// libibverbs. Functions of verbs.h that are inline call the driver, and are not here.
#include "common/transport/verbs/verbs_library.h"

#include <dlfcn.h>
#include <infiniband/verbs.h>

#include <cerrno>

// Macros of verbs.h that call them.
#undef ibv_get_device_list
#undef ibv_query_port
#undef ibv_reg_mr

// Each as X(name, result, parameters, arguments).
#define PHUB_VERBS_FUNCTIONS(X)                                                                   \
  X(_ibv_query_gid_table, ssize_t,                                                                \
    (ibv_context * context, ibv_gid_entry * entries, std::size_t count, std::uint32_t flags,      \
     std::size_t entry_bytes),                                                                    \
    (context, entries, count, flags, entry_bytes))                                                \
  X(ibv_ack_async_event, void, (ibv_async_event * event), (event))                                \
  X(ibv_ack_cq_events, void, (ibv_cq * queue, unsigned int count), (queue, count))                \
  X(ibv_alloc_pd, ibv_pd*, (ibv_context * context), (context))                                    \
  X(ibv_close_device, int, (ibv_context * context), (context))                                    \
  X(ibv_create_comp_channel, ibv_comp_channel*, (ibv_context * context), (context))               \
  X(ibv_create_cq, ibv_cq*,                                                                       \
    (ibv_context * context, int entries, void* user, ibv_comp_channel* channel, int vector),      \
    (context, entries, user, channel, vector))                                                    \
  X(ibv_create_qp, ibv_qp*, (ibv_pd * domain, ibv_qp_init_attr * attributes),                     \
    (domain, attributes))                                                                         \
  X(ibv_dealloc_pd, int, (ibv_pd * domain), (domain))                                             \
  X(ibv_dereg_mr, int, (ibv_mr * region), (region))                                               \
  X(ibv_destroy_comp_channel, int, (ibv_comp_channel * channel), (channel))                       \
  X(ibv_destroy_cq, int, (ibv_cq * queue), (queue))                                               \
  X(ibv_destroy_qp, int, (ibv_qp * queue), (queue))                                               \
  X(ibv_event_type_str, const char*, (ibv_event_type type), (type))                               \
  X(ibv_free_device_list, void, (ibv_device * *list), (list))                                     \
  X(ibv_get_async_event, int, (ibv_context * context, ibv_async_event * event), (context, event)) \
  X(ibv_get_cq_event, int, (ibv_comp_channel * channel, ibv_cq * *queue, void** user),            \
    (channel, queue, user))                                                                       \
  X(ibv_get_device_name, const char*, (ibv_device * device), (device))                            \
  X(ibv_modify_qp, int, (ibv_qp * queue, ibv_qp_attr * attributes, int mask),                     \
    (queue, attributes, mask))                                                                    \
  X(ibv_open_device, ibv_context*, (ibv_device * device), (device))                               \
  X(ibv_port_state_str, const char*, (ibv_port_state state), (state))                             \
  X(ibv_query_device, int, (ibv_context * context, ibv_device_attr * attributes),                 \
    (context, attributes))                                                                        \
  X(ibv_query_port, int,                                                                          \
    (ibv_context * context, std::uint8_t port, _compat_ibv_port_attr * attributes),               \
    (context, port, attributes))                                                                  \
  X(ibv_reg_mr, ibv_mr*, (ibv_pd * domain, void* address, std::size_t bytes, int access),         \
    (domain, address, bytes, access))                                                             \
  X(ibv_wc_status_str, const char*, (ibv_wc_status status), (status))

namespace phub::transport {
namespace {

struct Library {
  Library();

  std::string problem;
  decltype(&::ibv_get_device_list) get_device_list = nullptr;
#define PHUB_POINTER(name, result, parameters, arguments) decltype(&::name) name = nullptr;
  PHUB_VERBS_FUNCTIONS(PHUB_POINTER)
#undef PHUB_POINTER
};

Library::Library() {
  // It stays loaded: drivers have threads and destructors of their own.
  void* const handle = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    problem = dlerror();
    return;
  }
  const auto find = [&]<typename Function>(const char* name, Function*& function) {
    function = reinterpret_cast<Function*>(dlsym(handle, name));
    if (function == nullptr && problem.empty())
      problem = std::string("libibverbs.so.1 is too old: it has no ") + name;
  };
  find("ibv_get_device_list", get_device_list);
#define PHUB_FIND(name, result, parameters, arguments) find(#name, name);
  PHUB_VERBS_FUNCTIONS(PHUB_FIND)
#undef PHUB_FIND
}

const Library& Loaded() {
  static const Library* const library = new Library();  // never destroyed: other threads may use it
  return *library;
}

}  // namespace

const std::string& VerbsLibraryProblem() { return Loaded().problem; }

}  // namespace phub::transport

ibv_device** ibv_get_device_list(int* count) {
  const auto& library = phub::transport::Loaded();
  if (library.problem.empty()) return library.get_device_list(count);
  if (count != nullptr) *count = 0;
  errno = ENOSYS;
  return nullptr;
}

// Without a device nothing calls them.
#define PHUB_FORWARD(name, result, parameters, arguments) \
  result name parameters { return phub::transport::Loaded().name arguments; }
PHUB_VERBS_FUNCTIONS(PHUB_FORWARD)
#undef PHUB_FORWARD
