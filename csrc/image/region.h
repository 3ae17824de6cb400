// Parts of the work of a checked chain: the region of a source image that it reads, so that the
// rest need not be decoded, and a band of output rows as a separate chain.
#ifndef JAXKERN_IMAGE_REGION_H_
#define JAXKERN_IMAGE_REGION_H_

#include "image/arithmetic.h"
#include "image/plan.h"

namespace jaxkern::image {

struct Region {
  Range rows, columns;

  int32_t height() const { return rows.end - rows.begin; }
  int32_t width() const { return columns.end - columns.begin; }
};

// Returns a range that includes the resampled indices that the valid outputs `shown` show.
inline Range shown_range(Padding padding, int32_t offset, int32_t step, int32_t resampled,
                         Range shown) {
  const int64_t first = mapped_index(offset, step, shown.begin);
  const int64_t last = mapped_index(offset, step, shown.end - 1);
  const int64_t low = smaller(first, last), high = larger(first, last);
  // The code below handles at most one reflection on either side. kReflect reverses at 1 -
  // resampled and 2 * resampled - 2.
  if (low <= -resampled || high > 2 * static_cast<int64_t>(resampled) - 2) return {0, resampled};
  const int32_t a = folded_index(padding, low, resampled);
  const int32_t b = folded_index(padding, high, resampled);
  // An index beyond an end maps to indices that start at that end.
  return {low < 0 ? 0 : static_cast<int32_t>(smaller(a, b)),
          high >= resampled ? resampled : static_cast<int32_t>(larger(a, b)) + 1};
}

// Returns the inputs along one axis that the valid outputs `shown` depend on. Taps are monotonic.
inline Range read_range(const Segment& segment, int32_t start, int32_t box, int32_t resampled,
                        int32_t offset, int32_t step, Range shown) {
  if (shown.end <= shown.begin) return {0, 0};
  const Range index = shown_range(segment.padding, offset, step, resampled, shown);
  return {start + tap_range(segment.filter, index.begin, box, resampled).begin,
          start + tap_range(segment.filter, index.end - 1, box, resampled).end};
}

inline Range overlap(Range a, Range b) {
  const Range both = {static_cast<int32_t>(larger(a.begin, b.begin)),
                      static_cast<int32_t>(smaller(a.end, b.end))};
  return both.end > both.begin ? both : Range{0, 0};
}

// Returns the rows of the source that rows `range` of the output depend on, which may be empty.
inline Range read_rows(const Plan& plan, const Geometry* geometry, Range range) {
  for (int32_t s = plan.segments - 1; s >= 0; --s) {
    const Geometry& g = geometry[s];
    const Range shown = overlap(range, valid_rows(g, plan.segment[s]));
    range = read_range(plan.segment[s], g.top, g.box_height, g.resampled_height, g.row_offset,
                       g.row_step, shown);
  }
  return range;
}

// Returns the columns of the source that the output depends on, and one more on the left inside the
// box, because the byte shuffles load a last single column as the second of a pair.
inline Range read_columns(const Plan& plan, const Geometry* geometry) {
  Range range = {0, plan.segment[plan.segments - 1].width};
  for (int32_t s = plan.segments - 1; s >= 0; --s) {
    const Geometry& g = geometry[s];
    const Range shown = overlap(range, valid_columns(g, plan.segment[s]));
    range = read_range(plan.segment[s], g.left, g.box_width, g.resampled_width, g.column_offset,
                       g.column_step, shown);
  }
  if (range.end > range.begin)
    range.begin = static_cast<int32_t>(larger(range.begin - 1, geometry[0].left));
  return range;
}

// Returns the region that the output depends on, or the first pixel if it depends on none.
inline Region read_region(const Plan& plan, const Geometry* geometry) {
  Region region = {read_rows(plan, geometry, {0, plan.segment[plan.segments - 1].height}),
                   read_columns(plan, geometry)};
  if (region.height() <= 0 || region.width() <= 0) region = {{0, 1}, {0, 1}};
  return region;
}

// Output rows `rows` of a plan of one segment, as a plan with the output [rows, width, C].
struct Band {
  Plan plan;
  Geometry geometry;
  EraseBox erase_box[kMaxErasures];

  Band(const Plan& full, const Sample& sample, Range rows)
      : plan(full), geometry(*sample.geometry) {
    const int32_t height = full.segment[0].height;
    const Range shown = overlap(rows, valid_rows(geometry, full.segment[0]));
    plan.segment[0].height = rows.end - rows.begin;
    geometry.valid_top = shown.end > shown.begin ? shown.begin - rows.begin : 0;
    geometry.valid_bottom = shown.end > shown.begin ? shown.end - rows.begin : 0;
    // In range for a valid row, and unused otherwise.
    geometry.row_offset =
        shown.end > shown.begin
            ? static_cast<int32_t>(mapped_index(geometry.row_offset, geometry.row_step, rows.begin))
            : 0;
    for (int32_t k = 0; k < full.segment[0].erasures; ++k) {
      const EraseBox& box = sample.erase_box[k];
      const Range erased = erased_range(box.top, box.height, height);
      erase_box[k] = {erased.begin - rows.begin, box.left, erased.end - erased.begin, box.width};
    }
  }
};

}  // namespace jaxkern::image

#endif  // JAXKERN_IMAGE_REGION_H_
