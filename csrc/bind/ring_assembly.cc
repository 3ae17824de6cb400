// Python bindings of native batch assembly and of its row copies. An assembly keeps its arrays and
// producers alive.
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bind/objects.h"
#include "bind/unlocked.h"
#include "ring/assembly.h"
#include "ring/permutation.h"

namespace nb = nanobind;

namespace jaxkern::ring {
namespace {

using Records = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Parameters = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
using Target = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
// The bytes of an array's rows: [rows, bytes of a row], any stride between rows.
using Part = nb::ndarray<const uint8_t, nb::ndim<2>, nb::device::cpu>;
// (arrays of consecutive rows, Cast, producer capsule or None)
using Leaf = std::tuple<std::vector<Part>, int32_t, nb::object>;

Producer producer_of(const nb::object& capsule) {
  if (capsule.is_none()) return {};
  if (!PyCapsule_IsValid(capsule.ptr(), JAXKERN_PRODUCER_CAPSULE)) {
    throw nb::type_error("expected a producer in a capsule named " JAXKERN_PRODUCER_CAPSULE
                         "; see core/producer.h");
  }
  return Producer(*static_cast<const JaxkernProducer*>(
      PyCapsule_GetPointer(capsule.ptr(), JAXKERN_PRODUCER_CAPSULE)));
}

Rows rows_of(const std::vector<Part>& parts, int32_t cast) {
  if (parts.empty()) throw nb::value_error("expected at least one array of rows, got none");
  Rows rows;
  rows.bytes = static_cast<int64_t>(parts[0].shape(1));
  rows.cast = static_cast<Cast>(cast);
  for (const Part& part : parts) {
    const auto count = static_cast<int64_t>(part.shape(0));
    const auto bytes = static_cast<int64_t>(part.shape(1));
    if (bytes != rows.bytes) {
      throw nb::value_error(("expected rows of " + std::to_string(rows.bytes) +
                             " bytes in every array, got " + std::to_string(bytes))
                                .c_str());
    }
    if (count > 0 && bytes > 1 && part.stride(1) != 1) {
      throw nb::value_error(("expected the bytes of a row next to each other, got a stride of " +
                             std::to_string(part.stride(1)))
                                .c_str());
    }
    const auto* base = reinterpret_cast<const char*>(part.data());
    const int64_t stride = count > 1 ? part.stride(0) : 0;
    if (rows.count == 0) {
      rows.base = base;
      rows.stride = stride;
    } else {
      rows.more.push_back({rows.count, base, stride});
    }
    if (__builtin_add_overflow(rows.count, count, &rows.count)) {
      throw nb::value_error("expected fewer than 2^63 rows in all arrays together");
    }
  }
  return rows;
}

// An assembly, and the arrays that its threads read until it is destroyed.
class PythonAssembly {
 public:
  PythonAssembly(uint64_t ring, const std::vector<Leaf>& leaves, int64_t batch, bool mask,
                 int64_t start, int64_t workers, bool valid)
      : arrays_(arrays_of(leaves)),
        assembly_(Ring::find(ring), sources_of(leaves), {batch, mask, start, workers, valid}) {}
  Assembly& native() { return assembly_; }

 private:
  static std::vector<Part> arrays_of(const std::vector<Leaf>& leaves) {
    std::vector<Part> arrays;
    for (const Leaf& leaf : leaves) {
      arrays.insert(arrays.end(), std::get<0>(leaf).begin(), std::get<0>(leaf).end());
    }
    return arrays;
  }
  static std::vector<AssemblyLeaf> sources_of(const std::vector<Leaf>& leaves) {
    std::vector<AssemblyLeaf> sources;
    for (const auto& [parts, cast, capsule] : leaves) {
      sources.push_back({rows_of(parts, cast), producer_of(capsule)});
    }
    return sources;
  }

  const std::vector<Part> arrays_;  // destroyed last
  Assembly assembly_;
};

int64_t submit(PythonAssembly& self, const Records& records,
               const std::vector<std::vector<Parameters>>& operands) {
  std::vector<std::vector<AssemblyOperand>> parameters;
  for (const std::vector<Parameters>& leaf : operands) {
    parameters.emplace_back();
    for (const Parameters& array : leaf) {
      if (array.ndim() == 0) throw nb::value_error("a parameter array has no leading axis");
      int64_t bytes = static_cast<int64_t>(array.itemsize());
      for (size_t axis = 1; axis < array.ndim(); ++axis) {
        bytes *= static_cast<int64_t>(array.shape(axis));
      }
      parameters.back().push_back({array.data(), static_cast<int64_t>(array.shape(0)), bytes});
    }
  }
  Unlocked unlocked;
  return self.native().submit(records.data(), static_cast<int64_t>(records.shape(0)), parameters);
}

// Copies rows `records` of arrays to `out`, in this thread.
void gather_rows(const std::vector<Part>& parts, const Records& records, const Target& out) {
  const Rows rows = rows_of(parts, static_cast<int32_t>(Cast::kNone));
  const int64_t bytes = rows.bytes;
  // Check the copy: another thread may modify the caller's array.
  const std::vector<int64_t> indices(records.data(), records.data() + records.shape(0));
  const auto count = static_cast<int64_t>(indices.size());
  int64_t all = 0;
  if (__builtin_mul_overflow(bytes, count, &all) || all != static_cast<int64_t>(out.nbytes())) {
    throw nb::value_error(("out has " + std::to_string(out.nbytes()) + " bytes; expected " +
                           std::to_string(count) + " rows of " + std::to_string(bytes))
                              .c_str());
  }
  if (const int64_t at = first_outside(indices.data(), count, rows.count); at >= 0) {
    throw nb::index_error(("row " + std::to_string(indices[static_cast<size_t>(at)]) +
                           " is out of range; the arrays have " + std::to_string(rows.count) +
                           " rows")
                              .c_str());
  }
  if (all == 0) return;
  const std::atomic<bool> stop{false};
  Unlocked unlocked;
  (void)gather(rows, indices.data(), count, reinterpret_cast<char*>(out.data()), false, stop);
}

using Values = nb::ndarray<int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Replaces `values`, which must be in [0, count), by their images or preimages.
void permute_values(const Values& values, uint64_t count, uint64_t a, uint64_t b,
                    const std::vector<uint64_t>& keys, bool inverse) {
  Permutation permutation{count, a, b, {}};
  if (a == 0 || b == 0 || keys.size() != kPermutationRounds) {
    throw nb::value_error("expected positive sides and 8 keys");
  }
  std::copy(keys.begin(), keys.end(), permutation.keys);
  Unlocked unlocked;
  permute(permutation, inverse, values.data(), static_cast<int64_t>(values.shape(0)));
}

}  // namespace

void define_assembly(nb::module_& module) {
  nb::class_<PythonAssembly>(module, "Assembly", nb::is_weak_referenceable())
      .def(
          "__init__",
          [](PythonAssembly* self, uint64_t ring, const std::vector<Leaf>& leaves, int64_t batch,
             bool mask, int64_t start, int64_t workers, const nb::object&, bool valid) {
            new (self) PythonAssembly(ring, leaves, batch, mask, start, workers, valid);
          },
          nb::arg("ring"), nb::arg("leaves").noconvert(), nb::arg("batch"), nb::arg("mask"),
          nb::arg("start"), nb::arg("workers"), nb::arg("producers"), nb::arg("valid") = false,
          nb::keep_alive<1, 8>())  // a producer's rows may point to memory that it owns
      .def("submit", &submit, nb::arg("records"), nb::arg("operands"))
      .def(
          "wait_for_room",
          [](PythonAssembly& self, int64_t batches, double timeout) {
            return self.native().wait_for_room(batches, deadline_in(timeout));
          },
          nb::arg("batches"), nb::arg("timeout"), nb::call_guard<Unlocked>())
      .def(
          "finish", [](PythonAssembly& self) { self.native().finish(); },
          nb::call_guard<Unlocked>())
      .def(
          "close", [](PythonAssembly& self) { self.native().close(); }, nb::call_guard<Unlocked>())
      .def_prop_ro("closed", [](PythonAssembly& self) { return self.native().closed(); });
  module.def("permute", &permute_values, nb::arg("values").noconvert(), nb::arg("count"),
             nb::arg("a"), nb::arg("b"), nb::arg("keys"), nb::arg("inverse"));
  module.def("gather_rows", &gather_rows, nb::arg("parts").noconvert(), nb::arg("rows"),
             nb::arg("out").noconvert());
}

}  // namespace jaxkern::ring
