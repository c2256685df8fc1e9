# LADING_PREBUILT names a build tree of this checkout: the package is made of what was built there, and nothing is
# compiled. For tests of the package, which need not build everything a second time.
add_custom_target(lading_wheel)
install(CODE "execute_process(COMMAND \"${CMAKE_COMMAND}\" --install \"${LADING_PREBUILT}\" --component wheel
  --prefix \"\${CMAKE_INSTALL_PREFIX}\" COMMAND_ERROR_IS_FATAL ANY)" COMPONENT wheel)
