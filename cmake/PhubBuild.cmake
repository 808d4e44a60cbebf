# How phub is compiled: language level, warnings, sanitizers, and the two helpers that every
# CMakeLists.txt of the tree uses (phub_library, phub_test).

option(PHUB_WERROR "Treat compiler warnings as errors" ON)
option(PHUB_TESTS "Build the tests" ON)
option(PHUB_BENCH "Build the bench with what drives phub's peers, where they are installed" OFF)
set(PHUB_SANITIZE "" CACHE STRING "Sanitizers, as -fsanitize= takes them (address,undefined | thread)")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

# -ffp-contract=off: a fused multiply-add rounds once where the design promises two roundings, so
# sums and updates would differ between machines.
add_compile_options(-ffp-contract=off)

# Everywhere, since precompiled headers are shared and g++ asks their users for the same macros.
add_compile_options(-pthread)

# -Wno-restrict: g++ 12 sees overlap in any assignment of a one-letter literal to a std::string
# (GCC bug 105651). -Wno-maybe-uninitialized: with sanitizers it sees what is not so, in std::regex.
add_library(phub_warnings INTERFACE)
target_compile_options(phub_warnings INTERFACE
  -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wnon-virtual-dtor -Wold-style-cast
  -Wimplicit-fallthrough -Wno-restrict $<$<BOOL:${PHUB_WERROR}>:-Werror>)

if(PHUB_SANITIZE)
  target_compile_options(phub_warnings INTERFACE -Wno-maybe-uninitialized)
  add_compile_options(-fsanitize=${PHUB_SANITIZE} -fno-omit-frame-pointer -g1)
  if(PHUB_SANITIZE MATCHES "undefined")
    # Without null: the address sanitizer tells of what goes through a null pointer, and GCC 12 checks
    # some before it has loaded them (`(object->*member)()`). A tenth of the compiler's time.
    add_compile_options(-fno-sanitize-recover=undefined -fno-sanitize=null)
  endif()
  add_link_options(-fsanitize=${PHUB_SANITIZE})
endif()

# Debian's gRPC is not instrumented: to the thread sanitizer all that passes through it looks like a
# race. Under that sanitizer, tests that go through gRPC are left out; the others cover phub's own
# threads: core loops, queues, transports, the client's engine and sessions.
set(PHUB_GRPC_TESTS ON)
if(PHUB_SANITIZE MATCHES "thread")
  set(PHUB_GRPC_TESTS OFF)
endif()

find_program(PHUB_CCACHE ccache)
if(PHUB_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${PHUB_CCACHE})
endif()

# Code off the data path: configuration, the control plane, generated messages, phubctl. It runs once per
# call of a person or a few times per second, so the optimiser's second and third level only cost time
# in the compiler: of six files of common, 12.9 CPU seconds became 10.3.
# The warnings: at -O1, g++ 12 sees a StatusOr that holds an error read as its value.
set(PHUB_COLD_OPTIONS $<$<CONFIG:Release>:-O1> $<$<CONFIG:Release>:-Wno-array-bounds>
  $<$<CONFIG:Release>:-Wno-stringop-overflow> $<$<CONFIG:Release>:-Wno-maybe-uninitialized>)
if(PHUB_SANITIZE)
  list(APPEND PHUB_COLD_OPTIONS -O0)
endif()

# Cold code of a release build is compiled eight files at a time: most of what is left of its time goes
# into the same templates in each file. The other build types compile every file on its own, asan in
# CI among them, so a missing include is still found.
set(PHUB_UNITY OFF)
if(CMAKE_BUILD_TYPE STREQUAL "Release")
  set(PHUB_UNITY ON)
endif()

# phub_library(NAME SOURCES a.cc ... [DEPENDS lib ...] [HEADERS target|none] [COLD])
# A static library of the tree; includes are written from the root ("common/base/ids.h"). HEADERS:
# whose precompiled headers it uses if not the ordinary ones; none for a library without phub_base.
# COLD: off the data path, see PHUB_COLD_OPTIONS.
function(phub_library name)
  cmake_parse_arguments(arg "COLD" "HEADERS" "SOURCES;DEPENDS" ${ARGN})
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
    set_target_properties(${name} PROPERTIES UNITY_BUILD ${PHUB_UNITY} UNITY_BUILD_BATCH_SIZE 8)
  endif()
  if(NOT arg_HEADERS STREQUAL "none")
    target_precompile_headers(${name} REUSE_FROM ${arg_HEADERS})
  endif()
endfunction()

# Tests take longer in the compiler than they run. The same for all of them and for the precompiled headers.
set(PHUB_TEST_OPTIONS $<$<CONFIG:Release>:-O1>)
if(PHUB_SANITIZE)
  list(APPEND PHUB_TEST_OPTIONS -O0)
endif()

# phub_test(NAME SOURCES a_test.cc ... [DEPENDS lib ...] [LABELS fast|sanitized ...] [TIMEOUT seconds]
#           [HEADERS target] [OPTIMIZED])
# One GoogleTest program, one ctest entry. Label "fast" puts it into ./tests/run --fast; "sanitized"
# runs it under sanitizers, as the fast ones are, though it takes too long for that. HEADERS: whose
# precompiled headers it uses; see tests/support. OPTIMIZED: its own code computes long enough to be
# compiled as the product is; other tests spend more time in the compiler than running.
function(phub_test name)
  cmake_parse_arguments(arg "OPTIMIZED" "TIMEOUT;HEADERS" "SOURCES;DEPENDS;LABELS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${arg_DEPENDS} phub_base GTest::gtest GTest::gmock GTest::gtest_main phub_warnings)
  if(NOT arg_HEADERS)
    set(arg_HEADERS phub_test_headers)
  endif()
  # Not both: g++ 12 crashes over headers that were precompiled at another level of optimisation.
  if(NOT arg_OPTIMIZED)
    target_compile_options(${name} PRIVATE ${PHUB_TEST_OPTIONS})
    target_precompile_headers(${name} REUSE_FROM ${arg_HEADERS})
  endif()
  add_test(NAME ${name} COMMAND ${name})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT})
endfunction()

# Adds the folders named that have a CMakeLists.txt of their own.
function(phub_add_subdirectories)
  foreach(folder IN LISTS ARGN)
    if(EXISTS "${CMAKE_CURRENT_SOURCE_DIR}/${folder}/CMakeLists.txt")
      add_subdirectory(${folder})
    endif()
  endforeach()
endfunction()
