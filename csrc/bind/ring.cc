// The ring for Python: every wait is without the interpreter's lock, and can be interrupted.
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

// Python's main thread looks for signals this often while it waits; no other thread has to.
constexpr std::chrono::milliseconds kSignalPeriod(50);
// Below this size a copy is over before another thread has taken the interpreter's lock.
constexpr int64_t kShortCopy = 64 << 10;

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
  PyObject* made = PyCapsule_New(tensor, "dltensor", [](PyObject* self) {
    if (!PyCapsule_IsValid(self, "dltensor")) return;  // somebody has taken the tensor over
    auto* unused = static_cast<DlManagedTensor*>(PyCapsule_GetPointer(self, "dltensor"));
    unused->deleter(unused);
  });
  if (made == nullptr) {
    tensor->deleter(tensor);
    throw nb::python_error();
  }
  return nb::steal(made);
}

nb::object bytes(std::unique_ptr<Lease> lease) {
  const auto size = static_cast<size_t>(lease->spec().bytes);
  Lease* kept = lease.get();
  const nb::capsule owner(kept, [](void* self) noexcept { delete static_cast<Lease*>(self); });
  lease.release();
  return nb::cast(Bytes(kept->data(), {size}, owner));
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

// The threads that wait in a ring, so that `close` can see them leave.
struct Visitors {
  std::mutex mutex;
  std::condition_variable left;
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
    if (--visitors_.count == 0) visitors_.left.notify_all();
  }

 private:
  Visitors& visitors_;
};

// Rings share the memory itself: their last arrays may go in threads without the interpreter.
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
    if (ring_->forked()) (void)visitors_.release();  // the parent's threads may hold its lock
  }

  // As `acquire`; the slot holds a copy of `buffers`.
  nb::tuple put(int64_t index, const nb::list& buffers, double timeout, bool interruptible) {
    std::vector<Buffer> sources;
    for (nb::handle buffer : buffers) sources.emplace_back(buffer);
    const std::vector<LeafSpec>& leaves = ring_->leaves();
    if (sources.size() != leaves.size()) throw nb::value_error("one buffer a leaf is wanted");
    for (size_t i = 0; i < sources.size(); ++i) {
      if (sources[i].bytes() != leaves[i].bytes) throw nb::value_error("a buffer has another size");
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
    if (status.ok() && bytes_ <= kShortCopy) {
      copy();
    } else if (status.ok()) {
      Unlocked unlocked;
      copy();
    }
    return with_slot(status, std::move(slot));
  }

  // (outcome, message, index), and a slot where the outcome is 0.
  nb::tuple acquire(int64_t index, double timeout, bool interruptible) {
    PythonSlot slot{ring_, {}};
    const Status status = wait(timeout, interruptible, [&](Deadline deadline) {
      return ring_->acquire(index, deadline, &slot.slot);
    });
    return with_slot(status, std::move(slot));
  }

  // (outcome, message, index, record, leaves): a leaf is a DLPack capsule where its dtype has a
  // code, else, or with `dlpack` false, an array of bytes.
  nb::tuple take(double timeout, bool interruptible, bool dlpack) {
    Batch batch;
    const Status status = wait(timeout, interruptible,
                               [&](Deadline deadline) { return ring_->take(deadline, &batch); });
    nb::list leaves;
    for (size_t i = 0; batch && i < batch.size(); ++i) {
      std::unique_ptr<Lease> lease = batch.lease(i);
      leaves.append(dlpack && codes_[i] >= 0 ? capsule(std::move(lease), codes_[i])
                                             : bytes(std::move(lease)));
    }
    return nb::make_tuple(static_cast<int>(status.outcome), status.message, status.index,
                          status.record, leaves);
  }

  // Wakes everybody, then lets those who waited leave. False when some are still here.
  bool close(double timeout) {
    const Deadline deadline = deadline_in(timeout);
    Unlocked unlocked;
    if (ring_->forked()) return true;
    ring_->close();
    std::unique_lock<std::mutex> lock(visitors_->mutex);
    const auto left = [this] { return visitors_->count == 0; };
    if (deadline != kNoDeadline) return visitors_->left.wait_until(lock, deadline, left);
    visitors_->left.wait(lock, left);
    return true;
  }

  const std::shared_ptr<Ring>& ring() const { return ring_; }

 private:
  template <typename Call>
  Status wait(double timeout, bool interruptible, const Call& call) {
    // What is there already costs no hand-over of the interpreter's lock.
    Status status = call(kNow);
    if (status.outcome != Outcome::kTimeout) return status;
    const Deadline deadline = deadline_in(timeout);
    for (;;) {
      Deadline next = deadline;
      if (interruptible) next = std::min(next, Deadline(Clock::now() + kSignalPeriod));
      {
        const Visit visit(*visitors_);  // ends before a signal's handler, which may close the ring
        Unlocked unlocked;
        status = call(next);
      }
      if (status.outcome != Outcome::kTimeout || next == deadline) return status;
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
    }
  }

  static nb::tuple with_slot(const Status& status, PythonSlot&& slot) {
    nb::object held = status.ok() ? nb::cast(std::move(slot)) : nb::none();
    return nb::make_tuple(static_cast<int>(status.outcome), status.message, status.index, held);
  }

  std::shared_ptr<Ring> ring_;
  std::vector<int> codes_;  // [leaf] DLPack's type codes; -1 where the dtype has none
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
  // A ring that a daemon thread still holds when the interpreter ends is closed, not leaked.
  nb::set_leak_warnings(false);
  module.def(
      "ring_access", [] { return nb::capsule(&program_access(), kProgramAccess); },
      nb::sig("def ring_access() -> object"), "The rings, for the CUDA module.");
  module.def(
      "join_waiters", [](double timeout) { return join_waiters(deadline_in(timeout)); },
      nb::arg("timeout"), nb::call_guard<Unlocked>(),
      "Joins the threads in which programs waited for rings; False where some still wait.");
  // A slot moves away when it is committed: without the interpreter's lock, its own one keeps two
  // threads from doing that at once. The ring locks itself.
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
                  memory, [](void* kept) noexcept { delete static_cast<BlockRef*>(kept); });
              leaves.append(nb::cast(Bytes((*memory)->data(), {(*memory)->bytes()}, owner)));
            }
            return leaves;
          },
          nb::lock_self(), "The memory to fill, as bytes; it must not be written after the commit.")
      .def(
          "abandon", [](PythonSlot& self) { self.slot.abandon(); }, nb::lock_self(),
          "Gives the slot back.")
      .def(
          "commit",
          [](PythonSlot& self) { return as_tuple(self.ring->commit(std::move(self.slot))); },
          nb::lock_self(), "Delivers the batch: (outcome, message, index).");

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
           nb::arg("dlpack"))
      .def(
          "count_hand_over",
          [](PythonRing& self, int64_t zero_copy, int64_t copied) {
            self.ring()->count_hand_over(zero_copy, copied);
          },
          nb::arg("zero_copy"), nb::arg("copied"))
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
