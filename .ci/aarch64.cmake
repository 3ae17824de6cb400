# Cross-compiles for 64-bit ARM with Debian's g++-aarch64-linux-gnu; programs run under qemu-aarch64-static.
# Packages that .ci/arm64-packages unpacked in build/arm64 are found.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static -L /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH ${CMAKE_CURRENT_LIST_DIR}/../build/arm64)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
