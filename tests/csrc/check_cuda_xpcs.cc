// Runs the bodies of the XPCS CUDA kernels over their whole grids on the CPU, thread by thread, and
// compares them with sums and values in long double; catches a wrong index, an unwritten element,
// and with sanitizers any access outside the operands.
// usage: check_cuda_xpcs [iterations] [first seed]
#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>

#include "xpcs/cuda_cotangent.h"
#include "xpcs/cuda_matrix.h"
#include "xpcs/cuda_normal.h"
#include "xpcs/cuda_points.h"
#include "xpcs_case.h"

namespace jaxkern::xpcs::testing {
namespace {

using Long = long double;
using Random = std::mt19937_64;

// ---------------------------------------------------------------- the grid

// As on the device, a block's memory and a thread's registers hold garbage at first.
template <typename T>
struct Garbage {
  explicit Garbage(int64_t count) : memory(count * sizeof(T), 0xff) {}
  T& operator[](int64_t i) { return reinterpret_cast<T*>(memory.data())[i]; }
  std::vector<unsigned char> memory;
};

void run_items(int64_t items, const std::function<void(int64_t)>& body) {
  for (int64_t flat = items - 1; flat >= 0; --flat) body(flat);
}

// One step of a block: its threads run in any order between two barriers.
template <typename Step>
void step(int32_t threads, bool backwards, Step body) {
  for (int32_t t = 0; t < threads; ++t) body(backwards ? threads - 1 - t : t);
}

void run_prepare(const AngleCall& call) {
  run_items(angle_items(call), [&](int64_t flat) { prepare_angle(call, flat); });
}

template <MatrixOp op, typename Real>
void run_matrix(const MatrixCall& call) {
  using Body = MatrixBody<op, Real>;
  run_prepare(call.angle);
  for (int64_t flat = 0; flat < matrix_tiles(call); ++flat) {
    Garbage<typename Body::Shared> shared(1);
    step(kMatrixThreads, true, [&](int32_t t) { Body::load(call, flat, t, shared[0]); });
    step(kMatrixThreads, false, [&](int32_t t) { Body::compute(call, t, shared[0]); });
    step(kMatrixThreads, true, [&](int32_t t) { Body::mirror(call, t, shared[0]); });
  }
}

template <typename Real>
void run_cotangent(const CotangentCall& call) {
  using Body = CotangentBody<Real>;
  run_prepare(call.angle);
  for (int64_t flat = 0; flat < cotangent_units(call); ++flat) {
    Garbage<typename Body::Shared> shared(1);
    Garbage<typename Body::Thread> state(kCotangentThreads);
    step(kCotangentThreads, false, [&](int32_t t) { Body::begin(call, flat, t, state[t]); });
    for (int32_t s = 0; s < Body::steps(call, state[0]); ++s) {
      step(kCotangentThreads, true,
           [&](int32_t t) { Body::load(call, s, t, state[t], shared[0]); });
      step(kCotangentThreads, false,
           [&](int32_t t) { Body::compute(call, s, t, shared[0], state[t]); });
    }
    step(kCotangentThreads, true, [&](int32_t t) { Body::end(call, state[t]); });
  }
  run_items(cotangent_frames(call), [&](int64_t flat) { add_cotangent(call, flat); });
  for (int64_t sample = 0; sample < call.angle.samples; ++sample) {
    Garbage<CotangentTotal> shared(1);
    step(kCotangentThreads, true, [&](int32_t t) { gather_total(call, sample, t, shared[0]); });
    step(kCotangentThreads, true, [&](int32_t t) { fold_total(call, sample, t, shared[0]); });
  }
}

template <typename Columns, bool kRobust>
void run_normal(const NormalCall& call) {
  using Body = NormalBody<Columns, kRobust>;
  for (int64_t flat = 0; flat < normal_units<Columns>(call); ++flat) {
    Garbage<typename Body::Shared> shared(1);
    Garbage<typename Body::Thread> state(kNormalThreads);
    step(kNormalThreads, true, [&](int32_t t) { Body::load(call, flat, t, shared[0], state[t]); });
    if (!state[0].active) continue;
    step(kNormalThreads, false, [&](int32_t t) { Body::accumulate(call, t, shared[0], state[t]); });
    for (int32_t fold = 0; fold < Body::kFolds; ++fold) {
      step(kNormalThreads, true, [&](int32_t t) { Body::stage(fold, t, state[t], shared[0]); });
      step(kNormalThreads, false, [&](int32_t t) { Body::fold(t, shared[0]); });
      step(kNormalThreads, true,
           [&](int32_t t) { Body::write(call, fold, t, state[t], shared[0]); });
    }
  }
}

enum class Kept { kStatic, kLaminar, kParts };  // which sums a thread keeps

void run_normal(NormalCall call, Kept kept, int64_t chunk) {
  run_prepare(call.angle);
  for (call.first = 0; call.first < call.angle.samples; call.first += chunk) {
    call.count = std::min(chunk, call.angle.samples - call.first);
    const bool robust = call.loss != Loss::kLinear;
    if (kept == Kept::kStatic) {
      robust ? run_normal<WholeGram<3, 0>, true>(call) : run_normal<WholeGram<3, 0>, false>(call);
    } else if (kept == Kept::kLaminar) {
      robust ? run_normal<WholeGram<3, 4>, true>(call) : run_normal<WholeGram<3, 4>, false>(call);
    } else {
      robust ? run_normal<GramPart, true>(call) : run_normal<GramPart, false>(call);
    }
    run_items(state_items(call), [&](int64_t flat) { add_blocks(call, flat); });
  }
}

// ---------------------------------------------------------------- a batch of two angles

double rounded(bool single, double value) { return single ? static_cast<float>(value) : value; }

// Reals as a call gets them: exactly as many as there are.
class RealArray {
 public:
  RealArray() = default;
  RealArray(bool single, const std::vector<double>& values) : single_(single) {
    if (single) {
      floats_.assign(values.begin(), values.end());
    } else {
      doubles_ = values;
    }
  }
  RealArray(bool single, int64_t count)
      : RealArray(single, std::vector<double>(count, std::nan(""))) {}
  void* data() {
    return single_ ? static_cast<void*>(floats_.data()) : static_cast<void*>(doubles_.data());
  }
  double operator[](int64_t i) const {
    return single_ ? static_cast<double>(floats_[i]) : doubles_[i];
  }
  int64_t size() const { return static_cast<int64_t>(floats_.size() + doubles_.size()); }

 private:
  bool single_ = false;
  std::vector<float> floats_;
  std::vector<double> doubles_;
};

// Operands of a batch: each has both samples' values, or one that both share.
class Batch {
 public:
  Batch(Random& random, bool single) : random_(random), single_(single) {}

  bool shared() { return random_() % 3 == 0; }

  template <int kOperands>
  void set(BatchSet<kOperands>& to, int which, const std::vector<double>& first,
           const std::vector<double>& second) {
    reals_.emplace_back(new RealArray(single_, both(first, second)));
    place(to, which, reals_.back()->data(), first.size(), first == second);
  }
  template <typename T, int kOperands>
  void set_raw(BatchSet<kOperands>& to, int which, const std::vector<T>& first,
               const std::vector<T>& second) {
    const std::vector<T> values = both(first, second);
    bytes_.emplace_back(new unsigned char[values.size() * sizeof(T) + (values.empty() ? 1 : 0)]);
    if (!values.empty()) std::memcpy(bytes_.back().get(), values.data(), values.size() * sizeof(T));
    place(to, which, bytes_.back().get(), first.size(), first == second);
  }

 private:
  template <typename T>
  std::vector<T> both(const std::vector<T>& first, const std::vector<T>& second) {
    std::vector<T> values = first;
    if (first != second) values.insert(values.end(), second.begin(), second.end());
    return values;
  }
  template <int kOperands>
  void place(BatchSet<kOperands>& to, int which, const void* data, size_t size, bool same) {
    BatchMap map;
    map.rank = 1;
    map.size[0] = 2;
    map.stride[0] = same ? 0 : static_cast<int64_t>(size);
    to.set(which, data, map);
  }

  Random& random_;
  bool single_;
  std::vector<std::unique_ptr<RealArray>> reals_;
  std::vector<std::unique_ptr<unsigned char[]>> bytes_;
};

// A case whose reals are what the dtype can hold, and with more tables at times.
Case base_case(uint64_t seed, Random& random, bool single) {
  Case c = random_case(seed, seed % 10 == 9 ? 700 : 300);
  if (random() % 6 == 0) {
    c.layout.tables_a = static_cast<int32_t>(random() % 14);
    c.layout.tables_x = c.power == 0 ? 0 : static_cast<int32_t>(random() % 14);
    c.tables.resize((c.layout.tables_a + c.layout.tables_x) * c.n);
    for (double& value : c.tables) value = std::uniform_real_distribution<double>(-3, 3)(random);
  }
  for (auto* values : {&c.a, &c.x, &c.tables, &c.sigmas}) {
    for (double& value : *values) value = rounded(single, value);
  }
  for (double* value : {&c.contrast, &c.offset, &c.sigma, &c.step, &c.zero, &c.f_scale}) {
    *value = rounded(single, *value);
  }
  return c;
}

// The matrix again from the rows as the kernel gets them.
void read_back(Case* c) {
  for (size_t k = 0; k < c->data64.size() + c->data32.size() + c->data16.size(); ++k) {
    double& to = c->matrix[c->first_row * c->n + k];
    switch (c->type) {
      case DataType::kF64:
        to = c->data64[k];
        break;
      case DataType::kF32:
        to = c->data32[k];
        break;
      case DataType::kF16:
        to = float16_to_float(c->data16[k]);
        break;
      case DataType::kU16:
        to = c->zero + c->step * c->data16[k];
        break;
    }
  }
}

// Another angle of the batch. What is turned keeps its symmetry.
Case variant(const Case& first, Batch& batch, bool single) {
  Case c = first;
  const auto scale = [&](double* value, double by) {
    if (!batch.shared()) *value = rounded(single, *value * by);
  };
  const auto turn = [&](auto* values) { std::reverse(values->begin(), values->end()); };
  if (!batch.shared()) turn(&c.a);
  if (!batch.shared()) turn(&c.x);
  if (!batch.shared()) turn(&c.tables);
  if (!batch.shared()) turn(&c.keep);
  if (!batch.shared()) turn(&c.sigmas);
  if (!batch.shared()) turn(&c.data64), turn(&c.data32), turn(&c.data16);
  scale(&c.contrast, 0.75);
  scale(&c.offset, 1.25);
  scale(&c.sigma, 0.5);
  scale(&c.f_scale, 1.5);
  if (c.symmetric != Symmetric::kAuto && c.sigmas.empty() && c.first_row > 0 && !batch.shared()) {
    --c.first_row;
  }
  return c;
}

struct Made {
  std::vector<Angle> angles;
  std::vector<double> tables;
};

AngleCall angle_call(const Case& first, const Case& second, bool single, Batch& batch) {
  AngleCall call;
  call.single = single;
  call.power = first.power;
  call.n = call.rows = first.n;
  call.samples = 2;
  batch.set(call.operands, kPhaseA, first.a, second.a);
  batch.set(call.operands, kPhaseX, first.x, second.x);
  batch.set(call.operands, kContrast, {first.contrast}, {second.contrast});
  batch.set(call.operands, kOffset, {first.offset}, {second.offset});
  return call;
}

// Garbage here is NaN in a table and an absurd place in an angle.
void make_room(AngleCall* call, Made* made) {
  made->angles.resize(call->samples);
  std::memset(static_cast<void*>(made->angles.data()), 0xff, call->samples * sizeof(Angle));
  made->tables.assign(call->samples * tables_size(*call), std::nan(""));
  call->angles = made->angles.data();
  call->tables = made->tables.data();
}

// ---------------------------------------------------------------- checks

struct Report {
  uint64_t seed;
  bool single;
  int failures = 0;
  // `magnitude` is of what was added; float results are rounded once more.
  void check(const char* what, int64_t at, double got, Long wanted, Long magnitude) {
    const Long allowed = 1e-12L * magnitude + (single ? 1e-7L * std::abs(wanted) : 0);
    if (std::abs(got - wanted) <= allowed && !std::isnan(got)) return;
    if (failures++ < 3) {
      std::printf("seed %" PRIu64 " (%s): %s at %" PRId64 " is %.17g, wanted %.17Lg\n", seed,
                  single ? "float" : "double", what, at, got, wanted);
    }
  }
};

std::vector<double> random_reals(Random& random, int64_t count, bool single) {
  std::vector<double> values(count);
  for (double& v : values) {
    v = rounded(single, std::uniform_real_distribution<double>(-2, 2)(random));
  }
  return values;
}

template <typename Real>
void check_matrix(const Case (&cases)[2], Random& random, Batch& batch, Report& report) {
  const int64_t n = cases[0].n;
  const bool single = report.single;
  std::vector<double> da[2], dx[2], sigma[2], g[2], dc[2], d0[2], data[2];
  for (int s = 0; s < 2; ++s) {
    da[s] = random_reals(random, n, single);
    dx[s] = random_reals(random, n, single);
    dc[s] = random_reals(random, 1, single);
    d0[s] = random_reals(random, 1, single);
    g[s] = random_reals(random, n * n, single);
    data[s] = random_reals(random, n * n, single);
    sigma[s] = random_reals(random, n * n, single);  // half of them count for nothing
  }
  const bool matrix_sigma = random() % 2;
  AngleCall angle = angle_call(cases[0], cases[1], single, batch);
  batch.set(angle.operands, kTangentContrast, dc[0], dc[1]);
  batch.set(angle.operands, kTangentOffset, d0[0], d0[1]);
  batch.set(angle.operands, kTablesA, da[0], da[1]);
  batch.set(angle.operands, kTablesX, dx[0], dx[1]);
  angle.tables_a = angle.tables_x = 1;
  angle.sigma_rank = matrix_sigma ? 2 : 0;
  if (matrix_sigma) {
    batch.set(angle.operands, kSigma, sigma[0], sigma[1]);
  } else {
    batch.set(angle.operands, kSigma, {cases[0].sigma}, {cases[1].sigma});
  }
  Made made;
  make_room(&angle, &made);
  MatrixCall call;
  call.angle = angle;
  RealArray g2(single, 2 * n * n), tangent(single, 2 * n * n), residual(single, 2 * n * n);
  call.out = g2.data();
  run_matrix<MatrixOp::kG2, Real>(call);
  call.out = tangent.data();
  run_matrix<MatrixOp::kTangent, Real>(call);
  batch.set(call.angle.operands, kData, data[0], data[1]);
  call.out = residual.data();
  run_matrix<MatrixOp::kResidual, Real>(call);

  CotangentCall back;
  back.angle = angle;
  back.angle.tables_a = back.angle.tables_x = 0;
  batch.set(back.angle.operands, kData, g[0], g[1]);
  std::vector<double> sums(2 * cotangent_pieces(back) * kCotangentSums * n, std::nan(""));
  RealArray bar_a(single, 2 * n), bar_x(single, 2 * n), bar_c(single, int64_t{2}),
      bar_o(single, int64_t{2});
  back.sums = sums.data();
  back.phase_a = bar_a.data();
  back.phase_x = bar_x.data();
  back.contrast = bar_c.data();
  back.offset = bar_o.data();
  run_cotangent<Real>(back);

  for (int s = 0; s < 2; ++s) {
    const Case& c = cases[s];
    Long f_sum = 0, one_sum = 0;
    for (int64_t i = 0; i < n; ++i) {
      Long a_sum = 0, x_sum = 0;
      for (int64_t j = 0; j < n; ++j) {
        const int64_t at = i * n + j, place = s * n * n + at;
        const Model m = model_of(c, i, j);
        const Long value = c.offset + static_cast<Long>(c.contrast) * m.f;
        report.check("g2", place, g2[place], value, 2);
        report.check("tangent", place, tangent[place],
                     d0[s][0] + dc[s][0] * m.f +
                         c.contrast * (m.a * (static_cast<Long>(da[s][i]) - da[s][j]) +
                                       m.h * (static_cast<Long>(dx[s][i]) - dx[s][j])),
                     10);
        const double deviation = matrix_sigma ? sigma[s][at] : c.sigma;
        const Long r = i == j || deviation <= kLeastSigma ? 0 : (data[s][at] - value) / deviation;
        report.check("residual", place, residual[place], r, r == 0 ? 0 : std::abs(4 / deviation));
        const Long both = static_cast<Long>(g[s][at]) + g[s][j * n + i];
        a_sum += m.a * both;
        x_sum += m.h * both;
        f_sum += m.f * g[s][at];
        one_sum += g[s][at];
      }
      report.check("A_bar", s * n + i, bar_a[s * n + i], c.contrast * a_sum, n);
      report.check("X_bar", s * n + i, bar_x[s * n + i], c.contrast * x_sum, n);
    }
    report.check("contrast_bar", s, bar_c[s], f_sum, n * n);
    report.check("offset_bar", s, bar_o[s], one_sum, n * n);
  }
}

void check_points(const Case (&cases)[2], Random& random, Batch& batch, Report& report) {
  const int64_t n = cases[0].n, angles = 2, points = 1 + random() % 50;
  const bool single = report.single;
  PointCall call;
  call.single = single;
  call.power = cases[0].power;
  call.n = n;
  call.angles = angles;
  call.points = points;
  call.samples = 2;
  std::vector<double> x = cases[0].x, contrasts = {cases[0].contrast, cases[1].contrast};
  x.insert(x.end(), cases[1].x.begin(), cases[1].x.end());
  const std::vector<double> offsets = {cases[0].offset, cases[1].offset};
  std::vector<int32_t> index[2];
  for (auto& own : index) {
    for (int64_t k = 0; k < points; ++k) {
      for (int64_t size : {angles, n, n}) {
        own.push_back(static_cast<int32_t>(random() % size));
        const int32_t outside[] = {-1, static_cast<int32_t>(size), INT32_MAX, INT32_MIN};
        if (random() % 20 == 0) own.back() = outside[random() % 4];
      }
    }
  }
  batch.set(call.operands, kPointA, cases[0].a, cases[0].a);
  batch.set(call.operands, kPointX, x, x);
  batch.set(call.operands, kPointContrast, contrasts, contrasts);
  batch.set(call.operands, kPointOffset, offsets, offsets);
  batch.set_raw(call.operands, kPointIndex, index[0], index[1]);
  RealArray out(single, 2 * points);
  call.out = out.data();
  run_items(point_items(call), [&](int64_t flat) { run_point(call, flat); });
  for (int64_t k = 0; k < 2 * points; ++k) {
    const int32_t* at = index[k / points].data() + 3 * (k % points);
    if (at[0] < 0 || at[0] >= angles || std::min(at[1], at[2]) < 0 || std::max(at[1], at[2]) >= n) {
      if (!std::isnan(out[k])) report.check("a point outside", k, out[k], 0, 0);
      continue;
    }
    Case c = cases[at[0]];
    c.a = cases[0].a;
    report.check("g2_at", k, out[k], c.offset + c.contrast * model_of(c, at[1], at[2]).f, 2);
  }
}

template <typename T>
void set_data(AngleCall* call, Batch& batch, const std::vector<T>& first,
              const std::vector<T>& second) {
  batch.set_raw(call->operands, kData, first, second);
}

NormalCall normal_call(const Case (&cases)[2], bool single, Batch& batch) {
  const Case &c = cases[0], &d = cases[1];
  NormalCall call = {};
  AngleCall& angle = call.angle;
  angle = angle_call(c, d, single, batch);
  angle.rows = c.rows;
  angle.tables_a = c.layout.tables_a;
  angle.tables_x = c.layout.tables_x;
  const auto half = [&](const Case& of, bool shear) {
    const auto middle = of.tables.begin() + c.layout.tables_a * c.n;
    return shear ? std::vector<double>(middle, of.tables.end())
                 : std::vector<double>(of.tables.begin(), middle);
  };
  batch.set(angle.operands, kTablesA, half(c, false), half(d, false));
  batch.set(angle.operands, kTablesX, half(c, true), half(d, true));
  if (c.type == DataType::kF64) set_data(&angle, batch, c.data64, d.data64);
  if (c.type == DataType::kF32) set_data(&angle, batch, c.data32, d.data32);
  if (c.type == DataType::kF16 || c.type == DataType::kU16) {
    set_data(&angle, batch, c.data16, d.data16);
  }
  batch.set(angle.operands, kQuantization, {c.step, c.zero}, {d.step, d.zero});
  angle.sigma_rank = c.sigmas.empty() ? 0 : 2;
  if (c.sigmas.empty()) {
    batch.set(angle.operands, kSigma, {c.sigma}, {d.sigma});
  } else {
    batch.set(angle.operands, kSigma, c.sigmas, d.sigmas);
  }
  batch.set_raw(angle.operands, kKeep, c.keep, d.keep);
  batch.set(angle.operands, kFScale, {c.f_scale}, {d.f_scale});
  batch.set_raw<int32_t>(angle.operands, kFirstRow, {static_cast<int32_t>(c.first_row)},
                         {static_cast<int32_t>(d.first_row)});
  call.layout = c.layout;
  call.data_type = c.type;
  call.loss = c.loss;
  call.symmetric = c.symmetric;
  return call;
}

RealArray states(NormalCall call, bool single, Kept kept, int64_t chunk) {
  Made made;
  make_room(&call.angle, &made);
  std::vector<double> blocks(
      chunk * row_blocks(call) * slices_of(call.angle.n) * call.layout.size(), std::nan(""));
  RealArray out(single, int64_t{2} * call.layout.size());
  call.blocks = blocks.data();
  call.state = out.data();
  run_normal(call, kept, chunk);
  return out;
}

// The same with the rows in two calls, the second fed the first's state; of double operands.
void check_split(const Case (&cases)[2], const NormalCall& call, Kept kept, Batch& batch,
                 const RealArray& whole, Report& report) {
  const int64_t rows = kRowBlock * (cases[0].rows / kRowBlock / 2);
  if (rows == 0 || call.symmetric == Symmetric::kAuto) return;
  NormalCall first = call, rest = call;
  first.angle.rows = rows;
  const RealArray state = states(first, false, kept, 2);
  const int64_t size = call.layout.size();
  std::vector<double> initial[2];
  for (int64_t k = 0; k < 2 * size; ++k) initial[k / size].push_back(state[k]);
  batch.set(rest.angle.operands, kInitial, initial[0], initial[1]);
  rest.angle.rows -= rows;
  batch.set_raw<int32_t>(rest.angle.operands, kFirstRow,
                         {static_cast<int32_t>(cases[0].first_row + rows)},
                         {static_cast<int32_t>(cases[1].first_row + rows)});
  const int64_t skipped = rows * call.angle.n;
  const int64_t item = call.data_type == DataType::kF64   ? 8
                       : call.data_type == DataType::kF32 ? 4
                                                          : 2;
  const auto skip = [&](AngleOperand which, int64_t bytes) {
    rest.angle.operands.data[which] =
        static_cast<const char*>(rest.angle.operands.data[which]) + bytes;
  };
  skip(kData, skipped * item);
  if (call.angle.sigma_rank == 2) skip(kSigma, skipped * 8);
  const RealArray both = states(rest, false, kept, 2);
  for (int64_t k = 0; k < 2 * size; ++k) {
    if (both[k] != whole[k]) report.check("a split state", k, both[k], whole[k], 0);
  }
}

void check_normal(const Case (&cases)[2], Random& random, Batch& batch, Report& report) {
  const bool single = report.single;
  NormalCall call = normal_call(cases, single, batch);
  const int64_t size = call.layout.size();
  const std::vector<double> initial[2] = {random_reals(random, size, single),
                                          random_reals(random, size, single)};
  batch.set(call.angle.operands, kInitial, initial[0], initial[1]);
  std::vector<Long> wanted[2], scale[2];
  for (int s = 0; s < 2; ++s) reference_state(cases[s], &wanted[s], &scale[s]);
  std::vector<Kept> ways = {Kept::kParts};
  if (call.layout.tables_a <= 3 && call.layout.tables_x <= 4) ways.push_back(Kept::kLaminar);
  if (call.layout.tables_a <= 3 && call.layout.tables_x == 0) ways.push_back(Kept::kStatic);
  for (Kept kept : ways) {
    const RealArray state = states(call, single, kept, 1 + random() % 2);
    for (int64_t k = 0; k < 2 * size; ++k) {
      const int64_t s = k / size, e = k % size;
      report.check("state", k, state[k], wanted[s][e] + initial[s][e],
                   scale[s][e] + std::abs(initial[s][e]));
    }
    if (!single) check_split(cases, call, kept, batch, state, report);
    // A first_row outside: NaN, and nothing is read by it.
    const int32_t outside[] = {-1, static_cast<int32_t>(call.angle.n - call.angle.rows + 1),
                               INT32_MAX, INT32_MIN};
    NormalCall bad = call;
    batch.set_raw<int32_t>(bad.angle.operands, kFirstRow,
                           {static_cast<int32_t>(cases[0].first_row)}, {outside[random() % 4]});
    const RealArray spoiled = states(bad, single, kept, 2);
    for (int64_t k = 0; k < 2 * size; ++k) {
      if (k < size ? spoiled[k] != state[k] : !std::isnan(spoiled[k])) {
        report.check("a state with a first_row outside", k, spoiled[k], std::nan(""), 0);
      }
    }
  }
}

int check(uint64_t seed) {
  Random random(seed * 7919 + 1);
  Report report{seed, random() % 2 == 0};
  Batch batch(random, report.single);
  Case cases[2] = {base_case(seed, random, report.single), {}};
  cases[1] = variant(cases[0], batch, report.single);
  for (Case& c : cases) read_back(&c);
  check_normal(cases, random, batch, report);
  check_points(cases, random, batch, report);
  if (cases[0].n <= 300) {  // long doubles for every point of four matrices
    report.single ? check_matrix<float>(cases, random, batch, report)
                  : check_matrix<double>(cases, random, batch, report);
  }
  return report.failures != 0;
}

}  // namespace
}  // namespace jaxkern::xpcs::testing

int main(int argc, char** argv) {
  const uint64_t iterations = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 60;
  const uint64_t first = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 0;
  int failures = 0;
  for (uint64_t seed = first; seed < first + iterations && failures < 10; ++seed) {
    failures += jaxkern::xpcs::testing::check(seed);
  }
  std::printf("%" PRIu64 " cases, %d failures\n", iterations, failures);
  return failures != 0;
}
