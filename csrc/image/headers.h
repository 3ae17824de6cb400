// The headers of many images, and the sizes and times of many files, read by several threads.
#ifndef JAXKERN_IMAGE_HEADERS_H_
#define JAXKERN_IMAGE_HEADERS_H_

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace jaxkern::image {

// What is known of a regular file without opening it; size -1 where there is none.
struct FileStamp {
  int64_t size = -1;
  int64_t modified = -1;  // nanoseconds
};

struct ImageSize {
  int32_t height = 0, width = 0;  // upright; zeros where the header is no JPEG's
};

// stamps[i] is that of the file names[i].
void stamp_files(const std::vector<std::string_view>& names, int threads, FileStamp* stamps);

// sizes[i] is that of the JPEG images[i].
void read_jpeg_sizes(const std::vector<std::string_view>& images, int threads, ImageSize* sizes);

// The same of files, of each of which no more is read than its header needs. A file that cannot be
// read has no stamp.
void read_jpeg_file_sizes(const std::vector<std::string_view>& names, int threads, ImageSize* sizes,
                          FileStamp* stamps);

}  // namespace jaxkern::image

#endif  // JAXKERN_IMAGE_HEADERS_H_
