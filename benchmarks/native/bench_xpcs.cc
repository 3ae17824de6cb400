// Times the XPCS kernels. Usage: bench_xpcs [--repetitions N] [--level NAME]. `share`
// is the time to move the case's bytes at the measured load and streaming-store speeds, divided by
// the case's time; 100% if memory alone limits the kernel.
#include <cinttypes>
#include <cstdio>

#include "core/simd_dispatch.h"
#include "core/streaming.h"
#include "measure.h"
#include "xpcs/cpu.h"

namespace jaxkern::benchmarks {
namespace {

using namespace jaxkern::xpcs;

// Angles of a laminar flow with the growth of A and X of the models' defaults.
struct Angles {
  int64_t n, count;
  StateLayout layout;
  std::vector<double> a, x, tables;
  std::vector<uint8_t> keep;
  std::vector<int64_t> kept;
  Block data, out;

  size_t bytes() const { return static_cast<size_t>(n * n * count) * sizeof(double); }
};

std::shared_ptr<Angles> make_angles(int64_t n, int64_t count, bool shear) {
  auto angles = std::make_shared<Angles>();
  angles->n = n;
  angles->count = count;
  angles->layout = {3, shear ? 4 : 0};
  for (int64_t i = 0; i < n; ++i) angles->a.push_back(1e-3 * static_cast<double>(i));
  for (int64_t p = 0; p < count; ++p)
    for (int64_t i = 0; i < n; ++i) angles->x.push_back(0.02 * static_cast<double>((p + 1) * i));
  std::vector<double> tables;
  for (int64_t k = 0; k < angles->layout.tables_a + angles->layout.tables_x; ++k)
    for (int64_t i = 0; i < n; ++i)
      tables.push_back(1e-3 * static_cast<double>(i * (k + 1)) + 1e-6 * static_cast<double>(i * i));
  angles->tables = padded({tables.data(), false}, static_cast<int64_t>(tables.size()) / n, n);
  angles->keep.assign(n, 1);
  for (int64_t i = 0; i <= n; ++i) angles->kept.push_back(i);
  angles->data = block(angles->bytes());
  angles->out = block(angles->bytes());
  double* data = reinterpret_cast<double*>(angles->data.get());
  for (int64_t i = 0; i < n * n * count; ++i) data[i] = 1.1;
  return angles;
}

Executor executor_with(int threads) {
  Executor executor;
  executor.workers = threads;
  executor.schedule = [](std::function<void()> task) { std::thread(std::move(task)).detach(); };
  return executor;
}

PhaseTables phases_of(const Angles& angles, const Executor& executor) {
  const std::vector<Reals> a(static_cast<size_t>(angles.count), Reals{angles.a.data(), false});
  std::vector<Reals> x;
  for (int64_t p = 0; p < angles.count; ++p) x.push_back({angles.x.data() + p * angles.n, false});
  return PhaseTables(executor, angles.n, angles.layout.tables_x ? 4 : 0, a, x);
}

void run_normal(const Angles& angles, int threads, Symmetric symmetric) {
  const Executor executor = executor_with(threads);
  const PhaseTables phases = phases_of(angles, executor);
  std::vector<NormalWork> work(static_cast<size_t>(angles.count));
  std::vector<double> sums(work.size() * static_cast<size_t>(angles.layout.size()));
  std::vector<double*> states;
  for (size_t p = 0; p < work.size(); ++p) {
    NormalWork& w = work[p];
    w.phases = phases[static_cast<int64_t>(p)];
    w.layout = angles.layout;
    w.tables = angles.tables.data();
    w.keep = angles.keep.data();
    w.kept = angles.kept.data();
    w.contrast = .3;
    w.offset = 1;
    w.rows = angles.n;
    w.data = angles.data.get() + p * static_cast<size_t>(angles.n * angles.n) * sizeof(double);
    w.symmetric = symmetric;
    w.sigma = .1;
    states.push_back(sums.data() + p * static_cast<size_t>(angles.layout.size()));
  }
  normal_equations(executor, work, states);
}

void run_g2(const Angles& angles, int threads) {
  const Executor executor = executor_with(threads);
  const PhaseTables phases = phases_of(angles, executor);
  std::vector<MatrixWork> work(static_cast<size_t>(angles.count));
  for (size_t p = 0; p < work.size(); ++p) {
    work[p].phases = phases[static_cast<int64_t>(p)];
    work[p].contrast = .3;
    work[p].offset = 1;
    work[p].streaming = angles.bytes() > static_cast<size_t>(largest_cached_result());
    work[p].out = angles.out.get() + p * static_cast<size_t>(angles.n * angles.n) * sizeof(double);
  }
  matrix(executor, MatrixOp::kG2, work);
}

Arm base_arm(const std::string& name, const char* level, int threads, double points) {
  Arm arm;
  arm.name = name;
  arm.level = level;
  arm.threads = threads;
  arm.elements = arm.items = points;
  return arm;
}

// A load and a streaming fill of the size of one data set, in pieces of 64 KiB.
std::vector<Arm> ceiling_arms(const std::shared_ptr<Angles>& angles, int threads) {
  constexpr size_t kPiece = size_t{64} << 10;
  const int64_t pieces = static_cast<int64_t>(angles->bytes() / kPiece);
  const double bytes = static_cast<double>(pieces) * kPiece;
  std::vector<Arm> arms = {base_arm("streaming-store fill", "-", threads, bytes / 8),
                           base_arm("load and sum", "-", threads, bytes / 8)};
  arms[0].written = arms[1].read = bytes;
  arms[0].run = [=] {
    spread(threads, pieces, [&](int64_t i) {
      streaming_fill(angles->out.get() + kPiece * static_cast<size_t>(i), kPiece);
    });
  };
  arms[1].run = [=] {
    spread(threads, pieces, [&](int64_t i) {
      volatile uint64_t sum =
          load_sum(angles->data.get() + kPiece * static_cast<size_t>(i), kPiece);
      (void)sum;
    });
  };
  return arms;
}

void add_kernel_arms(std::vector<Arm>& arms, const char* name, int64_t n, int64_t count, bool shear,
                     const std::vector<const char*>& levels, int most_threads) {
  const std::shared_ptr<Angles> angles = make_angles(n, count, shear);
  const double points = static_cast<double>(n * n * count);
  const auto add = [&](const std::string& what, double read, double written,
                       const std::function<void(int)>& run) {
    for (const char* level : levels) {
      for (int threads : {1, most_threads}) {
        if (threads > 1 && level != levels.back()) continue;
        Arm arm = base_arm(std::string(name) + ", " + what, level, threads, points);
        arm.read = read;
        arm.written = written;
        arm.run = [=, forced = std::string(level)] {
          set_simd_level(forced.c_str());
          run(threads);
        };
        arms.push_back(std::move(arm));
        if (most_threads == 1) break;
      }
    }
  };
  const double all = static_cast<double>(angles->bytes());
  add("g2", 0, all, [=](int threads) { run_g2(*angles, threads); });
  add("normal, symmetric", all / 2, 0,
      [=](int threads) { run_normal(*angles, threads, Symmetric::kYes); });
  add("normal, compared", all, 0,
      [=](int threads) { run_normal(*angles, threads, Symmetric::kAuto); });
  add("normal, every point", all, 0,
      [=](int threads) { run_normal(*angles, threads, Symmetric::kNo); });
}

double speed(const std::vector<Arm>& arms, int threads, size_t which) {
  for (size_t i = 0; i < arms.size(); ++i) {
    if (arms[i].level != "-" || arms[i].threads != threads) continue;
    const Arm& arm = arms[i + which];
    return (arm.read + arm.written) / arm.quantile(.5);
  }
  return 0;
}

void report(const std::vector<Arm>& arms) {
  std::printf(
      "| case | level | threads | ns a point | quartiles | Mpoints/s | share of the ceiling |\n"
      "|---|---|--:|--:|--:|--:|--:|\n");
  for (const Arm& arm : arms) {
    const double ns = 1e9 / arm.elements, median = arm.quantile(.5);
    const double ideal =
        arm.written / speed(arms, arm.threads, 0) + arm.read / speed(arms, arm.threads, 1);
    std::printf("| %s | %s | %d | %.3f | %.3f to %.3f | %.0f | %.0f%% |\n", arm.name.c_str(),
                arm.level.c_str(), arm.threads, median * ns, arm.quantile(.25) * ns,
                arm.quantile(.75) * ns, arm.elements / median * 1e-6, 100 * ideal / median);
  }
}

}  // namespace
}  // namespace jaxkern::benchmarks

int main(int argc, char** argv) {
  using namespace jaxkern;
  using namespace jaxkern::benchmarks;
  const char* only_level = nullptr;
  int repetitions = 15;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string option = argv[i];
    if (option == "--level")
      only_level = argv[i + 1];
    else if (option == "--repetitions")
      repetitions = std::max(1, std::atoi(argv[i + 1]));
    else {
      std::printf("unknown option %s\n", argv[i]);
      return 2;
    }
  }
  std::vector<const char*> levels;
  for (const char* const* level = available_simd_levels(); *level; ++level)
    if (!only_level || std::string(only_level) == *level) levels.push_back(*level);
  if (levels.empty()) {
    std::printf("--level: expected an available level, got %s\n", only_level);
    return 2;
  }
  std::vector<Arm> arms;
  const std::shared_ptr<Angles> probe = make_angles(400, 23, true);
  for (int threads : {1, 2})
    for (Arm& arm : ceiling_arms(probe, threads)) arms.push_back(std::move(arm));
  add_kernel_arms(arms, "23 x 400^2, flow", 400, 23, true, levels, 2);
  add_kernel_arms(arms, "3 x 1000^2, flow", 1000, 3, true, levels, 2);
  add_kernel_arms(arms, "3 x 1000^2, static", 1000, 3, false, levels, 2);
  measure(arms, repetitions, false);
  report(arms);
  return 0;
}
