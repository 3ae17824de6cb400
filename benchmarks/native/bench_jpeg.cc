// Decodes regions of JPEG files in memory: the upper limit of the rate from files to batches.
//
//   bench_jpeg LIST THREADS    LIST: a line "top left height width PATH" per image
//
// For each line on standard input, all regions are decoded once and their number is printed.
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "image/jpeg.h"

namespace {

using jaxkern::image::JpegDecoder;
using jaxkern::image::JpegRegion;

struct Image {
  std::vector<uint8_t> file;
  JpegRegion region;
};

std::vector<Image> read_images(const char* list) {
  std::vector<Image> images;
  std::ifstream lines(list);
  JpegRegion region;
  std::string path;
  while (lines >> region.top >> region.left >> region.height >> region.width &&
         std::getline(lines >> std::ws, path)) {
    std::ifstream file(path, std::ios::binary);
    images.push_back({{std::istreambuf_iterator<char>(file), {}}, region});
  }
  return images;
}

void decode(const std::vector<Image>& images, std::atomic<size_t>& next) {
  JpegDecoder decoder;
  std::vector<uint8_t> pixels;
  for (size_t i = next++; i < images.size(); i = next++) {
    const Image& image = images[i];
    pixels.resize(size_t{3} * image.region.height * image.region.width);
    const std::string problem = decoder.decode(image.file.data(), image.file.size(), 3, 1 << 30,
                                               image.region, pixels.data());
    if (!problem.empty()) {
      std::fprintf(stderr, "image %zu: %s\n", i, problem.c_str());
      std::exit(1);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "bench_jpeg LIST THREADS\n");
    return 2;
  }
  const std::vector<Image> images = read_images(argv[1]);
  for (std::string line; std::getline(std::cin, line);) {
    std::atomic<size_t> next{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < std::atoi(argv[2]); ++i) {
      threads.emplace_back([&images, &next] { decode(images, next); });
    }
    for (std::thread& thread : threads) thread.join();
    std::printf("%zu\n", images.size());
    std::fflush(stdout);
  }
}
