// Native batch assembly for Python. The arrays and producers stay alive with the assembly.
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bind/objects.h"
#include "ring/assembly.h"

namespace nb = nanobind;

namespace jaxkern::ring {
namespace {

using Records = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Parameters = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
// (address, rows, bytes from row to row, bytes of a row, Cast, capsule or None)
using Leaf = std::tuple<uintptr_t, int64_t, int64_t, int64_t, int32_t, nb::object>;

Producer producer_of(const nb::object& capsule) {
  if (capsule.is_none()) return {};
  if (!PyCapsule_IsValid(capsule.ptr(), JAXKERN_PRODUCER_CAPSULE)) {
    throw nb::type_error("a producer is wanted in a capsule named " JAXKERN_PRODUCER_CAPSULE
                         ", as core/producer.h says");
  }
  return Producer(*static_cast<const JaxkernProducer*>(
      PyCapsule_GetPointer(capsule.ptr(), JAXKERN_PRODUCER_CAPSULE)));
}

class PythonAssembly {
 public:
  PythonAssembly(uint64_t ring, const std::vector<Leaf>& leaves, int64_t batch, bool mask,
                 int64_t start, int64_t workers, nb::object arrays)
      : arrays_(std::move(arrays)) {
    std::vector<AssemblyLeaf> sources;
    for (const auto& [address, rows, stride, bytes, cast, capsule] : leaves) {
      sources.push_back(
          {{reinterpret_cast<const char*>(address), rows, stride, bytes, static_cast<Cast>(cast)},
           producer_of(capsule)});
    }
    assembly_ = std::make_unique<Assembly>(Ring::find(ring), std::move(sources),
                                           AssemblyOptions{batch, mask, start, workers});
  }

  int64_t submit(const Records& records, const std::vector<std::vector<Parameters>>& operands) {
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
    nb::gil_scoped_release unlocked;
    return assembly_->submit(records.data(), static_cast<int64_t>(records.shape(0)), given);
  }

  bool wait_for_room(int64_t batches, double timeout) {
    const Deadline deadline =
        timeout >= 0 ? Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                          std::chrono::duration<double>(std::min(timeout, 1e9)))
                     : kNoDeadline;
    nb::gil_scoped_release unlocked;
    return assembly_->wait_for_room(batches, deadline);
  }

  void finish() {
    nb::gil_scoped_release unlocked;
    assembly_->finish();
  }

  void close() {
    nb::gil_scoped_release unlocked;
    assembly_->close();
  }

  bool closed() const { return assembly_->closed(); }

 private:
  nb::object arrays_;  // the threads read them: after the assembly
  std::unique_ptr<Assembly> assembly_;
};

}  // namespace

void define_assembly(nb::module_& module) {
  nb::class_<PythonAssembly>(module, "Assembly", nb::is_weak_referenceable())
      .def(nb::init<uint64_t, const std::vector<Leaf>&, int64_t, bool, int64_t, int64_t,
                    nb::object>(),
           nb::arg("ring"), nb::arg("leaves"), nb::arg("batch"), nb::arg("mask"), nb::arg("start"),
           nb::arg("workers"), nb::arg("arrays"))
      .def("submit", &PythonAssembly::submit, nb::arg("records"), nb::arg("operands"))
      .def("wait_for_room", &PythonAssembly::wait_for_room, nb::arg("batches"), nb::arg("timeout"))
      .def("finish", &PythonAssembly::finish)
      .def("close", &PythonAssembly::close)
      .def_prop_ro("closed", &PythonAssembly::closed);
}

}  // namespace jaxkern::ring
