# What the Python package has of the engine: the library, the command, the plug-in for MPI, and the licences of what they are made with.
# `cmake --install BUILD --component wheel` puts them where the package wants them. pyproject.toml asks for that, an
# ordinary installation does not.
#
# A wheel holds no links, so the library is there once, under its plain name.
set(wheel_install COMPONENT wheel EXCLUDE_FROM_ALL)
install(PROGRAMS $<TARGET_FILE:lading_library> DESTINATION lading/lib RENAME liblading.so ${wheel_install})
install(PROGRAMS $<TARGET_FILE:lading_command> DESTINATION lading/bin ${wheel_install})
set(wheel_binaries lading/lib/liblading.so lading/bin/lading)
set(wheel_targets lading_library lading_command)
# It uses the MPI of the machine: that is the one whose mpirun starts the processes.
if(TARGET lading_mpi)
  install(TARGETS lading_mpi LIBRARY DESTINATION lading/lib ${wheel_install})
  list(APPEND wheel_binaries lading/lib/liblading_mpi.so)
  list(APPEND wheel_targets lading_mpi)
endif()
if(CMAKE_STRIP)
  set(stripped "")
  foreach(binary IN LISTS wheel_binaries)
    string(APPEND stripped " \"\${CMAKE_INSTALL_PREFIX}/${binary}\"")
  endforeach()
  install(CODE "execute_process(COMMAND \"${CMAKE_STRIP}\"${stripped} COMMAND_ERROR_IS_FATAL ANY)" ${wheel_install})
endif()

# Where distributions of Debian's kind keep them. tools/wheel fails where one is missing.
foreach(library IN ITEMS fmt simdjson cli11 ssl re2 xxhash hwy uring)
  set(licence /usr/share/doc/lib${library}-dev/copyright)
  if(EXISTS ${licence})
    install(FILES ${licence} DESTINATION lading/licenses RENAME ${library}.txt ${wheel_install})
  endif()
endforeach()

add_custom_target(lading_wheel DEPENDS ${wheel_targets})
