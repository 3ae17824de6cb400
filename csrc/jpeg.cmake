# Finds libjpeg-turbo for csrc/image/jpeg.cc: sets jaxkern_jpeg_library, which is empty if it is not
# found, and JPEG_INCLUDE_DIRS. The static library is used if a Python module can be linked with it.
set(JAXKERN_JPEG AUTO CACHE STRING "Decode JPEG natively: AUTO (if libjpeg-turbo is found), ON or OFF")
set(jaxkern_jpeg_library "")
if(NOT JAXKERN_JPEG MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "JAXKERN_JPEG: expected AUTO, ON or OFF, got '${JAXKERN_JPEG}'")
elseif(NOT JAXKERN_JPEG STREQUAL "OFF")
  find_package(JPEG QUIET)
  if(JPEG_FOUND)
    include(CheckCXXSourceCompiles)
    # The library's symbols are not exported, so that they cannot conflict with another libjpeg in the process. zig and
    # macOS lack the option: .ci/install-libjpeg-turbo compiles the library with hidden symbols.
    include(CheckLinkerFlag)
    check_linker_flag(CXX LINKER:--exclude-libs,libjpeg.a JAXKERN_EXCLUDES_LIBS)
    set(jaxkern_exclude_jpeg "")
    if(JAXKERN_EXCLUDES_LIBS)
      set(jaxkern_exclude_jpeg LINKER:--exclude-libs,libjpeg.a)
    endif()
    # jaxkern_check_jpeg(RESULT LIBRARY): true if a shared object can be linked with the library and it
    # has all functions
    function(jaxkern_check_jpeg result library)
      set(CMAKE_REQUIRED_INCLUDES ${JPEG_INCLUDE_DIRS})
      set(CMAKE_REQUIRED_LIBRARIES ${library})
      set(CMAKE_REQUIRED_FLAGS "-fPIC")
      set(CMAKE_REQUIRED_LINK_OPTIONS -shared LINKER:-z,defs ${jaxkern_exclude_jpeg})
      check_cxx_source_compiles(
        "#include <cstddef>
        #include <cstdio>
        #include <jpeglib.h>
        #if !defined(LIBJPEG_TURBO_VERSION_NUMBER) || LIBJPEG_TURBO_VERSION_NUMBER < 2001000
        #error expected libjpeg-turbo 2.1 or later
        #endif
        #if BITS_IN_JSAMPLE != 8
        #error expected 8 bits per sample
        #endif
        int decode(j_decompress_ptr cinfo) {
          JDIMENSION first = 0, count = 8;
          jpeg_CreateDecompress(cinfo, JPEG_LIB_VERSION, sizeof *cinfo);
          jpeg_start_decompress(cinfo);
          jpeg_crop_scanline(cinfo, &first, &count);
          return jpeg_skip_scanlines(cinfo, 8);
        }"
        ${result})
    endfunction()
    get_filename_component(folder "${JPEG_LIBRARIES}" DIRECTORY)
    find_library(JAXKERN_JPEG_STATIC NAMES libjpeg.a HINTS "${folder}")
    if(JAXKERN_JPEG_STATIC)
      jaxkern_check_jpeg(JAXKERN_JPEG_STATIC_LINKS "${JAXKERN_JPEG_STATIC}")
    endif()
    if(JAXKERN_JPEG_STATIC_LINKS)
      set(jaxkern_jpeg_library "${JAXKERN_JPEG_STATIC}")
    else()
      jaxkern_check_jpeg(JAXKERN_JPEG_LINKS "${JPEG_LIBRARIES}")
      if(JAXKERN_JPEG_LINKS)
        set(jaxkern_jpeg_library "${JPEG_LIBRARIES}")
      endif()
    endif()
  endif()
  if(NOT jaxkern_jpeg_library AND JAXKERN_JPEG STREQUAL "ON")
    message(FATAL_ERROR "JAXKERN_JPEG is ON, but no libjpeg-turbo 2.1 or later was found; install its "
                        "development package (Debian and Ubuntu: apt-get install libjpeg-dev), "
                        "set JPEG_ROOT, or set JAXKERN_JPEG to AUTO or OFF")
  endif()
endif()
if(jaxkern_jpeg_library)
  message(STATUS "jaxkern: JPEG decoder: ${jaxkern_jpeg_library}")
else()
  message(STATUS "jaxkern: JPEG decoder: none")
endif()
