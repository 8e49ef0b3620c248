# The Python package. The target `python` assembles it in build/python, to be used in place (PYTHONPATH=build/python); a wheel
# (pyproject.toml, scikit-build-core) has the same files by install. _abi.py is generated from the header, for both.
find_package(Python3 3.9 COMPONENTS Interpreter)
if(NOT Python3_Interpreter_FOUND)
  return()
endif()
set(FXA_PYTHON_FROM "" CACHE PATH "a finished build whose library and command the package takes; empty: this one")
set(FXA_PYTHON_DIR ${PROJECT_BINARY_DIR}/python/fxattn)
set(abi ${FXA_PYTHON_DIR}/_abi.py)
set(gen_abi ${PROJECT_SOURCE_DIR}/tools/gen_abi.py)
file(GLOB headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/include/fxattn/*.h)
add_custom_command(OUTPUT ${abi} DEPENDS ${headers} ${gen_abi} VERBATIM
  COMMAND ${CMAKE_COMMAND} -E make_directory ${FXA_PYTHON_DIR}
  COMMAND ${Python3_EXECUTABLE} ${gen_abi} --cc ${CMAKE_C_COMPILER} --format python --out ${abi})
# The command of the package has no copy of the library: it loads the one beside it, by its SONAME, which is the file's name there.
set(library_name $<TARGET_SONAME_FILE_NAME:fxattn_shared>)
set(command_name fxattn-shared)
add_executable(fxattn_command_shared $<TARGET_OBJECTS:fxattn_cli>)
target_link_libraries(fxattn_command_shared PRIVATE fxattn_shared m)
set_target_properties(fxattn_command_shared PROPERTIES OUTPUT_NAME ${command_name} INSTALL_RPATH "$ORIGIN"
                      BUILD_WITH_INSTALL_RPATH ON)
if(FXA_PYTHON_FROM)
  set_target_properties(fxattn_command_shared PROPERTIES EXCLUDE_FROM_ALL ON)
  get_filename_component(library ${FXA_PYTHON_FROM}/libfxattn${CMAKE_SHARED_LIBRARY_SUFFIX} REALPATH)
  get_filename_component(command ${FXA_PYTHON_FROM}/${command_name} REALPATH)
else()
  set(library $<TARGET_FILE:fxattn_shared>)
  set(command $<TARGET_FILE:fxattn_command_shared>)
endif()
# Operators of PyTorch. It links to neither libfxattn nor PyTorch: both are found at run time (python/csrc/torch_api.h).
# PyTorch throws its exceptions through it.
file(GLOB torch_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/python/csrc/torch_*.c)
add_library(fxattn_torch MODULE ${torch_sources})
target_include_directories(fxattn_torch PRIVATE ${PROJECT_SOURCE_DIR}/include)
target_compile_definitions(fxattn_torch PRIVATE _GNU_SOURCE)
target_compile_options(fxattn_torch PRIVATE -fexceptions)
target_link_libraries(fxattn_torch PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
set(shim_name libfxattn_torch${CMAKE_SHARED_LIBRARY_SUFFIX})
# Handlers of XLA, for JAX: the same way, by declarations of our own (python/csrc/jax_abi.h).
file(GLOB jax_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/python/csrc/jax_*.c)
add_library(fxattn_jax MODULE ${jax_sources})
target_include_directories(fxattn_jax PRIVATE ${PROJECT_SOURCE_DIR}/include)
target_compile_definitions(fxattn_jax PRIVATE _GNU_SOURCE)
target_link_libraries(fxattn_jax PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
set(jax_name libfxattn_jax${CMAKE_SHARED_LIBRARY_SUFFIX})
add_custom_target(python ALL DEPENDS ${abi} VERBATIM
  COMMAND ${CMAKE_COMMAND} -DSOURCE=${PROJECT_SOURCE_DIR}/python/fxattn -DFOLDER=${FXA_PYTHON_DIR} -DLIBRARY=${library}
          -DLIBRARY_NAME=${library_name} -DPROGRAM=${command} -DSHIM=$<TARGET_FILE:fxattn_torch>
          -DSHIM_NAME=${shim_name} -DJAX=$<TARGET_FILE:fxattn_jax> -DJAX_NAME=${jax_name} -P ${PROJECT_SOURCE_DIR}/cmake/assemble_python.cmake)
add_dependencies(python fxattn_torch fxattn_jax)
if(NOT FXA_PYTHON_FROM)
  add_dependencies(python fxattn_shared fxattn_command_shared)
endif()

if(SKBUILD)
  install(FILES ${abi} DESTINATION fxattn)
  install(FILES ${library} DESTINATION fxattn/_lib RENAME ${library_name})
  install(FILES $<TARGET_FILE:fxattn_torch> DESTINATION fxattn/_lib RENAME ${shim_name})
  install(FILES $<TARGET_FILE:fxattn_jax> DESTINATION fxattn/_lib RENAME ${jax_name})
  install(PROGRAMS ${command} DESTINATION fxattn/_lib RENAME fxattn)
endif()
