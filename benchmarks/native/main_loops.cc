// Runs one main loop a number of times, for counting its instructions under an emulator or
// profiler. Usage: main_loops CASE REPETITIONS, or without arguments to list the cases with the
// values that one repetition writes or reads. JAXKERN_SIMD chooses the level.
#include <cinttypes>
#include <cstdio>
#include <functional>
#include <random>

#include "core/parallel.h"
#include "core/simd_dispatch.h"
#include "correlators/event_levels.h"
#include "correlators/frame_sums.h"
#include "correlators/multitau.h"
#include "image/check.h"
#include "image/levels.h"
#include "image/mix.h"
#include "image/program.h"
#include "measure.h"
#include "tokens/packer.h"
#include "tokens/rows.h"
#include "xpcs/cpu.h"

namespace jaxkern::benchmarks {
namespace {

using image::Code;
using image::Filter;
using image::Layout;
using image::Rounding;
using Pixels = image::Dtype;
using correlators::frame_sums_tile;
using image::mix_samples;
using image::program_samples;
using image::run_sample;

struct Case {
  int64_t values;
  std::function<void()> run;
};

// Memory with random bytes, or floats in [0, 1).
std::shared_ptr<char> random_memory(size_t bytes, bool floats = false) {
  std::shared_ptr<char> memory(block(bytes).release(), std::free);
  // A linear congruential generator, because code under emulation is slow.
  uint64_t state = 3;
  const auto random_byte = [&] {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint8_t>(state >> 56);
  };
  if (floats) {
    float* const value = reinterpret_cast<float*>(memory.get());
    for (size_t i = 0; i < bytes / 4; ++i) value[i] = static_cast<float>(random_byte()) / 256;
  } else {
    for (size_t i = 0; i < bytes; ++i) memory.get()[i] = static_cast<char>(random_byte());
  }
  return memory;
}

size_t item(Pixels dtype) { return dtype == Pixels::kU8 ? 1 : dtype == Pixels::kF32 ? 4 : 2; }

Case chain(Filter filter, int32_t side, Pixels from, Pixels to, Layout layout = Layout::kNHWC) {
  constexpr int32_t kSide = 224;
  image::Plan plan = {};
  plan.segments = 1;
  plan.segment[0] = {filter, kSide, kSide, 0,
                     to == Pixels::kU8 ? Rounding::kNearest : Rounding::kKeep};
  plan.channels = 3;
  plan.source_dtype = from;
  plan.output_dtype = to;
  plan.layout = layout;
  const auto in =
      random_memory(static_cast<size_t>(side) * side * 3 * item(from), from == Pixels::kF32);
  const auto out = random_memory(static_cast<size_t>(kSide) * kSide * 3 * item(to));
  return {kSide * kSide * 3, [=] {
            const image::Geometry g = {0, 0,     side,  side, kSide, kSide, 0,
                                       0, kSide, kSide, 0,    1,     0,     1};
            const float affine[] = {.9f, .8f, .7f, 1, 2, 3}, fill[3] = {};
            const image::Sample sample = {in.get(), side, side, &g, affine, fill, nullptr, nullptr};
            run_sample(plan, sample, out.get(), thread_scratch<image::kScratchBytes>());
          }};
}

// A window of 32 x 32 pixels of an image of 32 x 32, moved by `offset` and mirrored if step is -1.
Case small_window(int32_t offset, int32_t step) {
  constexpr int32_t kSide = 32;
  image::Plan plan = {};
  plan.segments = 1;
  plan.segment[0] = {Filter::kNone, kSide, kSide, 0, Rounding::kKeep};
  plan.channels = 3;
  plan.output_dtype = Pixels::kF32;
  const auto in = random_memory(kSide * kSide * 3), out = random_memory(kSide * kSide * 3 * 4);
  return {kSide * kSide * 3, [=] {
            const int32_t column = step > 0 ? offset : kSide - 1 - offset;
            const image::Geometry g = {0, 0,     kSide, kSide,  kSide, kSide,  0,
                                       0, kSide, kSide, offset, 1,     column, step};
            const float affine[] = {.9f, .8f, .7f, 1, 2, 3}, fill[3] = {};
            const image::Sample sample = {in.get(), kSide, kSide,   &g,
                                          affine,   fill,  nullptr, nullptr};
            run_sample(plan, sample, out.get(), thread_scratch<image::kScratchBytes>());
          }};
}

Case mix(Pixels dtype) {
  constexpr int32_t kSide = 224;
  const size_t bytes = kSide * kSide * 3 * item(dtype);
  const auto in = random_memory(bytes, true), out = random_memory(bytes);
  return {kSide * kSide * 3, [=] {
            const float lambda = .3f;
            const image::EraseBox box = {0, 0, 0, 0};
            image::MixCall call = {dtype, Layout::kNHWC, kSide, kSide, 3, {}, out.get(), 1};
            call.operands.set(image::kX, in.get(), {});
            call.operands.set(image::kPartner, in.get(), {});
            call.operands.set(image::kLambda, &lambda, {});
            call.operands.set(image::kBox, &box, {});
            mix_samples(call, 0, 1);
          }};
}

// The values of each operation of an image program.
using StepValues = std::vector<std::vector<float>>;

Case program(Pixels dtype, std::vector<Code> codes, StepValues values, int32_t interpolation = 1) {
  constexpr int32_t kSide = 128;
  const size_t bytes = kSide * kSide * 3 * item(dtype);
  const auto in = random_memory(bytes, dtype == Pixels::kF32), out = random_memory(bytes);
  const size_t steps = codes.size();
  std::vector<int32_t> ops;
  std::vector<float> step_values;
  for (size_t i = 0; i < steps; ++i) {
    ops.push_back(static_cast<int32_t>(codes[i]));
    values[i].resize(image::kProgramValues);
    step_values.insert(step_values.end(), values[i].begin(), values[i].end());
  }
  return {kSide * kSide * 3, [=] {
            image::ProgramCall call = {};
            call.dtype = dtype;
            call.height = call.width = kSide;
            call.channels = 3;
            call.steps = static_cast<int32_t>(steps);
            for (size_t i = 0; i < steps; ++i)
              call.step[i] = {1 << ops[i], interpolation, 9, 9, {}};
            call.operands.set(image::kProgramImages, in.get(), {});
            call.operands.set(image::kProgramOps, ops.data(), {});
            call.operands.set(image::kProgramStepValues, step_values.data(), {});
            call.output = out.get();
            call.samples = 1;
            program_samples(call, 0, 1, thread_scratch<(size_t{4} << 20)>());
          }};
}

Case multitau(correlators::Dtype dtype, uint8_t most) {
  // After the first blocks, whose work on the beginnings of levels is small in a long run.
  constexpr int64_t kFrames = correlators::kBlock, kPixels = 512, kSeen = 16 * kFrames;
  const auto in = random_memory(kFrames * kPixels * 8);
  for (size_t i = 0; i < kFrames * kPixels * 8; ++i) in.get()[i] &= static_cast<char>(most);
  if (dtype != correlators::Dtype::kU8) {
    for (int64_t i = 0; i < kFrames * kPixels; ++i) {
      const uint16_t count = static_cast<uint16_t>(i % 7);
      const float real = static_cast<float>(count);
      if (dtype == correlators::Dtype::kU16) std::memcpy(in.get() + 2 * i, &count, 2);
      if (dtype == correlators::Dtype::kF32) std::memcpy(in.get() + 4 * i, &real, 4);
    }
  }
  const auto delays = correlators::Delays::of(kSeen + kFrames, 4);
  const bool real = correlators::is_real(dtype);
  auto state = std::make_shared<correlators::MultiTauState>();
  auto memory = std::make_shared<std::vector<std::shared_ptr<char>>>();
  state->pitch = kPixels;
  state->real = real;
  correlators::for_arrays(delays, real, false, [&](auto array, int64_t rows, int64_t bytes) {
    memory->emplace_back(block(static_cast<size_t>(rows * bytes * kPixels)).release(), std::free);
    std::memset(memory->back().get(), 0, static_cast<size_t>(rows * bytes * kPixels));
    (*state).*array = memory->back().get();
  });
  return {kFrames * kPixels, [=] {
            (void)memory;
            correlators::FrameRows rows;
            rows.data = in.get();
            rows.stride = kPixels * correlators::dtype_bytes(dtype);
            rows.dtype = dtype;
            correlators::update_strips(rows, kPixels, kFrames, kSeen, delays, {}, *state, 0,
                                       kPixels / correlators::kStrip);
          }};
}

Case products(bool narrow) {
  constexpr int64_t kSums = 1024, kDelays = 16;
  const auto in = random_memory(4 * (kSums + 2 * 64 + 4 * kDelays));
  for (int64_t i = 0; i < kSums + 128; ++i) {
    if (narrow) reinterpret_cast<int16_t*>(in.get())[i] = static_cast<int16_t>(i % 5);
    if (!narrow) reinterpret_cast<uint32_t*>(in.get())[i] = static_cast<uint32_t>(i % 5);
  }
  return {kSums * kDelays, [=] {
            uint64_t out[kDelays + 1];
            if (narrow) {
              correlators::short_products(reinterpret_cast<int16_t*>(in.get()), kSums, 1, kDelays,
                                          out);
            } else {
              const uint32_t* const sums = reinterpret_cast<uint32_t*>(in.get()) + 64;
              correlators::long_products(sums, sums, kSums - 64, 1, kDelays, 1, out);
            }
          }};
}

Case frame_sums(correlators::Dtype dtype) {
  constexpr int64_t kFrames = 16, kPixels = correlators::kSumTile;
  const auto in = random_memory(kFrames * kPixels * 4, dtype == correlators::Dtype::kF32);
  const auto image = random_memory(kPixels * 8), squares = random_memory(kPixels * 8);
  const auto mask = random_memory(kPixels);
  for (int64_t i = 0; i < kPixels; ++i) mask.get()[i] = i % 3 != 0;
  std::memset(image.get(), 0, kPixels * 8);
  std::memset(squares.get(), 0, kPixels * 8);
  return {kFrames * kPixels, [=] {
            char totals[kFrames * 8];
            correlators::FrameSumsTile tile;
            tile.frames.data = in.get();
            tile.frames.stride = kPixels * correlators::dtype_bytes(dtype);
            tile.frames.dtype = dtype;
            tile.count = kFrames;
            tile.pixels = kPixels;
            tile.image = image.get();
            tile.squares = reinterpret_cast<double*>(squares.get());
            tile.masks = 1;
            tile.mask[0] = reinterpret_cast<uint8_t*>(mask.get());
            tile.totals[0] = totals;
            frame_sums_tile(tile, thread_scratch<correlators::kSumScratchBytes>());
          }};
}

// Two-time models of one angle of a laminar flow.
struct Angle {
  static constexpr int64_t kTimes = 256;
  std::vector<double> a, x, tables, out;
  std::vector<uint8_t> keep = std::vector<uint8_t>(kTimes, 1);
  std::vector<int64_t> kept;
  xpcs::StateLayout layout = {3, 4};
  Executor executor;
  std::unique_ptr<xpcs::PhaseTables> phases;
  std::shared_ptr<char> data = random_memory(kTimes * kTimes * 8);

  Angle() : out(kTimes * kTimes) {
    std::vector<double> tables_of;
    for (int64_t i = 0; i < kTimes; ++i) {
      a.push_back(1e-3 * static_cast<double>(i));
      x.push_back(0.02 * static_cast<double>(i));
    }
    for (int64_t i = 0; i <= kTimes; ++i) kept.push_back(i);
    for (int64_t i = 0; i < 7 * kTimes; ++i) tables_of.push_back(1e-3 * static_cast<double>(i));
    tables = xpcs::padded({tables_of.data(), false}, 7, kTimes);
    executor.workers = 1;
    phases = std::make_unique<xpcs::PhaseTables>(executor, kTimes, 4,
                                                 std::vector<xpcs::Reals>{{a.data(), false}},
                                                 std::vector<xpcs::Reals>{{x.data(), false}});
    for (int64_t i = 0; i < kTimes * kTimes; ++i) {
      reinterpret_cast<double*>(data.get())[i] = 1.1;
    }
  }
};

Case g2(xpcs::MatrixOp op, bool single) {
  const auto angle = std::make_shared<Angle>();
  return {Angle::kTimes * Angle::kTimes, [=] {
            xpcs::MatrixWork work;
            work.phases = (*angle->phases)[0];
            work.contrast = .3;
            work.offset = 1;
            work.single = single;
            work.out = angle->out.data();
            work.data = {angle->data.get(), false};
            work.sigma = .1;
            double sums[1][2] = {};
            xpcs::matrix(angle->executor, op, {work}, sums);
          }};
}

Case normal(xpcs::DataType type, xpcs::Symmetric symmetric) {
  const auto angle = std::make_shared<Angle>();
  if (type == xpcs::DataType::kF16) std::memset(angle->data.get(), 0x3c, 8 * 256 * 256);
  return {Angle::kTimes * Angle::kTimes, [=] {
            xpcs::NormalWork work;
            work.phases = (*angle->phases)[0];
            work.layout = angle->layout;
            work.tables = angle->tables.data();
            work.keep = angle->keep.data();
            work.kept = angle->kept.data();
            work.contrast = .3;
            work.offset = 1;
            work.rows = Angle::kTimes;
            work.data = angle->data.get();
            work.data_type = type;
            work.symmetric = symmetric;
            work.sigma = .1;
            std::vector<double> state(static_cast<size_t>(angle->layout.size()));
            xpcs::normal_equations(angle->executor, {work}, {state.data()});
          }};
}

// Two components with the 18 tangents of TwoComponent: 4 parameters of both weights, 3 of each
// decay, 4 of the phase of one.
struct TwoComponents {
  static constexpr int64_t kStride = Angle::kTimes + xpcs::kPadding;
  Angle angle;
  std::vector<double> values = std::vector<double>(3 * 2 * Angle::kTimes, -.3);
  std::unique_ptr<xpcs::ComponentModels> models;
  std::vector<xpcs::ComponentTangent> tangents;
  std::vector<double> table = std::vector<double>(kStride, .5);

  TwoComponents() {
    for (int64_t i = 0; i < 2 * Angle::kTimes; ++i) {
      values[2 * Angle::kTimes + i] = 1e-3 * static_cast<double>(i);
      values[4 * Angle::kTimes + i] = .02 * static_cast<double>(i);
    }
    std::vector<xpcs::Reals> tables[xpcs::kComponentTables];
    for (int64_t k = 0; k < 3; ++k) {
      tables[k].push_back({values.data() + k * 2 * Angle::kTimes, false});
    }
    models = std::make_unique<xpcs::ComponentModels>(angle.executor, Angle::kTimes, 2, tables);
    const auto add = [&](int32_t first, int32_t count, int32_t component, auto kind) {
      for (int32_t p = first; p < first + count; ++p) {
        tangents.push_back({p, component, kind, table.data()});
      }
    };
    add(0, 3, 0, xpcs::kDecayTable);
    add(3, 3, 1, xpcs::kDecayTable);
    add(6, 4, 1, xpcs::kPhaseTable);
    for (int32_t p = 10; p < 14; ++p) {
      add(p, 1, 0, xpcs::kWeightTable);
      add(p, 1, 1, xpcs::kWeightTable);
    }
  }

  template <typename Work>
  Work work() {
    Work work;
    work.phases.n = Angle::kTimes;
    work.model = (*models)[0];
    work.contrast = .3;
    work.offset = 1;
    work.sigma = .1;
    return work;
  }
};

Case component_g2() {
  const auto two = std::make_shared<TwoComponents>();
  return {Angle::kTimes * Angle::kTimes, [=] {
            auto work = two->work<xpcs::ComponentMatrixWork>();
            work.out = two->angle.out.data();
            xpcs::component_matrix(two->angle.executor, xpcs::MatrixOp::kG2, {work});
          }};
}

Case component_normal(xpcs::Symmetric symmetric) {
  const auto two = std::make_shared<TwoComponents>();
  return {Angle::kTimes * Angle::kTimes, [=] {
            auto work = two->work<xpcs::ComponentNormalWork>();
            work.layout = {0, 14};
            work.keep = two->angle.keep.data();
            work.kept = two->angle.kept.data();
            work.rows = Angle::kTimes;
            work.data = two->angle.data.get();
            work.symmetric = symmetric;
            work.tangents = two->tangents.data();
            work.tangent_count = static_cast<int32_t>(two->tangents.size());
            std::vector<double> state(static_cast<size_t>(work.layout.size()));
            xpcs::component_normal_equations(two->angle.executor, {work}, {state.data()});
          }};
}

Case token_rows(tokens::Kind kind) {
  constexpr int64_t kRows = 16, kLength = 1024, kPiece = 128;
  const auto in = random_memory(8 * kRows * kLength), out = random_memory(13 * kRows * kLength);
  for (int64_t i = 0; i < kRows * kLength; ++i) {
    if (kind == tokens::Kind::kInt64) reinterpret_cast<int64_t*>(in.get())[i] = i;
  }
  return {kRows * kLength, [=] {
            std::vector<tokens::Piece> pieces;
            std::vector<int64_t> ends;
            for (int64_t i = 0; i < kRows * kLength / kPiece; ++i) {
              pieces.push_back({i, 0, kPiece, i * kPiece});
              if ((i + 1) % (kLength / kPiece) == 0) ends.push_back(i + 1);
            }
            auto* const fields = reinterpret_cast<uint32_t*>(out.get());
            auto* const marks = reinterpret_cast<int32_t*>(fields + kRows * kLength);
            tokens::write_rows(pieces.data(), ends.data(), kRows, kLength,
                               {{in.get(), kRows * kLength, kind, 0, fields}},
                               {marks, marks + kRows * kLength,
                                reinterpret_cast<uint8_t*>(marks + 2 * kRows * kLength)});
          }};
}

Case token_packing(tokens::Method method) {
  constexpr int64_t kDocuments = 4096;
  return {kDocuments, [=] {
            std::mt19937 engine(3);
            std::vector<int64_t> begins(kDocuments), lengths(kDocuments);
            for (int64_t& length : lengths) length = 1 + engine() % 1024;
            tokens::Packer packer(2048, method, tokens::Overlong::kError, 64);
            packer.add(begins.data(), lengths.data(), kDocuments, INT64_MAX);
          }};
}

// The name of each case, and a function that allocates it.
std::vector<std::pair<std::string, std::function<Case()>>> cases() {
  std::vector<std::pair<std::string, std::function<Case()>>> all;
  const auto add = [&](auto make, auto name, auto... rest) {
    all.emplace_back(name, [=] { return make(rest...); });
  };
  constexpr Pixels kU8 = Pixels::kU8, kF32 = Pixels::kF32;
  const auto chain_of = [](auto... rest) { return chain(rest...); };
  add(chain_of, "chain bilinear f32", Filter::kBilinear, 256, kU8, kF32, Layout::kNHWC);
  add(chain_of, "chain bilinear bf16", Filter::kBilinear, 256, kU8, Pixels::kBF16, Layout::kNHWC);
  add(chain_of, "chain bilinear f16", Filter::kBilinear, 256, kU8, Pixels::kF16, Layout::kNHWC);
  add(chain_of, "chain bilinear u8", Filter::kBilinear, 256, kU8, kU8, Layout::kNHWC);
  add(chain_of, "chain bilinear f32 NCHW", Filter::kBilinear, 256, kU8, kF32, Layout::kNCHW);
  add(chain_of, "chain antialias f32", Filter::kAntialias, 512, kU8, kF32, Layout::kNHWC);
  add(chain_of, "chain bicubic f32", Filter::kBicubic, 256, kU8, kF32, Layout::kNHWC);
  add(chain_of, "chain normalize f32", Filter::kNone, 224, kU8, kF32, Layout::kNHWC);
  add(chain_of, "chain bilinear f32 to f32", Filter::kBilinear, 256, kF32, kF32, Layout::kNHWC);
  add(small_window, "window of 32 x 32", 0, 1);
  add(small_window, "window of 32 x 32, mirrored", 0, -1);
  add(small_window, "window of 32 x 32, moved", 2, 1);
  add(small_window, "window of 32 x 32, moved and mirrored", 2, -1);
  add(mix, "mix f32", kF32);
  add(mix, "mix u8", kU8);
  const struct {
    const char* name;
    Code code;
    std::vector<float> values;
  } steps[] = {{"brightness", Code::kBrightness, {1.2f}},
               {"contrast", Code::kContrast, {1.2f, -.2f}},
               {"saturation", Code::kSaturation, {1.2f, -.2f}},
               {"hue", Code::kHue, {.1f}},
               {"sharpness", Code::kSharpness, {1.2f, -.2f}},
               {"solarize", Code::kSolarize, {.5f, 0}},
               {"autocontrast", Code::kAutocontrast, {}},
               {"equalize", Code::kEqualize, {}},
               {"grayscale", Code::kGrayscale, {}},
               {"permute", Code::kPermute, {2, 0, 1}},
               {"blur", Code::kBlur, {1.5f, 1.5f}},
               {"warp", Code::kWarp, {.9f, .1f, 2, -.1f, .9f, 3}},
               {"perspective", Code::kPerspective, {.9f, .1f, 2, -.1f, .9f, 3, 1e-4f, 1e-4f}},
               {"noise", Code::kNoise, {0, .1f, 1, 1, 2, 3, 4}},
               {"elastic", Code::kElastic, {20, 20, 2, 2, 1, 2, 3, 4}}};
  for (const auto& step : steps) {
    for (const Pixels dtype : {kU8, kF32}) {
      const std::string name =
          std::string("program ") + step.name + (dtype == kU8 ? " u8" : " f32");
      add(program, name, dtype, std::vector{step.code}, StepValues{step.values}, 1);
    }
  }
  add(program, "program warp nearest u8", kU8, std::vector{Code::kWarp},
      StepValues{{.9f, .1f, 2, -.1f, .9f, 3}}, 0);
  add(program, "program ColorJitter u8", kU8,
      std::vector{Code::kBrightness, Code::kContrast, Code::kSaturation, Code::kHue},
      StepValues{{1.2f}, {1.2f, -.2f}, {1.2f, -.2f}, {.1f}}, 1);
  const std::vector<float> turn = {.99f, .1f, 2, -.1f, .99f, 3}, shear = {1, .1f, 2, 0, 1, 0};
  add(program, "program AugMix u8", kU8,
      std::vector{Code::kKeep, Code::kPosterize, Code::kWarp, Code::kAdd, Code::kEqualize,
                  Code::kWarp, Code::kAdd, Code::kAutocontrast, Code::kWarp, Code::kAdd,
                  Code::kMean},
      StepValues{{.3f}, {4}, turn, {.3f}, {}, shear, {.2f}, {}, turn, {.2f}, {}}, 1);
  add(multitau, "multitau u8", correlators::Dtype::kU8, 7);
  add(multitau, "multitau u16", correlators::Dtype::kU16, 7);
  add(multitau, "multitau f32", correlators::Dtype::kF32, 7);
  add(products, "event products, 16 bits", true);
  add(products, "event products, 32 bits", false);
  add(frame_sums, "frame sums u8", correlators::Dtype::kU8);
  add(frame_sums, "frame sums u16", correlators::Dtype::kU16);
  add(frame_sums, "frame sums f32", correlators::Dtype::kF32);
  add(token_rows, "token rows u16", tokens::Kind::kUint16);
  add(token_rows, "token rows i64", tokens::Kind::kInt64);
  add(token_packing, "token packing, first-fit", tokens::Method::kFirstFit);
  add(token_packing, "token packing, best-fit", tokens::Method::kBestFit);
  add(g2, "two-time g2 f64", xpcs::MatrixOp::kG2, false);
  add(g2, "two-time g2 f32", xpcs::MatrixOp::kG2, true);
  add(g2, "two-time residual f64", xpcs::MatrixOp::kResidual, false);
  add(normal, "normal equations f64", xpcs::DataType::kF64, xpcs::Symmetric::kNo);
  add(normal, "normal equations f64, symmetric", xpcs::DataType::kF64, xpcs::Symmetric::kYes);
  add(normal, "normal equations f16", xpcs::DataType::kF16, xpcs::Symmetric::kNo);
  add(component_g2, "two components g2 f64");
  add(component_normal, "two components normal equations f64", xpcs::Symmetric::kNo);
  add(component_normal, "two components normal equations f64, symmetric", xpcs::Symmetric::kYes);
  return all;
}

}  // namespace
}  // namespace jaxkern::benchmarks

int main(int argc, char** argv) {
  if (const char* problem = jaxkern::simd_problem())
    return std::fprintf(stderr, "%s\n", problem), 2;
  const auto cases = jaxkern::benchmarks::cases();
  if (argc == 2) return std::printf("usage: main_loops [CASE REPETITIONS]\n"), 2;
  if (argc < 2) {
    for (const auto& [name, make] : cases) {
      std::printf("%s\t%" PRId64 "\n", name.c_str(), make().values);
    }
    return 0;
  }
  for (const auto& [name, make] : cases) {
    if (name != argv[1]) continue;
    const auto one = make();
    for (int i = std::atoi(argv[2]); i > 0; --i) one.run();
    return 0;
  }
  return std::printf("unknown case '%s'\n", argv[1]), 2;
}
