// Runs the bodies of the XPCS CUDA kernels over their grids on the CPU, and compares the results
// with sums and values in long double. Sanitizers find accesses outside of the operands: usage:
// check_cuda_xpcs [iterations] [first seed]
#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "xpcs_batch.h"
#include "xpcs_grid.h"

namespace jaxkern::xpcs::testing {
namespace {

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
    sigma[s] = random_reals(random, n * n, single);  // half of them mean no weight
    sigma[s][random() % (n * n)] = std::nan("");     // so does this one
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
  run_matrix<MatrixBody<MatrixOp::kG2, Real>>(call);
  call.out = tangent.data();
  run_matrix<MatrixBody<MatrixOp::kTangent, Real>>(call);
  batch.set(call.angle.operands, kData, data[0], data[1]);
  call.out = residual.data();
  run_matrix<MatrixBody<MatrixOp::kResidual, Real>>(call);

  CotangentCall back;
  back.angle = angle;
  back.angle.tables_a = back.angle.tables_x = 0;
  batch.set(back.angle.operands, kData, g[0], g[1]);
  std::vector<double> sums(2 * cotangent_pieces(back) * (back.slopes + 2) * n, std::nan(""));
  RealArray bar_a(single, 2 * n), bar_x(single, 2 * n), bar_c(single, int64_t{2}),
      bar_o(single, int64_t{2});
  back.sums = sums.data();
  back.bars[0] = bar_a.data();
  back.bars[1] = bar_x.data();
  back.contrast = bar_c.data();
  back.offset = bar_o.data();
  run_cotangent<Real, LaminarSlopes>(back);

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
        const Long r = i != j && deviation > kLeastSigma ? (data[s][at] - value) / deviation : 0;
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

// The same with the rows in two calls, where the second starts from the first state, in double.
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
  std::vector<Long> expected[2], scale[2];
  for (int s = 0; s < 2; ++s) reference_state(cases[s], &expected[s], &scale[s]);
  std::vector<Kept> ways = {Kept::kParts};
  if (call.layout.tables_a <= 3 && call.layout.tables_x <= 4) ways.push_back(Kept::kLaminar);
  if (call.layout.tables_a <= 3 && call.layout.tables_x == 0) ways.push_back(Kept::kStatic);
  for (Kept kept : ways) {
    const RealArray state = states(call, single, kept, 1 + random() % 2);
    for (int64_t k = 0; k < 2 * size; ++k) {
      const int64_t s = k / size, e = k % size;
      report.check("state", k, state[k], expected[s][e] + initial[s][e],
                   scale[s][e] + std::abs(initial[s][e]));
    }
    if (!single) check_split(cases, call, kept, batch, state, report);
    // A first_row out of range gives NaN, and reads nothing.
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

// Tiles of angles far into a batch, whose flat indices exceed 32 bits: each angle has its upper
// triangle.
int check_large_batch() {
  MatrixCall call;
  call.angle.n = 4000;
  const int64_t rows = matrix_tile_rows(call), each = matrix_tiles_each(call);
  for (const int64_t angle : {int64_t{65536}, int64_t{1} << 31, int64_t{1} << 40}) {
    int64_t valid = 0;
    for (int64_t flat = angle * each; flat < (angle + 1) * each; ++flat) {
      const MatrixTile tile = matrix_tile(call, flat);
      valid += tile.valid && tile.sample == angle && tile.row <= tile.column &&
               tile.column < call.angle.n;
    }
    if (valid == rows * (rows + 1) / 2) continue;
    std::printf("angle %" PRId64 " has %" PRId64 " tiles\n", angle, valid);
    return 1;
  }
  return 0;
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
  int failures = jaxkern::xpcs::testing::check_large_batch();
  for (uint64_t seed = first; seed < first + iterations && failures < 10; ++seed) {
    failures += jaxkern::xpcs::testing::check(seed);
  }
  std::printf("%" PRIu64 " cases, %d failures\n", iterations, failures);
  return failures != 0;
}
