# Precompiled headers: the most included headers, parsed once for each set of options.

# Headers that at least 20 files include. Fewer files include spdlog and nlohmann/json.
set(PHUB_HEADERS <algorithm> <array> <atomic> <bit> <chrono> <cstdint> <cstring> <deque> <functional>
  <limits> <map> <memory> <mutex> <optional> <set> <span> <string> <string_view> <thread> <utility>
  <vector> <absl/status/statusor.h> <fmt/format.h>)

# phub_precompiled(NAME [HEADERS header ...] [DEPENDS lib ...] [OPTIONS option ...])
# Precompiled headers (PHUB_HEADERS and HEADERS) for all libraries with the same options. Parsing
# headers is most of the compile time of most files. A file must still include what it uses: the preset
# `debug` with -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON compiles every file on its own.
function(phub_precompiled name)
  cmake_parse_arguments(arg "" "" "HEADERS;DEPENDS;OPTIONS" ${ARGN})
  file(WRITE "${CMAKE_CURRENT_BINARY_DIR}/${name}.cc" "")
  add_library(${name} OBJECT "${CMAKE_CURRENT_BINARY_DIR}/${name}.cc")
  target_link_libraries(${name} PRIVATE fmt::fmt spdlog::spdlog absl::status absl::statusor ${arg_DEPENDS} phub_warnings)
  target_compile_options(${name} PRIVATE ${arg_OPTIONS})
  target_precompile_headers(${name} PRIVATE ${PHUB_HEADERS} ${arg_HEADERS})
endfunction()

phub_precompiled(phub_headers)
phub_precompiled(phub_cold_headers OPTIONS ${PHUB_COLD_OPTIONS})
