// Whole files in memory.
#ifndef JAXKERN_IMAGE_FILE_H_
#define JAXKERN_IMAGE_FILE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

namespace jaxkern::image {

// Memory that grows; what it holds stays.
class Buffer {
 public:
  size_t size() const { return size_; }
  uint8_t* room(size_t bytes) {
    if (size_ < bytes) {
      std::unique_ptr<uint8_t[]> more(new uint8_t[bytes]);
      if (size_ > 0) std::memcpy(more.get(), data_.get(), size_);
      data_ = std::move(more);
      size_ = bytes;
    }
    return data_.get();
  }
  void drop() {
    data_.reset();
    size_ = 0;
  }

 private:
  std::unique_ptr<uint8_t[]> data_;
  size_t size_ = 0;
};

constexpr int64_t kMaxFileBytes = int64_t{1} << 30;

// Reads a regular file to the beginning of `buffer`, which grows as needed. Anything else, such as
// a pipe, is not waited for. "" or what is wrong.
std::string read_file(const std::string& path, Buffer* buffer, size_t* length);

}  // namespace jaxkern::image

#endif  // JAXKERN_IMAGE_FILE_H_
