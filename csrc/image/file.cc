// Whole files in memory, by the system's calls.
#include "image/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace jaxkern::image {
namespace {

// How much one call reads at most: Linux takes 2 GiB, others less.
constexpr size_t kReadBytes = size_t{1} << 28;

struct File {
  int descriptor = -1;
  ~File() {
    if (descriptor >= 0) ::close(descriptor);
  }
};

std::string refused(const char* what) {
  return std::string("cannot be ") + what + ": " +
         std::error_code(errno, std::generic_category()).message();
}

}  // namespace

std::string read_file(const std::string& path, Buffer* buffer, size_t* length) {
  File file;
  do {
    file.descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  } while (file.descriptor < 0 && errno == EINTR);
  if (file.descriptor < 0) return refused("opened");
  struct stat status{};
  if (::fstat(file.descriptor, &status) != 0) return refused("examined");
  if (!S_ISREG(status.st_mode)) return "is no regular file";
  if (status.st_size > kMaxFileBytes) {
    return "has " + std::to_string(status.st_size) + " bytes; wanted at most " +
           std::to_string(kMaxFileBytes);
  }
  const auto size = static_cast<size_t>(status.st_size);
  uint8_t* bytes = buffer->room(size);
  for (size_t done = 0; done < size;) {
    const ssize_t count = ::read(file.descriptor, bytes + done, std::min(size - done, kReadBytes));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return refused("read");
    if (count == 0) {
      return "was cut short while it was read, at " + std::to_string(done) + " of " +
             std::to_string(size) + " bytes";
    }
    done += static_cast<size_t>(count);
  }
  *length = size;
  return {};
}

}  // namespace jaxkern::image
