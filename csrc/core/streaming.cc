// The size of the last-level caches, from the descriptions of Linux, or else from sysconf.
#include "core/streaming.h"

#include <cstdlib>
#include <fstream>
#include <limits>
#include <sstream>

#include "core/platform.h"

namespace jaxkern {
namespace {

std::string read_line(const std::string& path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
}

// Returns the number of CPUs in a list like "0-3,8".
int64_t count_cpus(const std::string& list) {
  int64_t count = 0;
  std::istringstream ranges(list);
  for (std::string range; std::getline(ranges, range, ',');) {
    const size_t dash = range.find('-');
    const int64_t first = std::atoll(range.c_str());
    const int64_t last = dash == std::string::npos ? first : std::atoll(range.c_str() + dash + 1);
    if (last >= first) count += last - first + 1;
  }
  return count;
}

// Returns the bytes of a size like "32768K" or "16M".
int64_t parse_size(const std::string& text) {
  char* unit = nullptr;
  const int64_t size = std::strtoll(text.c_str(), &unit, 10);
  return *unit == 'K' ? size << 10 : *unit == 'M' ? size << 20 : size;
}

int64_t this_process_cache_bytes() {
  const int64_t bytes = last_level_cache_bytes("/sys/devices/system/cpu", allowed_cpus());
  // A container can hide the descriptions. glibc's value is too large on some virtual machines.
  return bytes > 0 ? bytes : reported_cache_bytes();
}

}  // namespace

int64_t last_level_cache_bytes(const std::string& folder, const std::vector<int>& cpus) {
  double total = 0;
  for (const int cpu : cpus) {
    int64_t level = 0;
    double share = 0;
    for (int index = 0;; ++index) {
      const std::string cache =
          folder + "/cpu" + std::to_string(cpu) + "/cache/index" + std::to_string(index);
      const std::string stated = read_line(cache + "/level");
      if (stated.empty()) break;
      if (std::atoll(stated.c_str()) < level || read_line(cache + "/type") == "Instruction")
        continue;
      const int64_t sharing = count_cpus(read_line(cache + "/shared_cpu_list"));
      level = std::atoll(stated.c_str());
      share = sharing == 0 ? 0
                           : static_cast<double>(parse_size(read_line(cache + "/size"))) /
                                 static_cast<double>(sharing);
    }
    if (share <= 0) return 0;
    total += share;
  }
  return static_cast<int64_t>(total);
}

int64_t largest_cached_result() {
  static const int64_t largest = [] {
    const int64_t bytes = this_process_cache_bytes();
    return bytes > 0 ? bytes / 2 : std::numeric_limits<int64_t>::max();
  }();
  return largest;
}

}  // namespace jaxkern
