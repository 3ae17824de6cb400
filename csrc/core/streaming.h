// The choice between normal stores and streaming stores, which bypass the caches.
#ifndef JAXKERN_CORE_STREAMING_H_
#define JAXKERN_CORE_STREAMING_H_

#include <cstdint>
#include <string>
#include <vector>

namespace jaxkern {

// The size in bytes of the last-level caches of `cpus`, according to `folder`, which has the layout
// of /sys/devices/system/cpu. Each CPU adds its share of its cache: in a cache that 8 CPUs share,
// 2 of them have a quarter. 0 if a CPU has no description.
int64_t last_level_cache_bytes(const std::string& folder, const std::vector<int>& cpus);

// Results of more bytes are written with streaming stores: half of the last-level caches of the
// CPUs that this process may use, read once. A larger result displaces what its consumer reads
// next; a smaller one is still cached when it is read. If the size of the caches is unknown, no
// result is large enough.
int64_t largest_cached_result();

}  // namespace jaxkern

#endif  // JAXKERN_CORE_STREAMING_H_
