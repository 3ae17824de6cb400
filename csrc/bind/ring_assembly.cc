// Native batch assembly for Python, and its row copies alone. The arrays and producers of an
// assembly stay alive with it.
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bind/objects.h"
#include "bind/unlocked.h"
#include "ring/assembly.h"

namespace nb = nanobind;

namespace jaxkern::ring {
namespace {

using Records = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Parameters = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
using Target = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
// (address, rows, bytes from row to row) of an array, whose rows come behind the last one's
using Part = std::tuple<uintptr_t, int64_t, int64_t>;
// (at least one array, bytes of a row, Cast, capsule or None)
using Leaf = std::tuple<std::vector<Part>, int64_t, int32_t, nb::object>;

Producer producer_of(const nb::object& capsule) {
  if (capsule.is_none()) return {};
  if (!PyCapsule_IsValid(capsule.ptr(), JAXKERN_PRODUCER_CAPSULE)) {
    throw nb::type_error("a producer is wanted in a capsule named " JAXKERN_PRODUCER_CAPSULE
                         ", as core/producer.h says");
  }
  return Producer(*static_cast<const JaxkernProducer*>(
      PyCapsule_GetPointer(capsule.ptr(), JAXKERN_PRODUCER_CAPSULE)));
}

Rows rows_of(const std::vector<Part>& parts, int64_t bytes, int32_t cast) {
  Rows rows;
  rows.bytes = bytes;
  rows.cast = static_cast<Cast>(cast);
  for (const auto& [address, count, stride] : parts) {
    const auto* base = reinterpret_cast<const char*>(address);
    if (count < 0) throw nb::value_error("an array has a negative number of rows");
    if (rows.count == 0) {
      rows.base = base;
      rows.stride = stride;
    } else {
      rows.more.push_back({rows.count, base, stride});
    }
    rows.count += count;
  }
  return rows;
}

void make(Assembly* self, uint64_t ring, const std::vector<Leaf>& leaves, int64_t batch, bool mask,
          int64_t start, int64_t workers, const nb::object&, bool valid) {
  std::vector<AssemblyLeaf> sources;
  for (const auto& [parts, bytes, cast, capsule] : leaves) {
    sources.push_back({rows_of(parts, bytes, cast), producer_of(capsule)});
  }
  new (self) Assembly(Ring::find(ring), std::move(sources), {batch, mask, start, workers, valid});
}

int64_t submit(Assembly& self, const Records& records,
               const std::vector<std::vector<Parameters>>& operands) {
  std::vector<std::vector<AssemblyOperand>> given;
  for (const std::vector<Parameters>& leaf : operands) {
    given.emplace_back();
    for (const Parameters& array : leaf) {
      if (array.ndim() == 0) throw nb::value_error("a parameter array has no leading axis");
      int64_t bytes = static_cast<int64_t>(array.itemsize());
      for (size_t axis = 1; axis < array.ndim(); ++axis) {
        bytes *= static_cast<int64_t>(array.shape(axis));
      }
      given.back().push_back({array.data(), static_cast<int64_t>(array.shape(0)), bytes});
    }
  }
  Unlocked unlocked;
  return self.submit(records.data(), static_cast<int64_t>(records.shape(0)), given);
}

// Rows `records` of arrays to `out`, in this thread.
void gather_rows(const std::vector<Part>& parts, int64_t bytes, const Records& records,
                 const Target& out) {
  const Rows rows = rows_of(parts, bytes, static_cast<int32_t>(Cast::kNone));
  // The copy is checked: the caller's array may be written to meanwhile.
  const std::vector<int64_t> wanted(records.data(), records.data() + records.shape(0));
  const auto count = static_cast<int64_t>(wanted.size());
  int64_t all = 0;
  if (bytes < 0 || __builtin_mul_overflow(bytes, count, &all) ||
      all != static_cast<int64_t>(out.nbytes())) {
    throw nb::value_error(("out has " + std::to_string(out.nbytes()) + " bytes; " +
                           std::to_string(count) + " rows of " + std::to_string(bytes) +
                           " are wanted")
                              .c_str());
  }
  if (const int64_t at = first_outside(wanted.data(), count, rows.count); at >= 0) {
    throw nb::index_error(("row " + std::to_string(wanted[static_cast<size_t>(at)]) + " of " +
                           std::to_string(rows.count))
                              .c_str());
  }
  if (all == 0) return;
  const std::atomic<bool> stop{false};
  Unlocked unlocked;
  (void)gather(rows, wanted.data(), count, reinterpret_cast<char*>(out.data()), false, stop);
}

}  // namespace

void define_assembly(nb::module_& module) {
  nb::class_<Assembly>(module, "Assembly", nb::is_weak_referenceable())
      .def("__init__", &make, nb::arg("ring"), nb::arg("leaves"), nb::arg("batch"), nb::arg("mask"),
           nb::arg("start"), nb::arg("workers"), nb::arg("arrays"), nb::arg("valid") = false,
           nb::keep_alive<1, 8>())  // the threads read the arrays
      .def("submit", &submit, nb::arg("records"), nb::arg("operands"))
      .def(
          "wait_for_room",
          [](Assembly& self, int64_t batches, double timeout) {
            return self.wait_for_room(batches, deadline_in(timeout));
          },
          nb::arg("batches"), nb::arg("timeout"), nb::call_guard<Unlocked>())
      .def("finish", &Assembly::finish, nb::call_guard<Unlocked>())
      .def("close", &Assembly::close, nb::call_guard<Unlocked>())
      .def_prop_ro("closed", &Assembly::closed);
  module.def("gather_rows", &gather_rows, nb::arg("parts"), nb::arg("row_bytes"), nb::arg("rows"),
             nb::arg("out"));
}

}  // namespace jaxkern::ring
