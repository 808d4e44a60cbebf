# How phub is compiled: language level, warnings, sanitizers, and the two helpers that every
# CMakeLists.txt of the tree uses (phub_library, phub_test).

option(PHUB_WERROR "Treat compiler warnings as errors" ON)
option(PHUB_TESTS "Build the tests" ON)
option(PHUB_BENCH "Build the bench, with drivers for other systems that are installed" OFF)
option(PHUB_LONG_TESTS "Add the tests that only tests/run --long runs" OFF)
option(PHUB_TESTS_ONCE "Leave out, without sanitizers, tests that tests/run runs with them" OFF)
set(PHUB_SANITIZE "" CACHE STRING "Sanitizers, the value of -fsanitize= (address,undefined | thread)")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

# -ffp-contract=off: a fused multiply-add rounds once, but the design requires two roundings. With
# contraction, sums and updates would differ between machines.
add_compile_options(-ffp-contract=off)

# For every target: precompiled headers are shared, and g++ requires the same macros in their users.
add_compile_options(-pthread)

# -Wno-restrict: g++ 12 reports a false overlap when a one-letter literal is assigned to a std::string
# (GCC bug 105651). -Wno-maybe-uninitialized: with sanitizers, g++ reports false positives in
# std::regex.
add_library(phub_warnings INTERFACE)
target_compile_options(phub_warnings INTERFACE
  -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wnon-virtual-dtor -Wold-style-cast
  -Wimplicit-fallthrough $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>
  $<$<BOOL:${PHUB_WERROR}>:-Werror>)

if(PHUB_SANITIZE)
  target_compile_options(phub_warnings INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  add_compile_options(-fsanitize=${PHUB_SANITIZE} -fno-omit-frame-pointer -g1)
  if(PHUB_SANITIZE MATCHES "undefined")
    # Without null: the address sanitizer reports accesses through null pointers anyway, and GCC 12
    # checks some pointers before it has loaded them (`(object->*member)()`). Saves a tenth of the
    # compiler's time.
    add_compile_options(-fno-sanitize-recover=undefined -fno-sanitize=null)
  endif()
  add_link_options(-fsanitize=${PHUB_SANITIZE})
  # 150 programs are linked. GNU gold takes a third of the time of GNU ld.
  find_program(PHUB_GOLD ld.gold)
  if(PHUB_GOLD)
    add_link_options(-fuse-ld=gold)
  endif()
endif()

# Debian's gRPC is not instrumented, so the thread sanitizer reports false races for everything that
# passes through it. Tests that use gRPC are left out under that sanitizer. The other tests cover
# phub's own threads: core loops, queues, transports, the client's engine and sessions.
set(PHUB_GRPC_TESTS ON)
if(PHUB_SANITIZE MATCHES "thread")
  set(PHUB_GRPC_TESTS OFF)
endif()

find_program(PHUB_CCACHE ccache)
if(PHUB_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${PHUB_CCACHE})
endif()

# Options for code off the data path: configuration, the control plane, generated messages, phubctl.
# It runs a few times per second at most, so levels 2 and 3 of the optimizer would only cost compile
# time: with -O1, six files of common take 10.3 instead of 12.9 CPU seconds.
# Three warnings are off: at -O1, g++ 12 reports false positives for a StatusOr that holds an error.
set(PHUB_COLD_OPTIONS $<$<CONFIG:Release>:-O1> $<$<CONFIG:Release>:-Wno-array-bounds>
  $<$<CONFIG:Release>:-Wno-stringop-overflow> $<$<CONFIG:Release>:-Wno-maybe-uninitialized>)
if(PHUB_SANITIZE)
  list(APPEND PHUB_COLD_OPTIONS -O0)
endif()
# Four checks of the undefined-behaviour sanitizer take a quarter to a third of the compiler's time
# (a part of phub_plan: 28.7 instead of 45.3 CPU seconds). Code off the data path reads no memory that
# others laid out, and the address sanitizer sees accesses outside of objects. Long tests have them.
if(PHUB_SANITIZE MATCHES "undefined" AND NOT PHUB_LONG_TESTS)
  list(APPEND PHUB_COLD_OPTIONS -fno-sanitize=alignment,object-size,pointer-overflow,vptr)
endif()

# What CI builds from nothing, release and asan, compiles 16 files of a library at a time and 8 of a
# test, because most of the remaining compile time goes into the same templates in each file. Debug,
# tsan and fuzz builds compile every file on its own, so a missing include is still found.
set(PHUB_UNITY OFF)
if(CMAKE_BUILD_TYPE STREQUAL "Release" OR PHUB_SANITIZE MATCHES "address,undefined")
  set(PHUB_UNITY ON)
endif()

# phub_library(NAME SOURCES a.cc ... [DEPENDS lib ...] [HEADERS target|none] [COLD] [SEPARATE])
# A static library of the tree; includes are written from the root ("common/base/ids.h").
# HEADERS: the target whose precompiled headers it uses (default: phub_headers, or phub_cold_headers
# if COLD); "none" for a library without phub_base.
# COLD: off the data path, see PHUB_COLD_OPTIONS.
# SEPARATE: every file is compiled on its own, because several files define the same local names.
function(phub_library name)
  cmake_parse_arguments(arg "COLD;SEPARATE" "HEADERS" "SOURCES;DEPENDS" ${ARGN})
  add_library(${name} STATIC ${arg_SOURCES})
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PUBLIC ${arg_DEPENDS} PRIVATE phub_warnings)
  if(NOT arg_HEADERS)
    set(arg_HEADERS phub_headers)
    if(arg_COLD)
      set(arg_HEADERS phub_cold_headers)
    endif()
  endif()
  if(arg_COLD OR arg_HEADERS STREQUAL "phub_proto_headers")
    target_compile_options(${name} PRIVATE ${PHUB_COLD_OPTIONS})
  endif()
  if(NOT arg_HEADERS STREQUAL "none")
    target_precompile_headers(${name} REUSE_FROM ${arg_HEADERS})
    if(NOT arg_SEPARATE)
      set_target_properties(${name} PROPERTIES UNITY_BUILD ${PHUB_UNITY} UNITY_BUILD_BATCH_SIZE 16)
    endif()
  endif()
endfunction()

# Tests take longer to compile than to run: five files of tests take 35 CPU seconds with -Og, 46 with
# -O1. The options must be equal for all tests and for their precompiled headers.
set(PHUB_TEST_OPTIONS $<$<CONFIG:Release>:-Og>)
if(PHUB_SANITIZE)
  list(APPEND PHUB_TEST_OPTIONS -O0)
endif()
# Tests are compiled without the undefined-behaviour sanitizer, which takes a fifth of the compiler's
# time. The price: inline functions of the product's headers are checked only where the product's own
# files inline them.
if(PHUB_SANITIZE MATCHES "undefined")
  list(APPEND PHUB_TEST_OPTIONS -fno-sanitize=undefined)
endif()

# PROCESSORS of a test that keeps one core busy. Without sanitizers, tests/run runs twice as many tests
# at once as there are cores, because most of them wait most of the time; a busy one counts as two.
# With sanitizers most tests are busy, and each counts as one.
set(PHUB_BUSY 2)
if(PHUB_SANITIZE)
  set(PHUB_BUSY 1)
endif()

# phub_test(NAME SOURCES a_test.cc ... [DEPENDS lib ...] [LABELS fast|sanitized ...] [TIMEOUT seconds]
#           [HEADERS target] [OPTIMIZED] [BUSY] [SANITIZED_IF_LONG | IN_RELEASE])
# One GoogleTest program, one ctest entry.
# LABELS: ./tests/run --fast runs the label "fast". Sanitizer builds run "fast" and "sanitized"; the
# latter marks tests that are too slow for --fast. Sanitizer builds leave tests without a label out.
# HEADERS: the target whose precompiled headers it uses (default: phub_test_headers); see
# tests/support.
# OPTIMIZED: compile the test like the product, because its own code computes for long.
# BUSY: keeps about one core busy for seconds. See PHUB_BUSY.
# SANITIZED_IF_LONG: sanitizer builds leave the test out, except with PHUB_LONG_TESTS. It reads the
# source tree, or computes or waits for long in code that other tests run under sanitizers too.
# IN_RELEASE: with PHUB_TESTS_ONCE, it runs in the release build as well, because sanitizers change what
# it checks (memory, limits, times), or because it compares the bits that optimized code computes.
function(phub_test name)
  cmake_parse_arguments(arg "OPTIMIZED;SANITIZED_IF_LONG;IN_RELEASE;BUSY" "TIMEOUT;HEADERS" "SOURCES;DEPENDS;LABELS"
    ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${arg_DEPENDS} phub_base GTest::gtest GTest::gmock GTest::gtest_main phub_warnings)
  if(NOT arg_HEADERS)
    set(arg_HEADERS phub_test_headers)
  endif()
  # Optimized tests use no precompiled headers: g++ 12 crashes on headers that were precompiled at
  # another optimization level.
  if(NOT arg_OPTIMIZED)
    target_compile_options(${name} PRIVATE ${PHUB_TEST_OPTIONS})
    target_precompile_headers(${name} REUSE_FROM ${arg_HEADERS})
    set_target_properties(${name} PROPERTIES UNITY_BUILD ${PHUB_UNITY} UNITY_BUILD_BATCH_SIZE 8)
  elseif(PHUB_SANITIZE MATCHES "undefined")
    target_compile_options(${name} PRIVATE -fno-sanitize=undefined)
  endif()
  if(arg_SANITIZED_IF_LONG AND PHUB_SANITIZE AND NOT PHUB_LONG_TESTS)
    set(arg_LABELS "")
  endif()
  if(PHUB_SANITIZE AND NOT arg_LABELS)
    set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
  add_test(NAME ${name} COMMAND ${name})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT})
  if(arg_BUSY)
    set_tests_properties(${name} PROPERTIES PROCESSORS ${PHUB_BUSY})
  endif()
  if(arg_LABELS AND NOT arg_SANITIZED_IF_LONG AND NOT arg_OPTIMIZED AND NOT arg_IN_RELEASE)
    phub_run_once(${name} ${name})
  endif()
endfunction()

# phub_run_once(TEST TARGET): the sanitizer build runs the test, so with PHUB_TESTS_ONCE a release build
# neither builds nor runs it. Compiling the 70 tests of this kind takes a quarter of the release build.
function(phub_run_once test target)
  if(PHUB_TESTS_ONCE AND NOT PHUB_SANITIZE)
    set_target_properties(${target} PROPERTIES EXCLUDE_FROM_ALL ON)
    set_tests_properties(${test} PROPERTIES LABELS sanitizers_only DISABLED ON)
  endif()
endfunction()

# Adds those of the given folders that have a CMakeLists.txt.
function(phub_add_subdirectories)
  foreach(folder IN LISTS ARGN)
    if(EXISTS "${CMAKE_CURRENT_SOURCE_DIR}/${folder}/CMakeLists.txt")
      add_subdirectory(${folder})
    endif()
  endforeach()
endfunction()
