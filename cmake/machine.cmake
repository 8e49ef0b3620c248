# What the compiler compiles for, by its own macros: gcc -m32 on an x86-64 machine is no x86-64.
include(CheckCSourceCompiles)
include(CheckSymbolExists)
check_symbol_exists(__x86_64__ stdint.h FXA_X86_64)
check_symbol_exists(__aarch64__ stdint.h FXA_AARCH64)

# Results are those of IEEE f32 and f64: intermediate results of more digits (FLT_EVAL_METHOD 1 and 2) are rounded twice.
#   -fexcess-precision=fast    s390x: gcc computes float in double only because the type float_t of old C libraries does
#   -msse2 -mfpmath=sse        32-bit x86: every processor since 2004; the x87 has no exact f32 and f64
# src/base/num.h checks FLT_EVAL_METHOD too, for other build systems.
set(float_test "#include <float.h>
#if FLT_EVAL_METHOD != 0
#error excess precision
#endif
int main(void) { return 0; }")
if(NOT DEFINED FXA_FLOAT_FLAGS)
  foreach(flags "" "-fexcess-precision=fast" "-msse2 -mfpmath=sse")
    string(MAKE_C_IDENTIFIER "FXA_FLOAT_IS_EXACT${flags}" exact)
    set(CMAKE_REQUIRED_FLAGS ${flags})
    check_c_source_compiles("${float_test}" ${exact})
    if(${exact})
      string(REPLACE " " ";" flags "${flags}")
      set(FXA_FLOAT_FLAGS "${flags}" CACHE INTERNAL "flags with which FLT_EVAL_METHOD is 0")
      break()
    endif()
  endforeach()
  unset(CMAKE_REQUIRED_FLAGS)
endif()
if(NOT DEFINED FXA_FLOAT_FLAGS)
  message(FATAL_ERROR "this compiler computes float and double with more digits than they have (FLT_EVAL_METHOD is not 0), "
          "also with -fexcess-precision=fast and with -msse2 -mfpmath=sse; fxattn needs exact f32 and f64")
endif()
if(CMAKE_C_COMPILER_ID STREQUAL GNU AND CMAKE_SIZEOF_VOID_P LESS 8)
  list(APPEND FXA_FLOAT_FLAGS -Wno-psabi) # suppresses notes about structs with atomics, whose layout gcc 11 changed
endif()

# Counters of 64 bits on 32-bit machines and flags of 8 bits on riscv64 are functions of libatomic where gcc has no instruction.
set(atomic_test "#include <stdatomic.h>
#include <stdbool.h>
int main(void) {
    static atomic_llong count;
    static atomic_bool stop;
    static atomic_flag busy;
    return (int)atomic_fetch_add(&count, 1) + atomic_exchange(&stop, true) + atomic_flag_test_and_set(&busy);
}")
check_c_source_compiles("${atomic_test}" FXA_ATOMIC_IS_BUILT_IN)
set(FXA_ATOMIC_LIBRARY)
if(NOT FXA_ATOMIC_IS_BUILT_IN)
  set(CMAKE_REQUIRED_LIBRARIES atomic)
  check_c_source_compiles("${atomic_test}" FXA_ATOMIC_IS_A_LIBRARY)
  unset(CMAKE_REQUIRED_LIBRARIES)
  if(NOT FXA_ATOMIC_IS_A_LIBRARY)
    message(FATAL_ERROR "atomics of 8 and 64 bits do not link, with libatomic neither")
  endif()
  set(FXA_ATOMIC_LIBRARY atomic)
endif()
