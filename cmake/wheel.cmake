# What the Python package has of the engine: the library, the command, and the licences of what they are made with.
# `cmake --install BUILD --component wheel` puts them where the package wants them. pyproject.toml asks for that, an
# ordinary installation does not.
#
# A wheel holds no links, so the library is there once, under its plain name.
set(wheel_install COMPONENT wheel EXCLUDE_FROM_ALL)
install(PROGRAMS $<TARGET_FILE:lading_library> DESTINATION lading/lib RENAME liblading.so ${wheel_install})
install(PROGRAMS $<TARGET_FILE:lading_command> DESTINATION lading/bin ${wheel_install})
if(CMAKE_STRIP)
  install(CODE "execute_process(COMMAND \"${CMAKE_STRIP}\" \"\${CMAKE_INSTALL_PREFIX}/lading/lib/liblading.so\"
    \"\${CMAKE_INSTALL_PREFIX}/lading/bin/lading\" COMMAND_ERROR_IS_FATAL ANY)" ${wheel_install})
endif()

# Where distributions of Debian's kind keep them. tools/wheel fails where one is missing.
foreach(library IN ITEMS fmt simdjson cli11 ssl re2 xxhash hwy uring)
  set(licence /usr/share/doc/lib${library}-dev/copyright)
  if(EXISTS ${licence})
    install(FILES ${licence} DESTINATION lading/licenses RENAME ${library}.txt ${wheel_install})
  endif()
endforeach()

add_custom_target(lading_wheel DEPENDS lading_library lading_command)
