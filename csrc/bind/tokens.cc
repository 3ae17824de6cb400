// Python bindings for packing token sequences. Rows are written without the GIL.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "bind/objects.h"
#include "bind/unlocked.h"
#include "tokens/packer.h"
#include "tokens/rows.h"

namespace nb = nanobind;

namespace jaxkern::tokens {
namespace {

using Integers = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Pieces = nb::ndarray<const int64_t, nb::shape<-1, 4>, nb::c_contig, nb::device::cpu>;
using Values = nb::ndarray<nb::ro, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Rows = nb::ndarray<nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Array = nb::ndarray<nb::numpy, int64_t>;

static_assert(sizeof(Piece) == 4 * sizeof(int64_t), "pieces go to Python as int64 [P, 4]");

Array to_numpy(const int64_t* data, size_t rows, size_t columns) {
  auto* copy = new int64_t[rows * columns + 1];
  std::copy(data, data + rows * columns, copy);
  nb::capsule owner(copy, [](void* p) noexcept { delete[] static_cast<int64_t*>(p); });
  if (columns == 1) return Array(copy, {rows}, owner);
  return Array(copy, {rows, columns}, owner);
}

Array to_numpy(const std::vector<Piece>& pieces) {
  return to_numpy(reinterpret_cast<const int64_t*>(pieces.data()), pieces.size(), 4);
}

std::vector<Piece> copy_pieces(const Pieces& pieces) {
  const auto* first = reinterpret_cast<const Piece*>(pieces.data());
  return std::vector<Piece>(first, first + pieces.shape(0));
}

int64_t add(Packer& self, const Integers& begins, const Integers& lengths, int64_t rows) {
  if (begins.shape(0) != lengths.shape(0)) {
    throw nb::value_error("begins and lengths differ in length");
  }
  return self.add(begins.data(), lengths.data(), static_cast<int64_t>(begins.shape(0)), rows);
}

// Returns the number of pieces of each open bin, and the pieces.
std::tuple<Array, Array> open_bins(const Packer& self) {
  std::vector<int64_t> sizes;
  std::vector<Piece> pieces;
  for (const std::vector<Piece>& bin : self.bins()) {
    if (bin.empty()) continue;
    sizes.push_back(static_cast<int64_t>(bin.size()));
    pieces.insert(pieces.end(), bin.begin(), bin.end());
  }
  return {to_numpy(sizes.data(), sizes.size(), 1), to_numpy(pieces)};
}

void restore(Packer& self, int64_t document, int64_t started, const Integers& sizes,
             const Pieces& pieces) {
  std::vector<std::vector<Piece>> bins;
  // Check copies: another thread may modify the caller's arrays.
  const std::vector<Piece> all = copy_pieces(pieces);
  const std::vector<int64_t> own_sizes(sizes.data(), sizes.data() + sizes.shape(0));
  auto next = all.begin();
  for (const int64_t size : own_sizes) {
    if (size < 1 || size > all.end() - next)
      throw nb::value_error("the sizes of the bins do not match the pieces");
    bins.emplace_back(next, next + size);
    next += size;
  }
  if (next != all.end()) throw nb::value_error("there are more pieces than the bins hold");
  self.restore(document, started, bins);
}

Kind kind_of(const nb::dlpack::dtype& dtype) {
  const auto code = static_cast<nb::dlpack::dtype_code>(dtype.code);
  if (dtype.lanes == 1 && code == nb::dlpack::dtype_code::Float && dtype.bits == 32) {
    return Kind::kFloat32;
  }
  const bool is_signed = code == nb::dlpack::dtype_code::Int;
  if (dtype.lanes == 1 && (is_signed || code == nb::dlpack::dtype_code::UInt)) {
    for (int32_t power = 0; power < 4; ++power) {
      if (dtype.bits == 8 << power) return static_cast<Kind>(2 * power + (is_signed ? 0 : 1));
    }
  }
  throw nb::type_error("expected token fields of integers or float32");
}

template <typename T>
T* marks_of(const std::optional<Rows>& array, int64_t rows, int64_t length) {
  if (!array) return nullptr;
  if (static_cast<int64_t>(array->shape(0)) != rows ||
      static_cast<int64_t>(array->shape(1)) != length || array->itemsize() != sizeof(T)) {
    throw nb::value_error("an array of marks has the wrong shape or dtype");
  }
  return static_cast<T*>(array->data());
}

std::tuple<int64_t, int64_t> write(const Pieces& pieces, const Integers& ends, int64_t length,
                                   const std::vector<std::tuple<Values, Rows, uint32_t>>& fields,
                                   const std::optional<Rows>& segment_ids,
                                   const std::optional<Rows>& positions,
                                   const std::optional<Rows>& loss_mask) {
  const auto rows = static_cast<int64_t>(ends.shape(0));
  std::vector<Field> checked_fields;
  for (const auto& [values, out, pad] : fields) {
    if (static_cast<int64_t>(out.shape(0)) != rows ||
        static_cast<int64_t>(out.shape(1)) != length || out.itemsize() != 4) {
      throw nb::value_error("the rows of a field have the wrong shape or dtype");
    }
    checked_fields.push_back({values.data(), static_cast<int64_t>(values.shape(0)),
                              kind_of(values.dtype()), pad, static_cast<uint32_t*>(out.data())});
  }
  const RowMarks marks{marks_of<int32_t>(segment_ids, rows, length),
                       marks_of<int32_t>(positions, rows, length),
                       marks_of<uint8_t>(loss_mask, rows, length)};
  std::string problem;
  BadValue bad;
  {
    Unlocked unlocked;
    // Copies: another thread may modify the caller's arrays between the check and the use.
    const std::vector<Piece> own = copy_pieces(pieces);
    const std::vector<int64_t> own_ends(ends.data(), ends.data() + rows);
    problem = check_rows(own.data(), static_cast<int64_t>(own.size()), own_ends.data(), rows,
                         length, checked_fields);
    if (problem.empty()) {
      bad = write_rows(own.data(), own_ends.data(), rows, length, checked_fields, marks);
    }
  }
  if (!problem.empty()) throw nb::value_error(problem.c_str());
  return {bad.field, bad.index};
}

}  // namespace

void define_packing(nb::module_& module) {
  // Without the GIL, the packer's own lock prevents concurrent calls.
  nb::class_<Packer>(module, "TokenPacker")
      .def(
          "__init__",
          [](Packer* self, int64_t length, int32_t method, int32_t overlong, int64_t bins) {
            new (self)
                Packer(length, static_cast<Method>(method), static_cast<Overlong>(overlong), bins);
          },
          nb::arg("length"), nb::arg("method"), nb::arg("overlong"), nb::arg("max_open_bins"))
      .def("add", &add, nb::arg("begins"), nb::arg("lengths"), nb::arg("rows"), nb::lock_self())
      .def("flush", &Packer::flush, nb::arg("rows"), nb::lock_self())
      .def(
          "take",
          [](Packer& self) {
            const PackedRows rows = self.take();
            return std::tuple<Array, Array>(to_numpy(rows.pieces),
                                            to_numpy(rows.ends.data(), rows.ends.size(), 1));
          },
          nb::lock_self(),
          nb::sig("def take(self) -> tuple[numpy.typing.NDArray, numpy.typing.NDArray]"),
          "Returns the complete rows: pieces int64 [P, 4] (document, start, count, begin), and "
          "ends "
          "int64 [rows], the end of each row among the pieces.")
      .def("skip", &Packer::skip, nb::lock_self())
      .def("restore", &restore, nb::arg("document"), nb::arg("started"), nb::arg("sizes"),
           nb::arg("pieces"), nb::lock_self())
      .def("open_bins", &open_bins, nb::lock_self())
      .def_prop_ro("document", &Packer::document, nb::lock_self())
      .def_prop_ro("started", &Packer::started, nb::lock_self())
      .def_prop_ro("complete", &Packer::complete, nb::lock_self())
      .def_prop_ro("open", &Packer::open, nb::lock_self());
  module.def(
      "bad_token_offset",
      [](const Integers& offsets, int64_t size) {
        Unlocked unlocked;
        return bad_offset(offsets.data(), static_cast<int64_t>(offsets.shape(0)), size);
      },
      nb::arg("offsets"), nb::arg("size"),
      "Returns the first position at which offsets decrease or leave [0, size], or -1.");
  module.def(
      "write_token_rows", &write, nb::arg("pieces"), nb::arg("ends"), nb::arg("length"),
      nb::arg("fields"), nb::arg("segment_ids").none(), nb::arg("positions").none(),
      nb::arg("loss_mask").none(),
      "Writes rows; returns the field and the index of the first value that does not fit int32, "
      "or -1.");
}

}  // namespace jaxkern::tokens
