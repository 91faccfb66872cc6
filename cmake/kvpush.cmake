# The build's few rules, each in one place.
set(CMAKE_CXX_STANDARD 23)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_VERIFY_INTERFACE_HEADER_SETS ON)

find_program(KVPUSH_CCACHE ccache)
if(KVPUSH_CCACHE)
  # The package is built in a folder of its own; without the folder in the key, neither by name nor in the paths of
  # what it generates, it takes the release build's objects.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_NOHASHDIR=1 CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}
      ${KVPUSH_CCACHE})
endif()

# Flags of every target of ours; vendor headers are SYSTEM and stay quiet.
add_library(kvpush_flags INTERFACE)
target_compile_options(kvpush_flags INTERFACE -Wall -Wextra -Werror -Wshadow -Wconversion -Wswitch -Wno-unknown-pragmas)
target_compile_definitions(kvpush_flags INTERFACE FMT_HEADER_ONLY=1 SPDLOG_FMT_EXTERNAL=1)
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  target_compile_options(kvpush_flags INTERFACE -Wthread-safety)
elseif(CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # g++ 12 reports these inside libstdc++ and Boost where nothing is wrong, and the last one wherever sources are
  # compiled as one.
  target_compile_options(kvpush_flags INTERFACE -Wno-maybe-uninitialized -Wno-restrict -Wno-array-bounds
                         -Wno-stringop-overflow -Wno-stringop-overread -Wno-dangling-pointer -Wno-subobject-linkage)
endif()
if(KVPUSH_SANITIZE)
  add_compile_options(-fsanitize=${KVPUSH_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${KVPUSH_SANITIZE})
endif()

# kvpush_library(NAME HEADERS ... SOURCES ... DEPS ... PRIVATE_DEPS ...): the library of one folder.
function(kvpush_library name)
  cmake_parse_arguments(ARG "" "" "HEADERS;SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_sources(${name} PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES ${ARG_HEADERS})
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PUBLIC kvpush_flags ${ARG_DEPS} PRIVATE ${ARG_PRIVATE_DEPS})
endfunction()

# kvpush_test(NAME SOURCES ... DEPS ... LINK_OPTIONS ...): one GoogleTest program, run from the source folder.
function(kvpush_test name)
  if(NOT KVPUSH_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;LINK_OPTIONS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE kvpush_flags ${ARG_DEPS} GTest::gtest_main GTest::gmock)
  target_link_options(${name} PRIVATE ${ARG_LINK_OPTIONS})
  target_compile_options(${name} PRIVATE -O0)  # they are compiled more often than they run
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
endfunction()

# kvpush_bench(NAME SOURCES ... DEPS ...): one Google Benchmark program, not run by the tests.
function(kvpush_bench name)
  if(NOT KVPUSH_TESTS OR KVPUSH_SANITIZE)  # times under sanitizers say nothing
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE kvpush_flags ${ARG_DEPS} benchmark::benchmark_main)
endfunction()
