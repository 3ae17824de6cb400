// Included first when the sources are checked for macOS with Linux's headers: what macOS names
// differently or lacks.
#define st_mtim st_mtimespec
#include <fcntl.h>
#include <sys/stat.h>
#undef st_mtim
#define pthread_setname_np linux_pthread_setname_np
#include <pthread.h>
#undef pthread_setname_np
extern "C" int pthread_setname_np(const char* name);
#include <sched.h>
#include <sys/mman.h>
#pragma GCC poison sched_getaffinity
#undef MADV_HUGEPAGE
#undef MAP_POPULATE
