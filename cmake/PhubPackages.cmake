# Debian packages, one for each component: `deploy/make-packages`.
#   phub-server  phubd, its service and settings
#   phub-client  phubctl and libphub.so.0
#   phub-dev     headers and CMake files to build against libphub
#   python3-phub the Python package for Debian's python3
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME phub)
set(CPACK_PACKAGE_VENDOR phub)
set(CPACK_PACKAGE_CONTACT "The phub authors <phub@localhost>")
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_COMPONENTS_ALL server client dev python)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_ENABLE_COMPONENT_DEPENDS OFF)  # written out below, with versions
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
# Some files of the service are installed outside the prefix (below /), so cpack must use DESTDIR.
set(CPACK_SET_DESTDIR ON)
set(CPACK_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ
  GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)

set(summary "rack-scale, multi-tenant parameter server for distributed training")
set(CPACK_COMPONENT_SERVER_DESCRIPTION "${summary} (daemon)
 phubd sums gradients of training jobs, runs their optimizers and sends every
 worker the new parameters. This package has the daemon and its service.")
set(CPACK_COMPONENT_CLIENT_DESCRIPTION "${summary} (client)
 The library that training programs use, and phubctl, the command-line tool for
 operators to inspect and manage daemons and their jobs.")
set(CPACK_COMPONENT_DEV_DESCRIPTION "${summary} (development files)
 Headers and CMake files to build training programs against libphub.")
set(CPACK_COMPONENT_PYTHON_DESCRIPTION "${summary} (Python)
 The package phub for Python, with a backend for torch.distributed.")

set(debian "${PROJECT_SOURCE_DIR}/deploy/debian")
set(CPACK_DEBIAN_SERVER_PACKAGE_NAME phub-server)
set(CPACK_DEBIAN_SERVER_PACKAGE_SECTION net)
set(CPACK_DEBIAN_SERVER_PACKAGE_DEPENDS "adduser, init-system-helpers (>= 1.54~)")
set(CPACK_DEBIAN_SERVER_PACKAGE_RECOMMENDS "phub-client, libibverbs1")  # libibverbs is loaded at run time
set(CPACK_DEBIAN_SERVER_PACKAGE_CONTROL_EXTRA
  "${debian}/server/postinst;${debian}/server/prerm;${debian}/server/postrm;${debian}/server/conffiles")
set(CPACK_DEBIAN_SERVER_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_CLIENT_PACKAGE_NAME phub-client)
set(CPACK_DEBIAN_CLIENT_PACKAGE_SECTION net)
set(CPACK_DEBIAN_CLIENT_PACKAGE_RECOMMENDS libibverbs1)
set(CPACK_DEBIAN_CLIENT_PACKAGE_CONTROL_EXTRA "${debian}/client/triggers")
set(CPACK_DEBIAN_CLIENT_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_DEV_PACKAGE_NAME phub-dev)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEV_PACKAGE_DEPENDS "phub-client (= ${PROJECT_VERSION}-1)")
set(CPACK_DEBIAN_PYTHON_PACKAGE_NAME python3-phub)
set(CPACK_DEBIAN_PYTHON_PACKAGE_SECTION python)
set(CPACK_DEBIAN_PYTHON_PACKAGE_ARCHITECTURE all)
set(CPACK_DEBIAN_PYTHON_PACKAGE_SHLIBDEPS OFF)
set(CPACK_DEBIAN_PYTHON_PACKAGE_DEPENDS
  "python3 (>= 3.9), python3-numpy (>= 1:1.21), phub-client (= ${PROJECT_VERSION}-1)")
set(CPACK_DEBIAN_PYTHON_PACKAGE_SUGGESTS python3-torch)
set(CPACK_DEBIAN_PYTHON_PACKAGE_CONTROL_EXTRA "${debian}/python/postinst;${debian}/python/prerm")
set(CPACK_DEBIAN_PYTHON_PACKAGE_CONTROL_STRICT_PERMISSION ON)
include(CPack)
