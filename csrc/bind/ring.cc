// Python bindings of the ring. All waits release the GIL and can be interrupted.
#include "ring/ring.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bind/objects.h"
#include "bind/unlocked.h"
#include "ring/dlpack.h"
#include "ring/program_ring.h"
#include "ring/waiters.h"

namespace nb = nanobind;

namespace jaxkern::ring {
namespace {

using Bytes = nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>;

// Python's main thread checks for signals with this period while it waits.
constexpr std::chrono::milliseconds kSignalPeriod(50);
// A copy below this size is faster than handing over the GIL.
constexpr int64_t kShortCopyBytes = 64 << 10;

nb::tuple as_tuple(const Status& status) {
  return nb::make_tuple(static_cast<int>(status.outcome), status.message, status.index);
}

struct PythonSlot {
  std::shared_ptr<Ring> ring;
  Slot slot;
};

nb::object capsule(std::unique_ptr<Lease> lease, int code) {
  const auto bits = static_cast<uint8_t>(8 * lease->spec().item_size);
  DlManagedTensor* tensor =
      LeafTensor::make(std::move(lease), {static_cast<uint8_t>(code), bits, 1});
  PyObject* result = PyCapsule_New(tensor, "dltensor", [](PyObject* self) {
    if (!PyCapsule_IsValid(self, "dltensor")) return;  // a consumer owns the tensor
    auto* unused = static_cast<DlManagedTensor*>(PyCapsule_GetPointer(self, "dltensor"));
    unused->deleter(unused);
  });
  if (result == nullptr) {
    tensor->deleter(tensor);
    throw nb::python_error();
  }
  return nb::steal(result);
}

nb::object bytes(std::unique_ptr<Lease> lease) {
  const auto size = static_cast<size_t>(lease->spec().bytes);
  Lease* raw = lease.get();
  const nb::capsule owner(raw, [](void* self) noexcept { delete static_cast<Lease*>(self); });
  lease.release();
  return nb::cast(Bytes(raw->data(), {size}, owner));
}

// A read-only view of a Python buffer.
class Buffer {
 public:
  explicit Buffer(nb::handle object) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) throw nb::python_error();
  }
  Buffer(Buffer&& other) noexcept : view_(other.view_) { other.view_.obj = nullptr; }
  ~Buffer() {
    if (view_.obj != nullptr) PyBuffer_Release(&view_);
  }
  const void* data() const { return view_.buf; }
  int64_t bytes() const { return view_.len; }

 private:
  Py_buffer view_ = {};
};

// Counts the threads that wait in a ring, so that `close` can wait until they return.
struct Visitors {
  std::mutex mutex;
  std::condition_variable none;
  int count = 0;
};

class Visit {
 public:
  explicit Visit(Visitors& visitors) : visitors_(visitors) {
    std::lock_guard<std::mutex> lock(visitors_.mutex);
    ++visitors_.count;
  }
  Visit(const Visit&) = delete;
  ~Visit() {
    std::lock_guard<std::mutex> lock(visitors_.mutex);
    if (--visitors_.count == 0) visitors_.none.notify_all();
  }

 private:
  Visitors& visitors_;
};

// Rings share ownership of the memory: their last arrays may be freed in threads without the GIL.
struct PythonSlotMemory {
  std::shared_ptr<SlotMemory> memory = std::make_shared<SlotMemory>();
};

class PythonRing {
 public:
  PythonRing(const nb::list& leaves, int64_t capacity, int64_t start, uint64_t key,
             double pop_timeout, const nb::object& allocator, const PythonSlotMemory* memory) {
    std::vector<LeafSpec> specs;
    for (nb::handle leaf : leaves) {
      const auto [dtype, item_size, shape, code] =
          nb::cast<std::tuple<std::string, int64_t, std::vector<int64_t>, int>>(leaf);
      specs.push_back(leaf_spec(dtype, item_size, shape));
      codes_.push_back(code);
      bytes_ += specs.back().bytes;
    }
    Options options;
    options.capacity = capacity;
    options.start = start;
    options.key = key;
    if (!allocator.is_none()) {
      options.allocator = shared_object<Allocator>(nb::cast<nb::capsule>(allocator), kAllocator);
    }
    if (memory != nullptr) options.memory = memory->memory;
    if (pop_timeout >= 0) {
      options.pop_timeout = duration(pop_timeout);
    }
    ring_ = Ring::create(std::move(specs), options);
  }
  PythonRing(const PythonRing&) = delete;
  ~PythonRing() {
    ring_->close();
    if (ring_->forked()) (void)visitors_.release();  // its mutex may be locked forever
  }

  // Acquires a slot and copies `buffers` to it.
  nb::tuple put(int64_t index, const nb::list& buffers, double timeout, bool interruptible) {
    std::vector<Buffer> sources;
    for (nb::handle buffer : buffers) sources.emplace_back(buffer);
    const std::vector<LeafSpec>& leaves = ring_->leaves();
    if (sources.size() != leaves.size()) throw nb::value_error("expected one buffer per leaf");
    for (size_t i = 0; i < sources.size(); ++i) {
      if (sources[i].bytes() != leaves[i].bytes)
        throw nb::value_error("the size of a buffer differs from its leaf");
    }
    PythonSlot slot{ring_, {}};
    const Status status = wait(timeout, interruptible, [&](Deadline deadline) {
      return ring_->acquire(index, deadline, &slot.slot);
    });
    const auto copy = [&] {
      for (size_t i = 0; i < sources.size(); ++i) {
        std::memcpy(slot.slot.leaf(i), sources[i].data(), static_cast<size_t>(sources[i].bytes()));
      }
    };
    if (status.ok() && bytes_ <= kShortCopyBytes) {
      copy();
    } else if (status.ok()) {
      Unlocked unlocked;
      copy();
    }
    return with_slot(status, std::move(slot));
  }

  // Returns (outcome, message, index, slot); the slot is None unless the outcome is 0.
  nb::tuple acquire(int64_t index, double timeout, bool interruptible) {
    PythonSlot slot{ring_, {}};
    const Status status = wait(timeout, interruptible, [&](Deadline deadline) {
      return ring_->acquire(index, deadline, &slot.slot);
    });
    return with_slot(status, std::move(slot));
  }

  // Returns (outcome, message, index, record, leaves). A leaf is a DLPack capsule if `dlpack` is
  // true and its dtype has a DLPack code, otherwise an array of bytes. The statistics count
  // `zero_copy` of the leaves as delivered without a copy.
  nb::tuple take(double timeout, bool interruptible, bool dlpack, int64_t zero_copy) {
    Batch batch;
    const Status status = wait(timeout, interruptible,
                               [&](Deadline deadline) { return ring_->take(deadline, &batch); });
    nb::list leaves;
    if (batch) {
      ring_->count_hand_over(zero_copy, static_cast<int64_t>(batch.size()) - zero_copy);
    }
    for (size_t i = 0; batch && i < batch.size(); ++i) {
      std::unique_ptr<Lease> lease = batch.lease(i);
      leaves.append(dlpack && codes_[i] >= 0 ? capsule(std::move(lease), codes_[i])
                                             : bytes(std::move(lease)));
    }
    return nb::make_tuple(static_cast<int>(status.outcome), status.message, status.index,
                          status.record, leaves);
  }

  // Closes the ring and waits until no thread waits in it. Returns false at the deadline.
  bool close(double timeout) {
    const Deadline deadline = deadline_in(timeout);
    Unlocked unlocked;
    if (ring_->forked()) return true;
    ring_->close();
    std::unique_lock<std::mutex> lock(visitors_->mutex);
    const auto empty = [this] { return visitors_->count == 0; };
    if (deadline != kNoDeadline) return visitors_->none.wait_until(lock, deadline, empty);
    visitors_->none.wait(lock, empty);
    return true;
  }

  const std::shared_ptr<Ring>& ring() const { return ring_; }

 private:
  template <typename Call>
  Status wait(double timeout, bool interruptible, const Call& call) {
    // First without a wait: no need to release the GIL if the call can complete at once.
    Status status = call(kNow);
    if (status.outcome != Outcome::kTimeout) return status;
    const Deadline deadline = deadline_in(timeout);
    for (;;) {
      Deadline next = deadline;
      if (interruptible) next = std::min(next, Deadline(Clock::now() + kSignalPeriod));
      {
        const Visit visit(*visitors_);  // ends before signal handlers run, which may close the ring
        Unlocked unlocked;
        status = call(next);
      }
      if (status.outcome != Outcome::kTimeout || next == deadline) return status;
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
    }
  }

  static nb::tuple with_slot(const Status& status, PythonSlot&& slot) {
    nb::object object = status.ok() ? nb::cast(std::move(slot)) : nb::none();
    return nb::make_tuple(static_cast<int>(status.outcome), status.message, status.index, object);
  }

  std::shared_ptr<Ring> ring_;
  std::vector<int> codes_;  // [leaf] DLPack type codes; -1 if the dtype has none
  int64_t bytes_ = 0;
  std::unique_ptr<Visitors> visitors_ = std::make_unique<Visitors>();
};

nb::dict statistics(const PythonRing& self) {
  const Statistics counts = self.ring()->statistics();
  nb::dict result;
  result["batches"] = counts.batches;
  result["bytes"] = counts.bytes;
  result["failures"] = counts.failures;
  result["zero_copy"] = counts.zero_copy;
  result["copied"] = counts.copied;
  result["producer_wait"] = counts.producer_wait;
  result["consumer_wait"] = counts.consumer_wait;
  result["elapsed"] = counts.elapsed;
  result["occupancy"] = nb::tuple(nb::cast(counts.occupancy));
  result["ready"] = counts.ready;
  result["filling"] = counts.filling;
  result["held"] = counts.held;
  result["verdict"] = counts.verdict();
  return result;
}

}  // namespace

void define_ring(nb::module_& module) {
  // A daemon thread may hold a ring at interpreter exit; such rings are closed, not leaked.
  nb::set_leak_warnings(false);
  module.def(
      "ring_access", [] { return nb::capsule(&program_access(), kProgramAccess); },
      nb::sig("def ring_access() -> object"), "Return functions of rings, for the CUDA module.");
  module.def(
      "join_waiters", [](double timeout) { return join_waiters(deadline_in(timeout)); },
      nb::arg("timeout"), nb::call_guard<Unlocked>(),
      "Joins the threads in which programs wait for rings; returns False if some still wait.");
  // A commit moves from the slot: without the GIL, the slot's own lock prevents two threads from
  // doing so at once. The ring has its own mutex.
  nb::class_<PythonSlot>(module, "RingSlot")
      .def_prop_ro(
          "index", [](const PythonSlot& self) { return self.slot.index(); }, nb::lock_self())
      .def(
          "leaves",
          [](const PythonSlot& self) {
            nb::list leaves;
            for (size_t i = 0; i < self.slot.size(); ++i) {
              auto* memory = new BlockRef(self.slot.block(i));
              const nb::capsule owner(
                  memory, [](void* block) noexcept { delete static_cast<BlockRef*>(block); });
              leaves.append(nb::cast(Bytes((*memory)->data(), {(*memory)->bytes()}, owner)));
            }
            return leaves;
          },
          nb::lock_self(),
          "Returns the memory to fill, as bytes. It must not be written after the commit.")
      .def(
          "abandon", [](PythonSlot& self) { self.slot.abandon(); }, nb::lock_self(),
          "Returns the slot without a batch.")
      .def(
          "commit",
          [](PythonSlot& self) { return as_tuple(self.ring->commit(std::move(self.slot))); },
          nb::lock_self(), "Delivers the batch; returns (outcome, message, index).");

  nb::class_<PythonSlotMemory>(module, "SlotMemory").def(nb::init<>());

  nb::class_<PythonRing>(module, "Ring", nb::is_weak_referenceable())
      .def(nb::init<const nb::list&, int64_t, int64_t, uint64_t, double, const nb::object&,
                    const PythonSlotMemory*>(),
           nb::arg("leaves"), nb::arg("capacity"), nb::arg("start"), nb::arg("key"),
           nb::arg("pop_timeout"), nb::arg("allocator").none(), nb::arg("memory") = nb::none(),
           "leaves: (dtype, item size, shape, DLPack type code or -1)")
      .def("put", &PythonRing::put, nb::arg("index"), nb::arg("buffers"), nb::arg("timeout"),
           nb::arg("interruptible"))
      .def("acquire", &PythonRing::acquire, nb::arg("index"), nb::arg("timeout"),
           nb::arg("interruptible"))
      .def("take", &PythonRing::take, nb::arg("timeout"), nb::arg("interruptible"),
           nb::arg("dlpack"), nb::arg("zero_copy"))
      .def(
          "fail",
          [](PythonRing& self, int64_t index, const std::string& message) {
            return as_tuple(self.ring()->fail(index, message));
          },
          nb::arg("index"), nb::arg("message"))
      .def(
          "fail_slot",
          [](PythonRing& self, PythonSlot& slot, const std::string& message) {
            return as_tuple(self.ring()->fail(std::move(slot.slot), message));
          },
          nb::arg("slot").lock(), nb::arg("message"))
      .def(
          "finish",
          [](PythonRing& self, int64_t end) { return as_tuple(self.ring()->finish(end)); },
          nb::arg("end"))
      .def("close", &PythonRing::close, nb::arg("timeout"))
      .def_prop_ro("closed", [](const PythonRing& self) { return self.ring()->closed(); })
      .def_prop_ro("forked", [](const PythonRing& self) { return self.ring()->forked(); })
      .def_prop_ro("delivered", [](const PythonRing& self) { return self.ring()->delivered(); })
      .def("statistics", &statistics);
}

}  // namespace jaxkern::ring
