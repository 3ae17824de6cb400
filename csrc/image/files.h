// Files in memory, and the JPEG headers, sizes and modification times of many files.
#ifndef JAXKERN_IMAGE_FILES_H_
#define JAXKERN_IMAGE_FILES_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace jaxkern::image {

// Memory that grows and preserves its contents.
class Buffer {
 public:
  size_t size() const { return size_; }
  uint8_t* reserve(size_t bytes) {
    if (size_ < bytes) {
      std::unique_ptr<uint8_t[]> larger(new uint8_t[bytes]);
      if (size_ > 0) std::memcpy(larger.get(), data_.get(), size_);
      data_ = std::move(larger);
      size_ = bytes;
    }
    return data_.get();
  }
  void release() {
    data_.reset();
    size_ = 0;
  }

 private:
  std::unique_ptr<uint8_t[]> data_;
  size_t size_ = 0;
};

constexpr int64_t kMaxFileBytes = int64_t{1} << 30;

// Reads a regular file into the beginning of `buffer`, which grows as needed. Anything else, such
// as a pipe, is an error and is not waited for. Returns "" or an error message.
std::string read_file(const std::string& path, Buffer* buffer, size_t* length);

// The metadata of a regular file; size is -1 if it does not exist.
struct FileStamp {
  int64_t size = -1;
  int64_t modified = -1;  // nanoseconds
};

struct ImageSize {
  int32_t height = 0, width = 0;  // after the orientation; zeros if the header is not a JPEG header
};

// Sets stamps[i] to the metadata of file names[i]. Several threads share the work, as below.
void stamp_files(const std::vector<std::string_view>& names, int threads, FileStamp* stamps);

// Sets sizes[i] to the size of the JPEG images[i].
void read_jpeg_sizes(const std::vector<std::string_view>& images, int threads, ImageSize* sizes);

// The same for files, of which only the headers are read. The stamp of an unreadable file stays -1.
void read_jpeg_file_sizes(const std::vector<std::string_view>& names, int threads, ImageSize* sizes,
                          FileStamp* stamps);

}  // namespace jaxkern::image

#endif  // JAXKERN_IMAGE_FILES_H_
