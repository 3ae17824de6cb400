// Runs random normal equations at every available SIMD level, compares them with sums over points
// in long double, and checks that the results do not depend on threads and splits:
// usage: check_xpcs [iterations] [first seed]
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>

#include "core/simd_dispatch.h"
#include "xpcs_case.h"

namespace jaxkern::xpcs::testing {
namespace {

Executor threads(int64_t count) {
  Executor executor;
  executor.workers = count;
  executor.schedule = [](std::function<void()> task) { std::thread(std::move(task)).detach(); };
  return executor;
}

std::vector<double> run(Case* c, const Executor& executor) {
  const PhaseTables tables(executor, c->n, c->power, {{c->a.data(), false}},
                           {{c->x.data(), false}});
  std::vector<double> state(c->layout.size());
  normal_equations(executor, {work_of(c, tables[0])}, {state.data()});
  return state;
}

// The same rows in two chunks, the second added to the first.
std::vector<double> run_split(Case* c, int64_t rows) {
  const PhaseTables tables({}, c->n, c->power, {{c->a.data(), false}}, {{c->x.data(), false}});
  std::vector<double> state(c->layout.size());
  NormalWork work = work_of(c, tables[0]), rest = work;
  work.rows = rows;
  rest.first_row += rows;
  rest.rows -= rows;
  const size_t item = c->type == DataType::kF64 ? 8 : c->type == DataType::kF32 ? 4 : 2;
  rest.data = static_cast<const char*>(work.data) + rows * c->n * item;
  if (rest.sigma_matrix.data != nullptr) {
    rest.sigma_matrix.data = static_cast<const double*>(work.sigma_matrix.data) + rows * c->n;
  }
  normal_equations({}, {work}, {state.data()});
  normal_equations({}, {rest}, {state.data()});
  return state;
}

bool check(uint64_t seed, const char* level) {
  Case c = random_case(seed);
  const std::vector<double> state = run(&c, {});
  std::vector<long double> expected, scale;
  reference_state(c, &expected, &scale);
  const auto fail = [&](const char* what, int32_t at, double got, long double want) {
    std::printf("seed %" PRIu64
                ", %s: %s, entry %d of %d is %.17g, expected %.17Lg (scale %.3Lg)\n",
                seed, level, what, at, c.layout.size(), got, want, scale[at]);
    std::printf(
        "  n %ld rows %ld+%ld power %d tables %d+%d type %d loss %d symmetric %d sigmas %zu\n", c.n,
        c.first_row, c.rows, c.power, c.layout.tables_a, c.layout.tables_x,
        static_cast<int>(c.type), static_cast<int>(c.loss), static_cast<int>(c.symmetric),
        c.sigmas.size());
    return false;
  };
  for (int32_t at = 0; at < c.layout.size(); ++at) {
    if (at == c.layout.mirrored() && c.symmetric == Symmetric::kAuto) {  // depends on the tiles
      if (state[at] > static_cast<double>(expected[at]))
        return fail("too many mirrored", at, state[at], expected[at]);
      continue;
    }
    const long double error = std::abs(state[at] - expected[at]);
    if (!(error <= 1e-12L * scale[at])) return fail("value", at, state[at], expected[at]);
  }
  if (run(&c, threads(3)) != state) return fail("three threads differ", 0, state[0], expected[0]);
  if (c.symmetric != Symmetric::kAuto && c.rows > kRowBlock) {
    if (run_split(&c, kRowBlock * (c.rows / kRowBlock)) != state && c.rows % kRowBlock != 0) {
      return fail("a split at a row block differs", 0, state[0], expected[0]);
    }
    const std::vector<double> split = run_split(&c, c.rows / 2);
    for (int32_t at = 0; at < c.layout.size(); ++at) {
      if (!(std::abs(split[at] - state[at]) <= 1e-12L * scale[at])) {
        return fail("a split anywhere", at, split[at], state[at]);
      }
    }
  }
  return true;
}

}  // namespace
}  // namespace jaxkern::xpcs::testing

int main(int argc, char** argv) {
  const uint64_t iterations = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 300;
  const uint64_t first = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 0;
  int failures = 0;
  for (const char* const* level = jaxkern::available_simd_levels(); *level; ++level) {
    jaxkern::set_simd_level(*level);
    for (uint64_t seed = first; seed < first + iterations && failures < 10; ++seed) {
      failures += !jaxkern::xpcs::testing::check(seed, *level);
    }
  }
  std::printf("%" PRIu64 " cases at every level, %d failures\n", iterations, failures);
  return failures != 0;
}
