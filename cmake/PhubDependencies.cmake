# Finds every third-party package. deploy/install-dependencies installs them on Debian 12.
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(Protobuf REQUIRED)  # the module: Debian ships no protobuf-config.cmake
find_package(gRPC CONFIG REQUIRED)
find_package(absl CONFIG REQUIRED)
find_package(spdlog CONFIG REQUIRED)
find_package(CLI11 CONFIG REQUIRED)
find_package(tomlplusplus CONFIG REQUIRED)
find_package(nlohmann_json CONFIG REQUIRED)
find_package(TBB CONFIG REQUIRED)   # oneTBB: parallel work off the data path
find_package(EXPAT REQUIRED)        # reads MSCCL XML
pkg_check_modules(hwloc REQUIRED IMPORTED_TARGET hwloc)
pkg_check_modules(microhttpd REQUIRED IMPORTED_TARGET libmicrohttpd)  # the metrics port
pkg_check_modules(nghttp2 REQUIRED IMPORTED_TARGET libnghttp2>=1.52)  # the front of the control port
pkg_check_modules(seccomp REQUIRED IMPORTED_TARGET libseccomp)          # what the front may do
pkg_check_modules(hwy REQUIRED IMPORTED_TARGET libhwy)
pkg_check_modules(sqlite3 REQUIRED IMPORTED_TARGET sqlite3>=3.37)  # control state; STRICT tables
pkg_check_modules(ibverbs REQUIRED IMPORTED_TARGET libibverbs)
find_package(OpenSSL REQUIRED)
find_package(ZLIB REQUIRED)
find_program(GRPC_CPP_PLUGIN grpc_cpp_plugin REQUIRED)
if(PHUB_TESTS)
  find_package(GTest REQUIRED)
endif()

# The aggregator in the kernel. clang compiles its program, libbpf loads it.
set(PHUB_XDP AUTO CACHE STRING "Build the aggregator in the kernel: AUTO (if clang and libbpf are there), ON, OFF")
set_property(CACHE PHUB_XDP PROPERTY STRINGS AUTO ON OFF)
set(PHUB_HAS_XDP OFF)
if(PHUB_XDP STREQUAL "AUTO" OR PHUB_XDP)
  find_program(PHUB_BPF_CLANG NAMES clang-14 clang)
  pkg_check_modules(bpf IMPORTED_TARGET libbpf>=1.1)
  if(PHUB_BPF_CLANG AND bpf_FOUND)
    set(PHUB_HAS_XDP ON)
  elseif(PHUB_XDP STREQUAL "AUTO")
    message(STATUS "Without the aggregator in the kernel: it needs clang and libbpf >= 1.1 (PHUB_XDP)")
  else()
    message(FATAL_ERROR "PHUB_XDP=${PHUB_XDP} needs clang and libbpf >= 1.1 (Debian: clang-14, libbpf-dev)")
  endif()
endif()
