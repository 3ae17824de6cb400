// Files by POSIX calls, and the headers of many JPEG files.
#include "image/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <exception>
#include <functional>
#include <system_error>
#include <thread>

#include "core/platform.h"
#include "image/jpeg.h"

namespace jaxkern::image {
namespace {

// Maximum size of one read; Linux allows 2 GiB, other systems less.
constexpr size_t kReadBytes = size_t{1} << 28;

constexpr size_t kFirstRead = 16 << 10;  // holds most headers; previews and profiles need more
constexpr size_t kMaxHeader = 64 << 20;  // of a header that does not end

std::string system_error(const char* what) {
  return std::string("cannot be ") + what + ": " +
         std::error_code(errno, std::generic_category()).message();
}

// A file that is open for reading. O_NONBLOCK: opening a pipe does not wait for a writer.
class File {
 public:
  explicit File(const char* path) {
    do {
      number_ = ::open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    } while (number_ < 0 && errno == EINTR);
  }
  ~File() {
    if (number_ >= 0) ::close(number_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int number() const { return number_; }

 private:
  int number_;
};

// Calls body(i) for i in [0, count) in several threads. There may be more threads than cores,
// because reading files waits for disks. `body` must not throw.
void for_each(size_t count, int threads, const std::function<void(size_t)>& body) {
  constexpr size_t kGrain = 16;
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (;;) {
      const size_t begin = next.fetch_add(kGrain);
      if (begin >= count) return;
      for (size_t i = begin; i < std::min(begin + kGrain, count); ++i) body(i);
    }
  };
  std::vector<std::thread> others;
  const size_t workers = std::min<size_t>(std::max(threads, 1), (count + kGrain - 1) / kGrain);
  others.reserve(workers);
  try {
    while (others.size() + 1 < workers) others.emplace_back(work);
  } catch (...) {  // no more threads or memory: continue with the threads that have started
  }
  work();
  for (std::thread& other : others) other.join();
}

FileStamp stamp_of(const struct stat& status) {
  return {static_cast<int64_t>(status.st_size), modified_ns(status)};
}

ImageSize jpeg_size(const uint8_t* data, size_t size) {
  JpegInfo info;
  if (!read_jpeg_info(data, size, &info).empty()) return {};
  if (info.orientation >= 5) std::swap(info.height, info.width);
  return {info.height, info.width};
}

// Reads until `buffer` holds `size` bytes or the file ends. Returns false if reading fails.
bool read_until(int file, size_t size, std::vector<uint8_t>* buffer) {
  size_t have = buffer->size();
  buffer->resize(size);
  while (have < size) {
    const ssize_t count = ::read(file, buffer->data() + have, size - have);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return false;
    if (count == 0) break;
    have += static_cast<size_t>(count);
  }
  buffer->resize(have);
  return true;
}

void read_header(const std::string& name, std::vector<uint8_t>* buffer, ImageSize* size,
                 FileStamp* stamp) {
  const File file(name.c_str());
  struct stat status;
  if (file.number() < 0 || fstat(file.number(), &status) != 0 || !S_ISREG(status.st_mode)) return;
  buffer->clear();
  for (size_t bytes = kFirstRead;; bytes *= 8) {
    if (!read_until(file.number(), bytes, buffer)) return;
    *size = jpeg_size(buffer->data(), buffer->size());
    const bool jpeg = buffer->size() > 1 && (*buffer)[0] == 0xff && (*buffer)[1] == 0xd8;
    if (size->height != 0 || !jpeg || buffer->size() < bytes || bytes >= kMaxHeader) break;
  }
  *stamp = stamp_of(status);
}

}  // namespace

std::string read_file(const std::string& path, Buffer* buffer, size_t* length) {
  const File file(path.c_str());
  if (file.number() < 0) return system_error("opened");
  struct stat status{};
  if (::fstat(file.number(), &status) != 0) return system_error("examined");
  if (!S_ISREG(status.st_mode)) return "is not a regular file";
  if (status.st_size > kMaxFileBytes) {
    return "is too large: expected at most " + std::to_string(kMaxFileBytes) + " bytes, got " +
           std::to_string(status.st_size);
  }
  const auto size = static_cast<size_t>(status.st_size);
  uint8_t* bytes = buffer->reserve(size);
  for (size_t done = 0; done < size;) {
    const ssize_t count = ::read(file.number(), bytes + done, std::min(size - done, kReadBytes));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return system_error("read");
    if (count == 0) {
      return "was truncated while it was read, at " + std::to_string(done) + " of " +
             std::to_string(size) + " bytes";
    }
    done += static_cast<size_t>(count);
  }
  *length = size;
  return {};
}

void stamp_files(const std::vector<std::string_view>& names, int threads, FileStamp* stamps) {
  for_each(names.size(), threads, [&](size_t i) {
    stamps[i] = {};
    try {
      struct stat status;
      const bool exists = stat(std::string(names[i]).c_str(), &status) == 0;
      if (exists && S_ISREG(status.st_mode)) stamps[i] = stamp_of(status);
    } catch (const std::exception&) {
    }
  });
}

void read_jpeg_sizes(const std::vector<std::string_view>& images, int threads, ImageSize* sizes) {
  for_each(images.size(), threads, [&](size_t i) {
    sizes[i] = {};
    try {
      sizes[i] = jpeg_size(reinterpret_cast<const uint8_t*>(images[i].data()), images[i].size());
    } catch (const std::exception&) {
    }
  });
}

void read_jpeg_file_sizes(const std::vector<std::string_view>& names, int threads, ImageSize* sizes,
                          FileStamp* stamps) {
  for_each(names.size(), threads, [&](size_t i) {
    sizes[i] = {};
    stamps[i] = {};
    try {
      std::vector<uint8_t> buffer;
      read_header(std::string(names[i]), &buffer, &sizes[i], &stamps[i]);
    } catch (const std::exception&) {
    }
  });
}

}  // namespace jaxkern::image
