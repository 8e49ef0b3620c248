# The Julia package. The target `julia` assembles it in build/julia/FXAttn, to be used in place (JULIA_LOAD_PATH=build/julia, or
# Pkg.develop(path = ...)): the files of julia/FXAttn, LibFXA.jl generated from the header, and the library.
find_package(Python3 COMPONENTS Interpreter)
if(NOT Python3_Interpreter_FOUND)
  return()
endif()
set(FXA_JULIA_DIR ${PROJECT_BINARY_DIR}/julia/FXAttn)
set(julia_abi ${FXA_JULIA_DIR}/src/LibFXA.jl)
set(gen_abi ${PROJECT_SOURCE_DIR}/tools/gen_abi.py)
file(GLOB headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/include/fxattn/*.h)
add_custom_command(OUTPUT ${julia_abi} DEPENDS ${headers} ${gen_abi} VERBATIM
  COMMAND ${CMAKE_COMMAND} -E make_directory ${FXA_JULIA_DIR}/src ${FXA_JULIA_DIR}/lib
  COMMAND ${Python3_EXECUTABLE} ${gen_abi} --cc ${CMAKE_C_COMPILER} --format julia --out ${julia_abi})
file(GLOB_RECURSE julia_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/julia/FXAttn/*)
set(julia_stamp ${PROJECT_BINARY_DIR}/julia/assembled)
add_custom_command(OUTPUT ${julia_stamp} DEPENDS ${julia_sources} ${julia_abi} fxattn_shared VERBATIM
  COMMAND ${CMAKE_COMMAND} -E copy_directory ${PROJECT_SOURCE_DIR}/julia/FXAttn ${FXA_JULIA_DIR}
  COMMAND ${CMAKE_COMMAND} -E copy $<TARGET_FILE:fxattn_shared> ${FXA_JULIA_DIR}/lib/libfxattn${CMAKE_SHARED_LIBRARY_SUFFIX}
  COMMAND ${CMAKE_COMMAND} -E touch ${julia_stamp})
add_custom_target(julia ALL DEPENDS ${julia_stamp})
