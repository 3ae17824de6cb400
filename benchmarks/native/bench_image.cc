// Times the image kernels on 64 images per case. Usage: bench_image [--repetitions N]
// [--filter TEXT] [--level NAME] [--threads N] [--clock wall|cpu]. `share` is the time to move the
// case's bytes at the measured load and streaming-store speeds, divided by the case's time.
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <random>

#include "core/parallel.h"
#include "core/simd_dispatch.h"
#include "core/streaming.h"
#include "image/check.h"
#include "image/levels.h"
#include "image/mix.h"
#include "measure.h"

namespace jaxkern::benchmarks {
namespace {

using namespace jaxkern::image;

constexpr int64_t kImages = 64;

struct Work {
  Plan plan;
  int32_t height, width;
  std::vector<Geometry> geometry;
  std::vector<float> affine, fill;
  Block pixels, output;
  size_t image_bytes, result_bytes;
};

struct Kind {
  const char* name;
  Filter filter;
  int32_t size;      // of the source, square
  int32_t result;    // of the output
  float least_area;  // of the random crop; 1 is the whole image
  int32_t channels;
  Dtype source, output;
  Layout layout;
};

Geometry random_crop(std::mt19937& engine, const Kind& kind) {
  std::uniform_real_distribution<float> unit(0.f, 1.f);
  Geometry g = {};
  g.box_height = g.box_width = kind.size;
  if (kind.least_area < 1.f) {
    const float area =
        (kind.least_area + (1.f - kind.least_area) * unit(engine)) * kind.size * kind.size;
    const float ratio = std::exp((unit(engine) * 2 - 1) * std::log(4.f / 3.f));
    g.box_width = std::min(kind.size, static_cast<int32_t>(std::sqrt(area * ratio) + .5f));
    g.box_height = std::min(kind.size, static_cast<int32_t>(std::sqrt(area / ratio) + .5f));
    g.top = static_cast<int32_t>(unit(engine) * static_cast<float>(kind.size - g.box_height));
    g.left = static_cast<int32_t>(unit(engine) * static_cast<float>(kind.size - g.box_width));
  }
  g.resampled_height = g.resampled_width = kind.result;
  g.valid_bottom = g.valid_right = kind.result;
  g.row_step = g.column_step = 1;
  if (kind.least_area < 1.f && unit(engine) < .5f) {
    g.column_step = -1;
    g.column_offset = kind.result - 1;
  }
  return g;
}

std::shared_ptr<Work> make_work(const Kind& kind) {
  auto work = std::make_shared<Work>();
  std::mt19937 engine(7);
  Plan& plan = work->plan;
  plan = {};
  plan.segments = 1;
  plan.segment[0] = {kind.filter, kind.result, kind.result, 0,
                     kind.output == Dtype::kU8 ? Rounding::kNearest : Rounding::kKeep};
  plan.channels = kind.channels;
  plan.source_dtype = kind.source;
  plan.output_dtype = kind.output;
  plan.layout = kind.layout;
  work->height = work->width = kind.size;
  for (int64_t i = 0; i < kImages; ++i) work->geometry.push_back(random_crop(engine, kind));
  const bool levels = kind.output == Dtype::kU8;
  for (int32_t c = 0; c < kind.channels; ++c)
    work->affine.push_back(levels ? 1.f : 1.f / (255.f * .225f));
  for (int32_t c = 0; c < kind.channels; ++c) work->affine.push_back(levels ? 0.f : -2.f);
  work->fill.assign(static_cast<size_t>(kind.channels), 0.f);
  const size_t item = kind.source == Dtype::kU8 ? 1 : kind.source == Dtype::kF32 ? 4 : 2;
  work->image_bytes = static_cast<size_t>(kind.size) * static_cast<size_t>(kind.size) *
                      static_cast<size_t>(kind.channels) * item;
  work->result_bytes = output_bytes(plan);
  work->pixels = block(work->image_bytes * kImages);
  work->output = block(work->result_bytes * kImages);
  const size_t values = work->image_bytes * kImages / item;
  for (size_t i = 0; i < values; ++i) {
    if (kind.source == Dtype::kU8) {
      work->pixels.get()[i] = static_cast<char>(engine());
    } else if (kind.source == Dtype::kF32) {
      const float value = static_cast<float>(engine() & 255);
      std::memcpy(work->pixels.get() + 4 * i, &value, 4);
    }
  }
  return work;
}

Arm image_arm(const Kind& kind, const std::shared_ptr<Work>& work, const char* level, int threads) {
  Arm arm;
  arm.name = kind.name;
  arm.level = level;
  arm.threads = threads;
  arm.items = kImages;
  arm.elements = static_cast<double>(kImages) * kind.result * kind.result * kind.channels;
  const double source_item = static_cast<double>(work->image_bytes) / (kind.size * kind.size);
  for (const Geometry& g : work->geometry) arm.read += source_item * g.box_height * g.box_width;
  arm.written = static_cast<double>(work->result_bytes) * kImages;
  const std::string name = level;
  const bool streaming = arm.written > static_cast<double>(largest_cached_result());
  arm.run = [work, name, threads, streaming] {
    set_simd_level(name.c_str());
    spread(threads, kImages, [&](int64_t i) {
      const size_t index = static_cast<size_t>(i);
      const Sample sample = {work->pixels.get() + index * work->image_bytes,
                             work->height,
                             work->width,
                             &work->geometry[index],
                             work->affine.data(),
                             work->fill.data(),
                             nullptr,
                             nullptr,
                             streaming};
      run_sample(work->plan, sample, work->output.get() + index * work->result_bytes,
                 thread_scratch<kScratchBytes>());
    });
  };
  return arm;
}

Arm mix_arm(Dtype dtype, const char* name, const char* level, int threads) {
  Arm arm;
  arm.name = name;
  arm.level = level;
  arm.threads = threads;
  arm.items = kImages;
  const size_t values = 224 * 224 * 3;
  const size_t bytes = values * (dtype == Dtype::kU8 ? 1 : dtype == Dtype::kF32 ? 4 : 2);
  arm.elements = static_cast<double>(values * kImages);
  arm.read = arm.written = static_cast<double>(bytes * kImages);  // the partner is in cache
  std::shared_ptr<char> input(block(bytes * kImages).release(), std::free);
  std::shared_ptr<char> output(block(bytes * kImages).release(), std::free);
  std::memset(input.get(), 0, bytes * kImages);
  const std::string forced = level;
  arm.run = [=] {
    set_simd_level(forced.c_str());
    spread(threads, kImages, [&](int64_t i) {
      const auto image = [&](const std::shared_ptr<char>& all, int64_t at) {
        return all.get() + bytes * static_cast<size_t>(at);
      };
      const float lambda = .3f;
      const EraseBox box = {0, 0, 0, 0};
      MixCall call = {dtype, Layout::kNHWC, 224, 224, 3, {}, image(output, i), 1};
      call.operands.set(kX, image(input, i), {});
      call.operands.set(kPartner, image(input, i == 0 ? kImages - 1 : i - 1), {});
      call.operands.set(kLambda, &lambda, {});
      call.operands.set(kBox, &box, {});
      mix_samples(call, 0, 1);
    });
  };
  return arm;
}

// Each ceiling moves the bytes that the target work writes.
std::vector<Arm> ceiling_arms(int threads) {
  const size_t piece = 224 * 224 * 3 * 4;
  std::shared_ptr<char> from(block(piece * kImages).release(), std::free);
  std::shared_ptr<char> to(block(piece * kImages).release(), std::free);
  const double bytes = static_cast<double>(piece * kImages);
  std::vector<Arm> arms(3);
  arms[0].name = "streaming-store fill";
  arms[0].written = bytes;
  arms[0].run = [=] {
    spread(threads, kImages,
           [&](int64_t i) { streaming_fill(to.get() + piece * static_cast<size_t>(i), piece); });
  };
  arms[1].name = "load and sum";
  arms[1].read = bytes;
  arms[1].run = [=] {
    spread(threads, kImages, [&](int64_t i) {
      volatile uint64_t sum = load_sum(from.get() + piece * static_cast<size_t>(i), piece);
      (void)sum;
    });
  };
  arms[2].name = "copy (memcpy)";
  arms[2].read = arms[2].written = bytes;
  arms[2].run = [=] {
    spread(threads, kImages, [&](int64_t i) {
      std::memcpy(to.get() + piece * static_cast<size_t>(i),
                  from.get() + piece * static_cast<size_t>(i), piece);
    });
  };
  for (Arm& arm : arms) {
    arm.threads = threads;
    arm.level = "-";
    arm.items = kImages;
    arm.elements = bytes / 4;
  }
  return arms;
}

const Kind kKinds[] = {
    {"crop 256->224 f32 (target)", Filter::kBilinear, 256, 224, .08f, 3, Dtype::kU8, Dtype::kF32,
     Layout::kNHWC},
    {"crop 256->224 bf16", Filter::kBilinear, 256, 224, .08f, 3, Dtype::kU8, Dtype::kBF16,
     Layout::kNHWC},
    {"crop 256->224 f16", Filter::kBilinear, 256, 224, .08f, 3, Dtype::kU8, Dtype::kF16,
     Layout::kNHWC},
    {"crop 256->224 u8", Filter::kBilinear, 256, 224, .08f, 3, Dtype::kU8, Dtype::kU8,
     Layout::kNHWC},
    {"crop 256->224 f32 NCHW", Filter::kBilinear, 256, 224, .08f, 3, Dtype::kU8, Dtype::kF32,
     Layout::kNCHW},
    {"crop 256->224 bf16 NCHW", Filter::kBilinear, 256, 224, .08f, 3, Dtype::kU8, Dtype::kBF16,
     Layout::kNCHW},
    {"crop 256->224 f32 C=1", Filter::kBilinear, 256, 224, .08f, 1, Dtype::kU8, Dtype::kF32,
     Layout::kNHWC},
    {"crop 256->224 f32 C=4", Filter::kBilinear, 256, 224, .08f, 4, Dtype::kU8, Dtype::kF32,
     Layout::kNHWC},
    {"crop 256->224 f32 antialias", Filter::kAntialias, 256, 224, .08f, 3, Dtype::kU8, Dtype::kF32,
     Layout::kNHWC},
    {"crop 512->224 f32 antialias", Filter::kAntialias, 512, 224, .08f, 3, Dtype::kU8, Dtype::kF32,
     Layout::kNHWC},
    {"resize 896->224 f32 antialias", Filter::kAntialias, 896, 224, 1.f, 3, Dtype::kU8, Dtype::kF32,
     Layout::kNHWC},
    {"crop 512->224 f32", Filter::kBilinear, 512, 224, .08f, 3, Dtype::kU8, Dtype::kF32,
     Layout::kNHWC},
    {"crop 256->224 f32 nearest", Filter::kNearest, 256, 224, .08f, 3, Dtype::kU8, Dtype::kF32,
     Layout::kNHWC},
    {"normalize 224 f32", Filter::kNone, 224, 224, 1.f, 3, Dtype::kU8, Dtype::kF32, Layout::kNHWC},
    {"normalize 224 bf16", Filter::kNone, 224, 224, 1.f, 3, Dtype::kU8, Dtype::kBF16,
     Layout::kNHWC},
    {"normalize 224 f32 NCHW", Filter::kNone, 224, 224, 1.f, 3, Dtype::kU8, Dtype::kF32,
     Layout::kNCHW},
    {"crop 256->224 f32 from f32", Filter::kBilinear, 256, 224, .08f, 3, Dtype::kF32, Dtype::kF32,
     Layout::kNHWC},
};

double rate(const std::vector<Arm>& arms, int threads, int which) {
  for (size_t i = 0; i < arms.size(); ++i)
    if (arms[i].level == "-" && arms[i].threads == threads) {
      const Arm& arm = arms[i + static_cast<size_t>(which)];
      return (which == 0 ? arm.written : arm.read) / arm.quantile(.5);
    }
  return 0;
}

void report(const std::vector<Arm>& arms) {
  std::printf(
      "| case | level | threads | us an image | quartiles | ns a value | GB/s | share of the "
      "ceiling "
      "|\n|---|---|--:|--:|--:|--:|--:|--:|\n");
  for (const Arm& arm : arms) {
    const double median = arm.quantile(.5), scale = 1e6 / arm.items;
    const double ideal =
        arm.written / rate(arms, arm.threads, 0) + arm.read / rate(arms, arm.threads, 1);
    std::printf("| %s | %s | %d | %.2f | %.2f to %.2f | %.3f | %.2f | %.0f%% |\n", arm.name.c_str(),
                arm.level.c_str(), arm.threads, median * scale, arm.quantile(.25) * scale,
                arm.quantile(.75) * scale, median * 1e9 / arm.elements,
                (arm.read + arm.written) / median * 1e-9, 100 * ideal / median);
  }
}

}  // namespace
}  // namespace jaxkern::benchmarks

int main(int argc, char** argv) {
  using namespace jaxkern;
  using namespace jaxkern::benchmarks;
  bool cpu = false;
  const char *filter = "", *only_level = nullptr;
  int repetitions = 15, most_threads = 2;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string option = argv[i];
    if (option == "--filter")
      filter = argv[i + 1];
    else if (option == "--level")
      only_level = argv[i + 1];
    else if (option == "--repetitions")
      repetitions = std::max(1, std::atoi(argv[i + 1]));
    else if (option == "--clock")
      cpu = std::string(argv[i + 1]) == "cpu";
    else if (option == "--threads")
      most_threads = std::max(1, std::atoi(argv[i + 1]));
    else {
      std::printf("unknown option %s\n", argv[i]);
      return 2;
    }
  }
  std::vector<Arm> arms;
  for (int threads = 1; threads <= most_threads; ++threads) {
    if (threads > 1 && threads < most_threads) continue;
    for (Arm& arm : ceiling_arms(threads)) arms.push_back(std::move(arm));
  }
  std::vector<const char*> levels;
  for (const char* const* level = available_simd_levels(); *level; ++level)
    if (!only_level || std::string(only_level) == *level) levels.push_back(*level);
  for (const Kind& kind : kKinds) {
    if (!std::strstr(kind.name, filter)) continue;
    const std::shared_ptr<Work> work = make_work(kind);
    for (const char* level : levels) arms.push_back(image_arm(kind, work, level, 1));
    if (most_threads > 1 && !levels.empty())
      arms.push_back(image_arm(kind, work, levels.back(), most_threads));
  }
  for (const auto& [dtype, name] :
       {std::pair(Dtype::kF32, "mix 224 f32"), std::pair(Dtype::kBF16, "mix 224 bf16"),
        std::pair(Dtype::kU8, "mix 224 u8")}) {
    if (!std::strstr(name, filter)) continue;
    for (const char* level : levels) arms.push_back(mix_arm(dtype, name, level, 1));
  }
  measure(arms, repetitions, cpu);
  report(arms);
  return 0;
}
