# Headers, both libraries, CMake package, pkg-config file, documents, gallery; command, man page and completions.
include(CMakePackageConfigHelpers)

install(TARGETS fxattn_shared fxattn_static EXPORT fxattnTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/fxattn DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")

set(FXA_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/fxattn)
install(EXPORT fxattnTargets NAMESPACE fxattn:: DESTINATION ${FXA_PACKAGE_DIR})
configure_package_config_file(cmake/fxattnConfig.cmake.in ${PROJECT_BINARY_DIR}/fxattnConfig.cmake
                              INSTALL_DESTINATION ${FXA_PACKAGE_DIR})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/fxattnConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/fxattnConfig.cmake ${PROJECT_BINARY_DIR}/fxattnConfigVersion.cmake
        DESTINATION ${FXA_PACKAGE_DIR})

if(CMAKE_DL_LIBS)
  set(FXA_PC_DL " -l${CMAKE_DL_LIBS}")
endif()
if(FXA_ATOMIC_LIBRARY)
  set(FXA_PC_ATOMIC " -l${FXA_ATOMIC_LIBRARY}")
endif()
configure_file(cmake/fxattn.pc.in ${PROJECT_BINARY_DIR}/fxattn.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/fxattn.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# Installed documents keep their folders, so that links between them hold. Links to files installed elsewhere are rewritten.
file(RELATIVE_PATH to_headers ${CMAKE_INSTALL_FULL_DOCDIR} ${CMAKE_INSTALL_FULL_INCLUDEDIR}/fxattn)
file(RELATIVE_PATH to_gallery ${CMAKE_INSTALL_FULL_DOCDIR} ${CMAKE_INSTALL_FULL_DATAROOTDIR}/fxattn/programs)
file(RELATIVE_PATH to_man ${CMAKE_INSTALL_FULL_DOCDIR} ${CMAKE_INSTALL_FULL_MANDIR}/man1)
file(REMOVE_RECURSE ${PROJECT_BINARY_DIR}/documents) # removes documents of earlier versions
file(GLOB documents RELATIVE ${PROJECT_SOURCE_DIR} CONFIGURE_DEPENDS *.md)
file(GLOB_RECURSE below RELATIVE ${PROJECT_SOURCE_DIR} CONFIGURE_DEPENDS docs/*.md)
list(APPEND documents ${below} bench/results/README.md) # a file that CONTRIBUTING.md links to
foreach(document ${documents})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${document})
  file(READ ${document} text)
  string(REPLACE "](include/fxattn/" "](${to_headers}/" text "${text}")
  string(REPLACE "](../include/fxattn/" "](../${to_headers}/" text "${text}")
  string(REPLACE "](examples/programs)" "](${to_gallery})" text "${text}")
  string(REPLACE "](../man/" "](../${to_man}/" text "${text}")
  file(WRITE ${PROJECT_BINARY_DIR}/documents/${document} "${text}")
endforeach()
install(DIRECTORY ${PROJECT_BINARY_DIR}/documents/ DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs/img DESTINATION ${CMAKE_INSTALL_DOCDIR}/docs FILES_MATCHING PATTERN "*.svg")
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY examples/ DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples FILES_MATCHING PATTERN "*.c" PATTERN "*.sh"
        PATTERN "*.py" PATTERN "*.json" PATTERN programs EXCLUDE)
install(DIRECTORY examples/programs DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/fxattn FILES_MATCHING PATTERN "*.fxa")
if(NOT TARGET fxattn)
  return()
endif()
install(TARGETS fxattn RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(FILES man/fxattn.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
foreach(shell bash zsh fish)
  set(script ${PROJECT_BINARY_DIR}/completion.${shell})
  add_custom_command(OUTPUT ${script} COMMAND fxattn completion ${shell} > ${script} DEPENDS fxattn VERBATIM)
  list(APPEND FXA_COMPLETIONS ${script})
endforeach()
add_custom_target(fxattn_completions ALL DEPENDS ${FXA_COMPLETIONS})
set(data ${CMAKE_INSTALL_DATAROOTDIR})
install(FILES ${PROJECT_BINARY_DIR}/completion.bash DESTINATION ${data}/bash-completion/completions RENAME fxattn)
install(FILES ${PROJECT_BINARY_DIR}/completion.zsh DESTINATION ${data}/zsh/site-functions RENAME _fxattn)
install(FILES ${PROJECT_BINARY_DIR}/completion.fish DESTINATION ${data}/fish/vendor_completions.d RENAME fxattn.fish)
