// Headers of many images. Files wait for disks, so that there may be more threads than cores.
#include "image/headers.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <exception>
#include <functional>
#include <string>
#include <thread>

#include "image/jpeg.h"

namespace jaxkern::image {
namespace {

constexpr size_t kFirstRead = 16 << 10;  // holds most headers; previews and profiles need more
constexpr size_t kMostRead = 64 << 20;   // of a header that does not end

// Calls body(i) for i in [0, count), a few at a time a thread. The body does not throw.
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
  const size_t wanted = std::min<size_t>(std::max(threads, 1), (count + kGrain - 1) / kGrain);
  others.reserve(wanted);
  try {
    while (others.size() + 1 < wanted) others.emplace_back(work);
  } catch (...) {  // no more threads, or no memory for them: those that have started do it
  }
  work();
  for (std::thread& other : others) other.join();
}

FileStamp stamp_of(const struct stat& found) {
  return {static_cast<int64_t>(found.st_size),
          static_cast<int64_t>(found.st_mtim.tv_sec) * 1'000'000'000 + found.st_mtim.tv_nsec};
}

ImageSize jpeg_size(const uint8_t* data, size_t size) {
  JpegInfo info;
  if (!read_jpeg_info(data, size, &info).empty()) return {};
  if (info.orientation >= 5) std::swap(info.height, info.width);
  return {info.height, info.width};
}

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int number() const { return number_; }

 private:
  int number_;
};

// Reads on until `buffer` holds `wanted` bytes or the file ends; false where it cannot be read.
bool read_until(int file, size_t wanted, std::vector<uint8_t>* buffer) {
  size_t have = buffer->size();
  buffer->resize(wanted);
  while (have < wanted) {
    const ssize_t count = read(file, buffer->data() + have, wanted - have);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return false;
    if (count == 0) break;
    have += static_cast<size_t>(count);
  }
  buffer->resize(have);
  return true;
}

void read_file(const std::string& name, std::vector<uint8_t>* buffer, ImageSize* size,
               FileStamp* stamp) {
  // What is no regular file, such as a pipe, must not be waited for.
  const Descriptor file(open(name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat found;
  if (file.number() < 0 || fstat(file.number(), &found) != 0 || !S_ISREG(found.st_mode)) return;
  buffer->clear();
  for (size_t wanted = kFirstRead;; wanted *= 8) {
    if (!read_until(file.number(), wanted, buffer)) return;
    *size = jpeg_size(buffer->data(), buffer->size());
    const bool jpeg = buffer->size() > 1 && (*buffer)[0] == 0xff && (*buffer)[1] == 0xd8;
    if (size->height != 0 || !jpeg || buffer->size() < wanted || wanted >= kMostRead) break;
  }
  *stamp = stamp_of(found);
}

}  // namespace

void stamp_files(const std::vector<std::string_view>& names, int threads, FileStamp* stamps) {
  for_each(names.size(), threads, [&](size_t i) {
    stamps[i] = {};
    try {
      struct stat found;
      const bool there = stat(std::string(names[i]).c_str(), &found) == 0;
      if (there && S_ISREG(found.st_mode)) stamps[i] = stamp_of(found);
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
      read_file(std::string(names[i]), &buffer, &sizes[i], &stamps[i]);
    } catch (const std::exception&) {
    }
  });
}

}  // namespace jaxkern::image
