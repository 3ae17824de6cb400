// The hot loops of the correlators, compiled once per instruction-set level into the namespace
// JAXKERN_LEVEL. Everything but the entry points has internal linkage.
#include "correlators/events-inl.h"
#include "correlators/frame_sums-inl.h"
#include "correlators/multitau-inl.h"

namespace jaxkern::correlators::JAXKERN_LEVEL {

void frame_sums_tile(const FrameSumsTile& tile, char* scratch) { sum_any_tile(tile, scratch); }
void multitau_strip(const MultiTauStrip& strip, char* scratch) { run_strip(strip, scratch); }

void short_products(const int16_t* s, int64_t n, int64_t first, int64_t last, uint64_t* out) {
  products_of<int32_t>(s, s, n, first, last, 1, out);
}

void long_products(const uint32_t* s, const uint32_t* other, int64_t n, int64_t first, int64_t last,
                   int64_t sign, uint64_t* out) {
  products_of<uint64_t>(s, other, n, first, last, sign, out);
}

void short_merge(int16_t* s, int64_t n) { merge_neighbours(s, n); }
void add_pairs_of_row(const PairRow& work) { add_pairs_in_row(work); }
void divide_row(const PairRow& work) { divide_in_row(work); }
void long_merge(uint32_t* s, int64_t n) { merge_neighbours(s, n); }

void pixel_ratios(const uint64_t* own, int64_t n, const double* pairs, uint64_t* sums,
                  double* ratios) {
  ratios_of(own, n, pairs, sums, ratios);
}

}  // namespace jaxkern::correlators::JAXKERN_LEVEL
