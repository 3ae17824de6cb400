// The body of the CUDA normal equations, as host and device functions of a flat index and a
// thread's number. A block sums kRowBlock rows and a slice of the columns of one angle. A thread
// processes some columns, row by row, with its sums in registers. A kernel calls these steps, with
// a barrier between them:
//
//   load         loads frames and tables of the rows; a block that is not active ends here
//   accumulate   adds the points of the thread
//   stage, fold  add kStaged sums of all threads at a time, in a fixed order, into scratch
//
// A second kernel, `add_blocks`, adds the slices of a row block, and then the row blocks, to the
// initial state in order. Slices depend on n only, so the result of a split of the rows at a
// multiple of kRowBlock is bit-identical.
#ifndef JAXKERN_XPCS_CUDA_NORMAL_H_
#define JAXKERN_XPCS_CUDA_NORMAL_H_

#include <cmath>
#include <cstdint>
#include <cstring>

#include "core/half.h"
#include "xpcs/cuda_columns.h"
#include "xpcs/cuda_tables.h"

namespace jaxkern::xpcs {

constexpr int32_t kNormalThreads = 128;
constexpr int32_t kStaged = 16;                         // sums that are folded together
constexpr int32_t kFolders = kNormalThreads / kStaged;  // threads that share the fold of a sum
constexpr int64_t kMinSlice = 256;
constexpr int64_t kMaxSlices = 8;

// One launch: angles [first, first + count).
struct NormalCall {
  AngleCall angle;
  StateLayout layout;
  DataType data_type;
  Loss loss;
  Symmetric symmetric;
  int64_t first, count;
  double* blocks;  // [count][row blocks][slices][layout.size()]
  void* state;     // [samples, layout.size()]
};

JAXKERN_HD int64_t row_blocks(const NormalCall& call) {
  return (call.angle.rows + kRowBlock - 1) / kRowBlock;
}

JAXKERN_HD int64_t slice_columns(int64_t n) {
  const int64_t slices = (n + kMinSlice - 1) / kMinSlice;
  const int64_t used = slices < kMaxSlices ? slices : kMaxSlices;
  const int64_t columns = used > 0 ? (n + used - 1) / used : kMinSlice;
  return (columns + kNormalThreads - 1) / kNormalThreads * kNormalThreads;
}

JAXKERN_HD int64_t slices_of(int64_t n) { return (n + slice_columns(n) - 1) / slice_columns(n); }

JAXKERN_HD int64_t normal_units(const NormalCall& call, int32_t parts) {
  return call.count * row_blocks(call) * slices_of(call.angle.n) * parts;
}

// True if a slice has points with weight in rows from `row` on: not if it is left of the upper
// triangle.
JAXKERN_HD bool slice_has_points(const NormalCall& call, int64_t slice, int64_t row) {
  return call.symmetric == Symmetric::kNo || (slice + 1) * slice_columns(call.angle.n) > row + 1;
}

// A row block and a slice of an angle.
struct NormalUnit {
  int64_t sample, block, slice, row0;
  int32_t rows;
  bool active;  // first_row is valid, and points of the slice have weight
};

JAXKERN_HD NormalUnit normal_unit(const NormalCall& call, int64_t flat) {
  const int64_t slices = slices_of(call.angle.n);
  NormalUnit unit;
  unit.slice = flat % slices;
  unit.sample = call.first + flat / slices % call.count;
  unit.block = flat / slices / call.count;  // blocks with the longest rows first
  const Angle& angle = call.angle.angles[unit.sample];
  unit.row0 = angle.first_row + unit.block * kRowBlock;
  unit.active = angle.first_row >= 0 && slice_has_points(call, unit.slice, unit.row0);
  const int64_t remaining = call.angle.rows - unit.block * kRowBlock;
  unit.rows = static_cast<int32_t>(remaining < kRowBlock ? remaining : kRowBlock);
  return unit;
}

// The number of rows of a unit, from its first, with points in column j.
JAXKERN_HD int32_t rows_of_column(const NormalCall& call, const NormalUnit& unit, int64_t j) {
  if (call.symmetric == Symmetric::kNo || j - unit.row0 >= unit.rows) return unit.rows;
  return static_cast<int32_t>(j > unit.row0 ? j - unit.row0 : 0);
}

JAXKERN_HD bool keep(const NormalCall& call, const Angle& angle, int64_t i) {
  return static_cast<const uint8_t*>(call.angle.operands.data[kKeep])[angle.keep + i] != 0;
}

JAXKERN_HD double* block_sums(const NormalCall& call, int64_t sample, int64_t block,
                              int64_t slice) {
  return call.blocks +
         (((sample - call.first) * row_blocks(call) + block) * slices_of(call.angle.n) + slice) *
             call.layout.size();
}

// Data and sigma of a point, and of its mirror image if they are compared. These are the bits in
// memory, so that no conversion waits for a load before the values are needed.
struct Measured {
  uint64_t data, other, sigma, other_sigma;
};

JAXKERN_HD uint64_t load_bits(const void* from, int32_t bytes, int64_t at) {
  if (bytes == 8) return static_cast<const uint64_t*>(from)[at];
  if (bytes == 4) return static_cast<const uint32_t*>(from)[at];
  return static_cast<const uint16_t*>(from)[at];
}

JAXKERN_HD double double_of(uint64_t bits) {
  double value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

JAXKERN_HD double real_of(uint64_t bits, bool single) {
  return single ? static_cast<double>(float_from_bits(static_cast<uint32_t>(bits)))
                : double_of(bits);
}

JAXKERN_HD double data_of(const NormalCall& call, const Angle& angle, uint64_t bits) {
  switch (call.data_type) {
    case DataType::kF64:
      return double_of(bits);
    case DataType::kF32:
      return real_of(bits, true);
    case DataType::kF16:
      return float16_to_float(static_cast<uint16_t>(bits));
    case DataType::kU16:
      break;
  }
  return angle.zero + angle.step * static_cast<uint16_t>(bits);
}

// Addresses of the measured values of one angle.
struct Sources {
  const char* data;
  const char* sigma;  // null if all points have one sigma
  int32_t data_bytes, sigma_bytes;
  bool compared;  // with the mirror image; then the data have all rows
};

JAXKERN_HD Sources sources_of(const NormalCall& call, const Angle& angle) {
  Sources s = {};
  s.data_bytes = call.data_type == DataType::kF64 ? 8 : call.data_type == DataType::kF32 ? 4 : 2;
  s.sigma_bytes = call.angle.single ? 4 : 8;
  s.data = static_cast<const char*>(call.angle.operands.data[kData]) + angle.data * s.data_bytes;
  if (call.angle.sigma_rank == 2) {
    s.sigma = static_cast<const char*>(call.angle.operands.data[kSigma]) +
              angle.sigma_matrix * s.sigma_bytes;
  }
  s.compared = call.symmetric == Symmetric::kAuto;
  return s;
}

// The point at `at`, and its mirror image at `mirror`.
JAXKERN_HD Measured measured_at(const Sources& s, int64_t at, int64_t mirror) {
  Measured m = {load_bits(s.data, s.data_bytes, at), 0, 0, 0};
  if (s.sigma != nullptr) m.sigma = load_bits(s.sigma, s.sigma_bytes, at);
  if (s.compared) {
    m.other = load_bits(s.data, s.data_bytes, mirror);
    if (s.sigma != nullptr) m.other_sigma = load_bits(s.sigma, s.sigma_bytes, mirror);
  }
  return m;
}

// Adds a point with residual r `times` times, unless its sigma is below the threshold for a weight
// of 0.
template <bool kRobust>
JAXKERN_HD void weigh(const NormalCall& call, double f_scale, double r, double sigma,
                      double inverse, int32_t times, Weight& w) {
  if (!(sigma > kLeastSigma)) return;  // NaN too
  const double scaled = r * inverse;
  double om = times * (inverse * inverse);
  w.chi2 += times * (scaled * scaled);
  if (kRobust) {
    const double z = scaled / f_scale;
    const LossValue loss = loss_value(call.loss, z * z);
    om *= loss.slope;
    w.cost += times * f_scale * f_scale * loss.rho;
  }
  w.om += om;
  w.b += om * r;
  w.count += times;
}

// A mirrored pair is one point of the upper triangle: the same point twice, or two residuals of one
// model value, because the model and its derivatives are symmetric. `inverse` is 1 / the sigma of
// the angle.
template <bool kRobust>
JAXKERN_HD Weight weight_of(const NormalCall& call, const Angle& angle, double model,
                            double inverse, const Measured& m) {
  Weight w = {};
  const bool matrix = call.angle.sigma_rank == 2, single = call.angle.single;
  const double data = data_of(call, angle, m.data);
  const double sigma = matrix ? real_of(m.sigma, single) : angle.sigma;
  bool paired = call.symmetric == Symmetric::kYes;
  double other = 0, other_sigma = sigma;
  if (call.symmetric == Symmetric::kAuto) {
    other = data_of(call, angle, m.other);
    if (matrix) other_sigma = real_of(m.other_sigma, single);
    paired = data == other && sigma == other_sigma;
  }
  weigh<kRobust>(call, angle.f_scale, data - model, sigma, matrix ? 1 / sigma : inverse,
                 paired ? 2 : 1, w);
  if (paired) {
    w.mirrored = w.count;
  } else if (call.symmetric == Symmetric::kAuto) {
    weigh<kRobust>(call, angle.f_scale, other - model, other_sigma,
                   matrix ? 1 / other_sigma : inverse, 1, w);
  }
  return w;
}

template <typename Columns, bool kRobust>
struct NormalBody {
  static constexpr int32_t kEntries = Columns::kEntries + kTailSums;
  static constexpr int32_t kFolds = (kEntries + kStaged - 1) / kStaged;
  static constexpr int32_t kTables = Columns::kTables > 0 ? Columns::kTables : 1;

  struct Shared {
    Frame frame[kRowBlock];
    double table[kTables][kRowBlock];
    uint8_t used[kRowBlock];
    double staged[kStaged][kNormalThreads + 1];
    double folded[kStaged][kFolders];
  };
  struct Thread : NormalUnit {
    typename Columns::Part part;
    bool tail;  // this part of the block writes the last entries of the state
    typename Columns::Sums sums;
    double chi2, cost;
    int32_t count, mirrored;
  };

  JAXKERN_HD void load(const NormalCall& call, int64_t flat, int32_t thread, Shared& shared,
                       Thread& state) {
    const int64_t n = call.angle.n;
    const int32_t parts = Columns::parts(call.layout);
    JAXKERN_UNROLL
    for (int32_t e = 0; e < Columns::kEntries; ++e) state.sums.entry[e] = 0;
    state.chi2 = state.cost = 0;
    state.count = state.mirrored = 0;
    state.part = Columns::part_of(static_cast<int32_t>(flat % parts));
    state.tail = flat % parts == 0;
    static_cast<NormalUnit&>(state) = normal_unit(call, flat / parts);
    if (!state.active) return;
    const Angle& angle = call.angle.angles[state.sample];
    const double* const tables = tables_of(call.angle, state.sample);
    if (thread < state.rows) {
      shared.frame[thread] = frame_at(tables, n, call.angle.power, state.row0 + thread);
      shared.used[thread] = keep(call, angle, state.row0 + thread);
    }
    for (int32_t e = thread; e < Columns::kTables * kRowBlock; e += kNormalThreads) {
      const int32_t k = e / kRowBlock, i = e % kRowBlock;
      const int32_t table = Columns::table(call.layout, state.part, k);
      shared.table[k][i] =
          table < 0 || i >= state.rows ? 0 : tables[(kTableTangents + table) * n + state.row0 + i];
    }
  }

  JAXKERN_HD void accumulate(const NormalCall& call, int32_t thread, const Shared& shared,
                             Thread& state) {
    const int64_t n = call.angle.n, columns = slice_columns(n);
    const Angle angle = call.angle.angles[state.sample];
    const Sources sources = sources_of(call, angle);
    const double* const tables = tables_of(call.angle, state.sample);
    const double inverse = 1 / angle.sigma;
    const int64_t end = n < (state.slice + 1) * columns ? n : (state.slice + 1) * columns;
    for (int64_t j = state.slice * columns + thread; j < end; j += kNormalThreads) {
      const int32_t rows = rows_of_column(call, state, j);
      if (rows == 0 || !keep(call, angle, j)) continue;
      const Frame column = frame_at(tables, n, call.angle.power, j);
      double column_table[kTables];
      JAXKERN_UNROLL
      for (int32_t k = 0; k < Columns::kTables; ++k) {
        const int32_t table = Columns::table(call.layout, state.part, k);
        column_table[k] = table < 0 ? 0 : tables[(kTableTangents + table) * n + j];
      }
      // The data of the next row is loaded while that of this row is used.
      int64_t at = (state.row0 - angle.first_row) * n + j, mirror = j * n + state.row0;
      Measured next = measured_at(sources, at, mirror);
      JAXKERN_ROLLED
      for (int32_t i = 0; i < rows; ++i) {
        const Measured current = next;
        if (i + 1 < rows) next = measured_at(sources, at += n, ++mirror);
        if (!shared.used[i] || state.row0 + i == j) continue;
        const Frame row = shared.frame[i];
        const Point p =
            point_of<Columns::kSlopes>(call.angle.power, row, column, decay_of(row, column));
        const double model = angle.offset + angle.contrast * p.f;
        const Weight w = weight_of<kRobust>(call, angle, model, inverse, current);
        if (w.count == 0) continue;
        Columns::add(
            call.layout, state.part, p, w, [&](int32_t k) { return shared.table[k][i]; },
            [&](int32_t k) { return column_table[k]; }, state.sums);
        state.chi2 += w.chi2;
        if (kRobust) state.cost += w.cost;
        state.count += w.count;
        state.mirrored += w.mirrored;
      }
    }
  }

  // Sum e of the thread; e is a compile-time constant after unrolling.
  JAXKERN_HD double entry(const Thread& state, int32_t e) {
    if (e < Columns::kEntries) return state.sums.entry[e];
    switch (e - Columns::kEntries) {
      case 0:
        return state.chi2;
      case 1:
        return kRobust ? state.cost : state.chi2;
      case 2:
        return state.count;
      case 3:
        return state.mirrored;
    }
    return 0;
  }

  JAXKERN_HD void stage(int32_t fold, int32_t thread, const Thread& state, Shared& shared) {
    JAXKERN_UNROLL
    for (int32_t e = 0; e < kStaged; ++e) {
      shared.staged[e][thread] = entry(state, fold * kStaged + e);
    }
  }

  JAXKERN_HD void fold(int32_t thread, Shared& shared) {
    const int32_t e = thread / kFolders, part = thread % kFolders;
    double sum = 0;
    for (int32_t t = part; t < kNormalThreads; t += kFolders) sum += shared.staged[e][t];
    shared.folded[e][part] = sum;
  }

  JAXKERN_HD void write(const NormalCall& call, int32_t fold, int32_t thread, const Thread& state,
                        const Shared& shared) {
    const int32_t e = fold * kStaged + thread;
    if (thread >= kStaged || e >= kEntries) return;
    int32_t index;
    if (e < Columns::kEntries) {
      index = Columns::state_index(call.layout, state.part, e);
    } else {
      index = state.tail ? call.layout.chi2() + e - Columns::kEntries : -1;
    }
    if (index < 0) return;
    double sum = 0;
    for (int32_t p = 0; p < kFolders; ++p) sum += shared.folded[thread][p];
    block_sums(call, state.sample, state.block, state.slice)[index] = sum;
  }
};

JAXKERN_HD int64_t state_items(const NormalCall& call) { return call.count * call.layout.size(); }

// Writes one entry of the state of an angle; NaN if first_row is out of range.
JAXKERN_HD void add_blocks(const NormalCall& call, int64_t flat) {
  const int32_t size = call.layout.size(), e = static_cast<int32_t>(flat % size);
  const int64_t sample = call.first + flat / size;
  const Angle& angle = call.angle.angles[sample];
  double value = NAN;
  if (angle.first_row >= 0) {
    value = Reals{call.angle.operands.data[kInitial], call.angle.single}[angle.initial + e];
    for (int64_t block = 0; block < row_blocks(call); ++block) {
      double sum = 0;
      for (int64_t slice = 0; slice < slices_of(call.angle.n); ++slice) {
        if (!slice_has_points(call, slice, angle.first_row + block * kRowBlock)) continue;
        sum += block_sums(call, sample, block, slice)[e];
      }
      value += sum;
    }
  }
  write_real(call.state, call.angle.single, sample * size + e, value);
}

}  // namespace jaxkern::xpcs

#endif  // JAXKERN_XPCS_CUDA_NORMAL_H_
