// Runs the bodies of the CUDA kernels over their whole grids on the CPU, thread by thread, and
// compares them with the CPU kernels, those of mixing also with their formula. Catches a wrong
// index, an unwritten element and, with sanitizers, any access outside the operands. Usage:
// check_cuda_bodies [iterations] [first seed]
#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "image/cuda_segments.h"
#include "image/mix.h"
#include "random_chain.h"
#include "reference_chain.h"

namespace jaxkern::image::testing {
namespace {

// ---------------------------------------------------------------- the grid

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

template <int C, Dtype source, Filter filter>
void run_grid(const ChainCall& call) {
  using Body = ChainBody<C, source, filter>;
  const int32_t threads = call.tiling.threads;
  const size_t floats = static_cast<size_t>(stage_floats(call.tiling, C));
  // As on the device, the block's memory is uninitialized: NaN and impossible sizes.
  const size_t stage_bytes = (floats * sizeof(float) + 15) / 16 * 16;
  std::unique_ptr<ChainTile, Free> shared(
      static_cast<ChainTile*>(std::aligned_alloc(alignof(ChainTile), sizeof(ChainTile))));
  std::unique_ptr<float, Free> stage(static_cast<float*>(std::aligned_alloc(16, stage_bytes)));
  std::vector<typename Body::Thread> state(static_cast<size_t>(threads));
  for (int64_t flat = 0; flat < tiles_of(call); ++flat) {
    std::memset(static_cast<void*>(shared.get()), 0xff, sizeof(ChainTile));
    std::memset(stage.get(), 0xff, stage_bytes);
    for (int32_t t = 0; t < threads; ++t)
      Body::prepare(call, flat, t, threads, *shared, state[static_cast<size_t>(t)]);
    for (int32_t pass = 0; pass * kPassRows < shared->tile.rows; ++pass) {
      for (int32_t t = threads - 1; t >= 0; --t)
        Body::compute(call, *shared, state[static_cast<size_t>(t)], pass, t, stage.get());
      for (int32_t t = 0; t < threads; ++t)
        Body::store(call, *shared, pass, t, threads, stage.get());
    }
  }
}

template <int C, Dtype source>
void run_filter(const ChainCall& call) {
  switch (call.plan.segment[call.segment].filter) {
    case Filter::kNone:
    case Filter::kNearest:
      return run_grid<C, source, Filter::kNearest>(call);
    case Filter::kBilinear:
      return run_grid<C, source, Filter::kBilinear>(call);
    case Filter::kAntialias:
      return run_grid<C, source, Filter::kAntialias>(call);
    case Filter::kBicubic:
    case Filter::kBicubicAntialias:
    case Filter::kBicubicLevels:
    case Filter::kBicubicAntialiasLevels:
      return run_grid<C, source, Filter::kBicubic>(call);
  }
}

template <Dtype source>
void run_channels(const ChainCall& call) {
  if (call.plan.channels == 1) return run_filter<1, source>(call);
  if (call.plan.channels == 3) return run_filter<3, source>(call);
  run_filter<4, source>(call);
}

int launch(const ChainCall& call, Dtype source) {
  switch (source) {
    case Dtype::kU8:
      run_channels<Dtype::kU8>(call);
      break;
    case Dtype::kF16:
      run_channels<Dtype::kF16>(call);
      break;
    case Dtype::kBF16:
      run_channels<Dtype::kBF16>(call);
      break;
    case Dtype::kF32:
      run_channels<Dtype::kF32>(call);
      break;
  }
  return 0;
}

// ---------------------------------------------------------------- batches

// A batch of shape [size[0], size[1]].
struct Shape {
  int64_t size[2];
  int64_t samples() const { return size[0] * size[1]; }
};

// An operand of `core` elements per sample, whose batch axes are full or 1.
struct BatchOperand {
  BatchMap map;
  int64_t items = 1;
};

BatchOperand batch_operand(Random& random, const Shape& shape, int64_t core, bool may_broadcast) {
  BatchOperand operand;
  operand.map.rank = 2;
  int64_t stride = core;
  for (int d = 1; d >= 0; --d) {
    const bool full = !may_broadcast || shape.size[d] == 1 || random.chance(70);
    operand.map.size[d] = shape.size[d];
    operand.map.stride[d] = full && shape.size[d] > 1 ? stride : 0;
    if (full) {
      stride *= shape.size[d];
      operand.items *= shape.size[d];
    }
  }
  return operand;
}

// Heap blocks of the exact size, so that a sanitizer detects every access outside them.
template <typename T>
struct Block {
  std::unique_ptr<T[]> data;
  explicit Block(const std::vector<T>& values) : data(new T[values.size()]) {
    if (!values.empty()) std::memcpy(data.get(), values.data(), values.size() * sizeof(T));
  }
};

void corrupt(Random& random, Geometry& g) {
  static const int32_t edges[] = {INT32_MIN, -1, 0, 2, 1 << 24, (1 << 24) + 1, INT32_MAX};
  int32_t fields[kGeometryFields];
  std::memcpy(fields, &g, sizeof g);
  fields[random.chance(70) ? random.integer(0, 5) : random.integer(0, kGeometryFields - 1)] =
      edges[random.integer(0, 6)];
  std::memcpy(&g, fields, sizeof g);
}

double tolerance_of(const Plan& plan) {
  double tolerance = 0;
  for (int32_t s = 0; s < plan.segments; ++s) {
    const double gain = plan.segment[s].filter >= Filter::kBicubic ? 1.6 : 1.;
    tolerance = tolerance * gain + 2e-4 * 255 * gain;
    if (plan.segment[s].rounding != Rounding::kKeep) tolerance += 1;
  }
  return tolerance;
}

bool same(const Plan& plan, double expected, double got) {
  if (std::isnan(expected) || std::isnan(got)) return std::isnan(expected) && std::isnan(got);
  const double cast = plan.output_dtype == Dtype::kF16    ? 0x1p-10
                      : plan.output_dtype == Dtype::kBF16 ? 0x1p-7
                                                          : 0x1p-22;
  return std::abs(expected - got) <= tolerance_of(plan) + cast * std::abs(expected);
}

struct Statistics {
  int64_t images = 0, faulty = 0;
};

// The tiles of images far into a batch: a flat index exceeds 32 bits.
bool check_large_batch() {
  const int32_t height = 224, width = 300;
  const Tiling tiling = tiling_of(height, width);
  for (const int64_t image : {int64_t{65535}, int64_t{65536}, int64_t{1} << 31, int64_t{1} << 40}) {
    int64_t pixels = 0;
    for (int32_t k = 0; k < tiling.each; ++k) {
      const Tile tile = tile_at(tiling, height, width, image * tiling.each + k);
      pixels += int64_t{tile.rows} * tile.columns;
      if (tile.image == image && tile.row + tile.rows <= height &&
          tile.column + tile.columns <= width)
        continue;
      std::printf("tile %d of image %" PRId64 " is one of image %" PRId64 "\n", k, image,
                  tile.image);
      return false;
    }
    if (pixels == int64_t{height} * width) continue;
    std::printf("the tiles of image %" PRId64 " have %" PRId64 " pixels\n", image, pixels);
    return false;
  }
  return true;
}

bool check_chain(uint64_t seed, Statistics& statistics) {
  Random random(seed * 0x9e3779b97f4a7c15u + 1);
  Limits limits;
  limits.size = seed % 40 == 0 ? 600 : seed % 3 == 0 ? 20 : 70;  // 600: more than a tile's columns
  Case c = random_case(seed, limits);
  const Plan& plan = c.plan;
  const int64_t channels = plan.channels, segments = plan.segments;
  const int64_t erasures = static_cast<int64_t>(c.erase_box.size());
  const Shape shape = {
      {random.integer(1, 2), random.integer(0, 9) == 0 ? 0 : random.integer(1, 3)}};
  const bool ragged = plan.source_dtype == Dtype::kU8 && random.chance(40);

  ChainCall call = {};
  call.plan = plan;
  call.ragged = ragged;
  call.wide_offset = random.chance(50);
  call.height = c.height;
  call.width = c.width;

  // Sources. Ragged images are at least as large as the case's image, in any order and with gaps.
  std::vector<unsigned char> pixels;
  std::vector<int64_t> offset;
  std::vector<int32_t> offset32, heights, widths;
  BatchOperand sizes = {};
  const size_t lead = ragged ? 0 : dtype_size(plan.source_dtype) * (seed % 5);
  if (ragged) {
    sizes = batch_operand(random, shape, 1, true);
    for (int64_t i = 0; i < sizes.items; ++i) {
      Case other = c;
      other.height += random.integer(0, 9);
      other.width += random.integer(0, 9);
      fill_pixels(random, other);
      pixels.resize(pixels.size() + static_cast<size_t>(random.integer(0, 5)));
      offset.push_back(static_cast<int64_t>(pixels.size()));
      heights.push_back(other.height);
      widths.push_back(other.width);
      pixels.insert(pixels.end(), other.pixels.begin(), other.pixels.end());
    }
    call.buffer_size = static_cast<int64_t>(pixels.size());
    if (sizes.items > 0 && random.chance(15)) {
      const size_t bad = static_cast<size_t>(random.integer(0, sizes.items - 1));
      const int32_t kind = random.integer(0, 4);
      if (kind == 0) offset[bad] = -1;
      if (kind == 1) offset[bad] = call.buffer_size - (call.buffer_size > 9 ? 2 : 0);
      if (kind == 2) heights[bad] = INT32_MAX;
      if (kind == 3) widths[bad] = 0;
      if (kind == 4) heights[bad] = -5;
    }
    for (const int64_t o : offset) offset32.push_back(static_cast<int32_t>(o));
  }
  const int64_t image = static_cast<int64_t>(c.height) * c.width * channels;
  BatchOperand source = batch_operand(random, shape, image, true);
  if (ragged) {
    source.map = BatchMap{};
    source.map.rank = 2;
    for (int d = 0; d < 2; ++d) source.map.size[d] = shape.size[d];
  } else {
    pixels.resize(lead);
    for (int64_t i = 0; i < source.items; ++i) {
      fill_pixels(random, c);
      pixels.insert(pixels.end(), c.pixels.begin(), c.pixels.end());
    }
  }

  // Parameters: every stored item is drawn again.
  const BatchOperand geometry_at = batch_operand(random, shape, segments * kGeometryFields, true);
  std::vector<Geometry> geometry;
  for (int64_t i = 0; i < geometry_at.items; ++i) {
    int32_t height = c.height, width = c.width;
    for (int32_t s = 0; s < segments; ++s) {
      const Segment& segment = plan.segment[s];
      Geometry g = {};
      random_axis(random, segment.filter, height, segment.height, g.top, g.box_height,
                  g.resampled_height, g.row_offset, g.row_step, g.valid_top, g.valid_bottom);
      random_axis(random, segment.filter, width, segment.width, g.left, g.box_width,
                  g.resampled_width, g.column_offset, g.column_step, g.valid_left, g.valid_right);
      if (random.chance(4)) corrupt(random, g);
      geometry.push_back(g);
      height = segment.height;
      width = segment.width;
    }
  }
  const BatchOperand affine_at = batch_operand(random, shape, 2 * segments * channels, true);
  const BatchOperand fill_at = batch_operand(random, shape, segments * channels, true);
  const BatchOperand box_at = batch_operand(random, shape, 4 * erasures, true);
  const BatchOperand value_at = batch_operand(random, shape, erasures * channels, true);
  std::vector<float> affine, fill, value;
  std::vector<EraseBox> box;
  for (int64_t i = 0; i < affine_at.items * 2 * segments * channels; ++i)
    affine.push_back(i / channels % 2 == 0 ? random.real(-1.f, 1.f) : random.real(0.f, 100.f));
  for (int64_t i = 0; i < fill_at.items * segments * channels; ++i)
    fill.push_back(random.real(0.f, 255.f));
  for (int64_t i = 0; i < box_at.items * erasures; ++i)
    box.push_back({random.integer(-5, limits.size), random.integer(-5, limits.size),
                   random.integer(-2, limits.size), random.integer(-2, limits.size)});
  for (int64_t i = 0; i < value_at.items * erasures * channels; ++i)
    value.push_back(random.real(0.f, 255.f));

  const Block<unsigned char> pixel_block(pixels);
  const Block<int64_t> offset_block(offset);
  const Block<int32_t> offset32_block(offset32), height_block(heights), width_block(widths);
  const Block<Geometry> geometry_block(geometry);
  const Block<float> affine_block(affine), fill_block(fill), value_block(value);
  const Block<EraseBox> box_block(box);
  auto& operands = call.operands;
  operands.set(kPixels, pixel_block.data.get() + lead, source.map);
  operands.set(kGeometry, geometry_block.data.get(), geometry_at.map);
  operands.set(kAffine, affine_block.data.get(), affine_at.map);
  operands.set(kFill, fill_block.data.get(), fill_at.map);
  operands.set(kEraseBox, box_block.data.get(), box_at.map);
  operands.set(kEraseValue, value_block.data.get(), value_at.map);
  if (ragged) {
    const void* const wide = offset_block.data.get();
    operands.set(kOffset, call.wide_offset ? wide : offset32_block.data.get(), sizes.map);
    operands.set(kHeight, height_block.data.get(), sizes.map);
    operands.set(kWidth, width_block.data.get(), sizes.map);
  }

  const size_t bytes = output_bytes(plan), item = dtype_size(plan.output_dtype);
  const size_t output_lead = item * (seed % 7),
               total = bytes * static_cast<size_t>(shape.samples());
  std::unique_ptr<unsigned char[]> output(new unsigned char[output_lead + total]);
  std::memset(output.get(), 0xa5, output_lead + total);
  Scratch scratch = scratch_of(plan, shape.samples());
  if (scratch.chunk > 1 && random.chance(50)) {
    const size_t each = scratch.floats / static_cast<size_t>(scratch.chunk);
    scratch.chunk = random.integer(1, scratch.chunk);
    scratch.floats = each * static_cast<size_t>(scratch.chunk);
  }
  const std::vector<float> garbage(scratch.floats, NAN);
  const Block<float> even(garbage), odd(garbage);
  float* const buffer[2] = {scratch.buffers > 0 ? even.data.get() : nullptr,
                            scratch.buffers > 1 ? odd.data.get() : nullptr};
  run_segments(call, shape.samples(), scratch, buffer, output.get() + output_lead, 0, launch);

  for (size_t i = 0; i < output_lead; ++i)
    if (output[i] != 0xa5) {
      std::printf("seed %" PRIu64 ": wrote before the output\n", seed);
      return false;
    }
  const size_t count = bytes / item;
  std::unique_ptr<unsigned char[]> expected(new unsigned char[bytes]);
  for (int64_t i = 0; i < shape.samples(); ++i) {
    Sample sample = {};
    sample.height = c.height;
    sample.width = c.width;
    bool sound = true;
    if (ragged) {
      const size_t at = static_cast<size_t>(sizes.map.offset(i));
      sample.height = heights[at];
      sample.width = widths[at];
      sound = is_in_buffer(offset[at], heights[at], widths[at], plan.channels, call.buffer_size);
      sample.pixels = pixel_block.data.get() + (sound ? offset[at] : 0);
    } else {
      sample.pixels = pixel_block.data.get() + lead +
                      source.map.offset(i) * static_cast<int64_t>(dtype_size(plan.source_dtype));
    }
    sample.geometry = geometry_block.data.get() + geometry_at.map.offset(i) / kGeometryFields;
    sample.affine = affine_block.data.get() + affine_at.map.offset(i);
    sample.fill = fill_block.data.get() + fill_at.map.offset(i);
    sample.erase_box = box_block.data.get() + box_at.map.offset(i) / 4;
    sample.erase_value = value_block.data.get() + value_at.map.offset(i);
    sound = sound && check_sample(plan, sample, i).argument == nullptr;
    ++statistics.images;
    statistics.faulty += !sound;
    if (sound) run_sample(plan, sample, expected.get(), thread_scratch<kScratchBytes>());
    const unsigned char* const got = output.get() + output_lead + static_cast<size_t>(i) * bytes;
    for (size_t k = 0; k < count; ++k) {
      const double faulty = plan.output_dtype == Dtype::kU8 ? 0. : NAN;
      const double want = sound ? element(plan.output_dtype, expected.get(), k) : faulty;
      const bool nan = !sound && plan.output_dtype != Dtype::kU8;
      double have = element(plan.output_dtype, got, k);
      if (nan && item == 2) {  // element() supports finite halves only
        uint16_t bits;
        std::memcpy(&bits, got + 2 * k, 2);
        const uint16_t infinity = plan.output_dtype == Dtype::kF16 ? 0x7c00 : 0x7f80;
        have = (bits & 0x7fff) > infinity ? NAN : 0.;
      }
      if (nan ? std::isnan(have) : same(plan, want, have)) continue;
      std::printf("seed %" PRIu64 ": image %" PRId64
                  " (%s), element %zu of %zu is %.6f, expected %.6f; %d segments, %d channels, "
                  "source dtype %d, output %dx%d dtype %d layout %d, filter %d\n",
                  seed, i, sound ? "sound" : "faulty", k, count, have, want, plan.segments,
                  plan.channels, static_cast<int>(plan.source_dtype),
                  plan.segment[segments - 1].height, plan.segment[segments - 1].width,
                  static_cast<int>(plan.output_dtype), static_cast<int>(plan.layout),
                  static_cast<int>(plan.segment[segments - 1].filter));
      return false;
    }
  }
  return true;
}

// ---------------------------------------------------------------- mixing

template <typename Body>
void run_shares(const MixCall& call) {
  for (int64_t flat = Body::shares(call); flat-- > 0;)
    for (int32_t thread = kMixThreads; thread-- > 0;) Body::run(call, flat, thread);
}

template <Dtype dtype>
void run_mix_grid(const MixCall& call) {
  constexpr int32_t kVector =
      kStoreBytes / static_cast<int32_t>(sizeof(typename Stored<dtype>::Type));
  if (mix_in_vectors(call)) {
    run_shares<MixBody<dtype, kVector>>(call);
  } else {
    run_shares<MixBody<dtype, 1>>(call);
  }
}

struct Mixed {
  double value;
  bool exact;
};

// The outputs of the CPU loop at every level, and of the body.
bool check_mix(uint64_t seed, int64_t& in_vectors) {
  Random random(seed * 0x2545f4914f6cdd1du + 7);
  MixCall call = {};
  call.dtype = static_cast<Dtype>(random.integer(0, 3));
  call.layout = static_cast<Layout>(random.integer(0, 1));
  call.channels = random.chance(60) ? 3 : random.chance(50) ? 1 : 4;
  call.height = random.chance(10) ? random.integer(150, 200) : random.integer(1, 24);
  call.width = random.chance(50) ? 16 * random.integer(1, 3) : random.integer(1, 40);
  const Shape shape = {{random.integer(1, 2), random.integer(1, 3)}};
  call.samples = shape.samples();
  const int64_t core = call.elements();
  const size_t item = dtype_size(call.dtype);
  const BatchOperand x_at = batch_operand(random, shape, core, true);
  const BatchOperand partner_at = batch_operand(random, shape, core, true);
  const BatchOperand lambda_at = batch_operand(random, shape, 1, true);
  const BatchOperand box_at = batch_operand(random, shape, 4, true);
  const bool in_place = x_at.items == shape.samples() && random.chance(40);
  const auto draw = [&](int64_t items) {
    Case c;
    c.plan.source_dtype = call.dtype;
    c.plan.channels = call.channels;
    c.height = call.height * static_cast<int32_t>(items);
    c.width = call.width;
    fill_pixels(random, c);
    return c.pixels;
  };
  const std::vector<unsigned char> x_values = draw(x_at.items), p_values = draw(partner_at.items);
  // new[] of char is aligned to 16 bytes. Every third case starts at another address.
  const size_t lead = seed % 3 == 0 ? item : 0;
  std::unique_ptr<unsigned char[]> x(new unsigned char[lead + x_values.size()]);
  std::unique_ptr<unsigned char[]> partner(new unsigned char[p_values.size()]);
  std::memcpy(x.get() + lead, x_values.data(), x_values.size());
  std::memcpy(partner.get(), p_values.data(), p_values.size());
  std::vector<float> lambda;
  std::vector<EraseBox> box;
  for (int64_t i = 0; i < lambda_at.items; ++i)
    lambda.push_back(random.chance(30) ? 1.f : random.real(0.f, 1.f));
  for (int64_t i = 0; i < box_at.items; ++i)
    box.push_back({random.integer(-3, call.height), random.integer(-3, call.width),
                   random.integer(-2, call.height + 3), random.integer(-2, call.width + 3)});
  const Block<float> lambda_block(lambda);
  const Block<EraseBox> box_block(box);
  const size_t total = static_cast<size_t>(core * shape.samples()) * item;
  std::unique_ptr<unsigned char[]> separate(new unsigned char[total]);
  std::memset(separate.get(), 0xa5, total);
  call.operands.set(kX, x.get() + lead, x_at.map);
  call.operands.set(kPartner, partner.get(), partner_at.map);
  call.operands.set(kLambda, lambda_block.data.get(), lambda_at.map);
  call.operands.set(kBox, box_block.data.get(), box_at.map);
  call.output = in_place ? x.get() + lead : separate.get();
  in_vectors += mix_in_vectors(call);
  with_dtype(call.dtype, [&](auto dtype) { run_mix_grid<dtype>(call); });

  // The formula for element k of image i, in double.
  const auto formula = [&](int64_t i, int64_t k) -> Mixed {
    const int64_t at = k / call.together(), row = at / call.width % call.height;
    const EraseBox sample_box = box[static_cast<size_t>(box_at.map.offset(i) / 4)];
    const float part = lambda[static_cast<size_t>(lambda_at.map.offset(i))];
    const double a =
        element(call.dtype, x_values.data(), static_cast<size_t>(x_at.map.offset(i) + k));
    const double b =
        element(call.dtype, p_values.data(), static_cast<size_t>(partner_at.map.offset(i) + k));
    const bool cut = row >= sample_box.top && row < sample_box.top + sample_box.height &&
                     at % call.width >= sample_box.left &&
                     at % call.width < sample_box.left + sample_box.width;
    const double value = cut ? b : static_cast<double>(part) * a + (1. - part) * b;
    return {value, cut || part == 1.f};
  };
  const double bounds[] = {.501, .13, 1.01, 1e-3};  // by dtype, of values up to 255
  std::vector<unsigned char> on_cpu(total);
  for (const char* const* level = available_simd_levels(); *level; ++level) {
    set_simd_level(*level);
    if (in_place) std::memcpy(on_cpu.data(), x_values.data(), total);
    MixCall same = call;
    same.operands.data[kX] = in_place ? on_cpu.data() : x_values.data();
    same.output = on_cpu.data();
    mix_samples(same, 0, call.samples);
    for (int64_t flat = 0; flat < core * call.samples; ++flat) {
      const size_t k = static_cast<size_t>(flat);
      const double cpu = element(call.dtype, on_cpu.data(), k);
      const double body = element(call.dtype, static_cast<const unsigned char*>(call.output), k);
      const Mixed want = formula(flat / core, flat % core);
      const double bound = want.exact ? 0. : bounds[static_cast<int>(call.dtype)];
      // The CPU kernels may fuse multiply and add, which changes the result by one unit in the last
      // place, or by one level.
      const double ulp = call.dtype == Dtype::kU8     ? 1.
                         : call.dtype == Dtype::kF16  ? std::abs(cpu) * 0x1p-10 + 0x1p-24
                         : call.dtype == Dtype::kBF16 ? std::abs(cpu) * 0x1p-7
                                                      : 255 * 0x1p-22;
      if (std::abs(cpu - want.value) <= bound && std::abs(body - cpu) <= ulp) continue;
      std::printf("mix seed %" PRIu64 " level %s: element %zu is %.6f and %.6f, expected %.6f\n",
                  seed, *level, k, cpu, body, want.value);
      return false;
    }
  }
  set_simd_level(nullptr);
  return true;
}

}  // namespace
}  // namespace jaxkern::image::testing

int main(int argc, char** argv) {
  using namespace jaxkern::image::testing;
  const uint64_t iterations = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 600;
  const uint64_t first = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  Statistics statistics;
  int64_t in_vectors = 0;
  int failures = !check_large_batch();
  for (uint64_t seed = first; seed < first + iterations && failures < 5; ++seed) {
    failures += !check_chain(seed, statistics);
    failures += !check_mix(seed, in_vectors);
  }
  std::printf("check_cuda_bodies: %" PRIu64 " batches from seed %" PRIu64 ", %" PRId64
              " images of which %" PRId64 " faulty, %" PRId64 " mixed in vectors: %s\n",
              iterations, first, statistics.images, statistics.faulty, in_vectors,
              failures ? "FAILED" : "passed");
  return failures ? 1 : 0;
}
