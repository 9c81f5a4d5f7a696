# Debian packages: `plimsoll` (the command line with its presets, man pages and completions, and whatever else is built) and
# `plimsoll-gui`.  `cpack -G DEB` in the build folder, or `./dev package`.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME plimsoll)
set(CPACK_PACKAGE_VENDOR "The Plimsoll authors")
set(CPACK_PACKAGE_CONTACT "The Plimsoll authors <plimsoll@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_RESOURCE_FILE_LICENSE ${CMAKE_SOURCE_DIR}/LICENSE)
set(CPACK_PACKAGE_DIRECTORY ${CMAKE_BINARY_DIR}/packages)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING ONE_PER_GROUP)
set(CPACK_COMPONENTS_ALL plimsoll)
if(TARGET plimsoll-gui)
  list(APPEND CPACK_COMPONENTS_ALL plimsoll-gui)
endif()
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PLIMSOLL_PACKAGE_NAME plimsoll)
set(CPACK_DEBIAN_PLIMSOLL_PACKAGE_SECTION science)
set(CPACK_COMPONENT_PLIMSOLL_DESCRIPTION
    "Plimsoll tells, before a GPU is rented, whether a training run with ZeRO, FSDP2 or
expert parallelism fits, what it sends, how long a step takes, and which
configuration to use instead.")
set(CPACK_DEBIAN_PLIMSOLL-GUI_PACKAGE_NAME plimsoll-gui)
set(CPACK_DEBIAN_PLIMSOLL-GUI_PACKAGE_SECTION science)
# Presets come with the command line; the icon and the documents need Qt's SVG plugin.
set(CPACK_DEBIAN_PLIMSOLL-GUI_PACKAGE_DEPENDS "plimsoll (= ${PROJECT_VERSION}), libqt6svg6, hicolor-icon-theme")
set(CPACK_COMPONENT_PLIMSOLL-GUI_DESCRIPTION
    "The desktop program of Plimsoll: what-if planning of training runs that
answers as you drag.")
include(CPack)
