# The Python package. The target `python` assembles it in build/python, to be used in place (PYTHONPATH=build/python); a wheel
# (pyproject.toml, scikit-build-core) has the same files by install. _abi.py is generated from the header, for both.
find_package(Python3 3.9 COMPONENTS Interpreter)
if(NOT Python3_Interpreter_FOUND)
  return()
endif()
set(FXA_PYTHON_DIR ${PROJECT_BINARY_DIR}/python/fxattn)
set(abi ${FXA_PYTHON_DIR}/_abi.py)
set(gen_abi ${PROJECT_SOURCE_DIR}/tools/gen_abi.py)
file(GLOB headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/include/fxattn/*.h)
add_custom_command(OUTPUT ${abi} DEPENDS ${headers} ${gen_abi} VERBATIM
  COMMAND ${CMAKE_COMMAND} -E make_directory ${FXA_PYTHON_DIR}
  COMMAND ${Python3_EXECUTABLE} ${gen_abi} --cc ${CMAKE_C_COMPILER} --format python --out ${abi})
add_custom_target(python ALL DEPENDS ${abi} VERBATIM
  COMMAND ${CMAKE_COMMAND} -DSOURCE=${PROJECT_SOURCE_DIR}/python/fxattn -DFOLDER=${FXA_PYTHON_DIR}
          -DLIBRARY=$<TARGET_FILE:fxattn_shared> -DPROGRAM=$<TARGET_FILE:fxattn>
          -P ${PROJECT_SOURCE_DIR}/cmake/assemble_python.cmake)
add_dependencies(python fxattn_shared fxattn)

if(SKBUILD)
  install(FILES ${abi} DESTINATION fxattn)
  install(FILES $<TARGET_FILE:fxattn_shared> DESTINATION fxattn/_lib RENAME libfxattn${CMAKE_SHARED_LIBRARY_SUFFIX})
  install(PROGRAMS $<TARGET_FILE:fxattn> DESTINATION fxattn/_lib)
endif()
