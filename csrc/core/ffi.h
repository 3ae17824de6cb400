// Checks that a handler makes before it touches memory, and the batch axes of the op recipe.
//
// A handler names each operand once. The first problem is recorded and returned as a status:
//
// clang-format off
//   ffi::Error Scale(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer s,
//                    ffi::Result<ffi::AnyBuffer> out) {
//     Call call("my.scale", *out, /*core_rank=*/1);            // out [batch..., n]
//     const int64_t n = call.ok() ? call.result_size(0) : 0;
//     const Operand xs = call.operand("x", x, ffi::F32, {n});  // x [batch..., n], sizes may be 1
//     const Operand ss = call.operand("s", s, ffi::F32, {});   // s [batch...]
//     const Operand outs = call.result("out", *out, ffi::F32, {n});
//     if (!call.ok()) return call.error();
//     for (int64_t i = 0; i < call.samples(); ++i) { /* outs.at<float>(i) from xs, ss */ }
//     return ffi::Error::Success();
//   }
// clang-format on
#ifndef JAXKERN_CORE_FFI_H_
#define JAXKERN_CORE_FFI_H_

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <initializer_list>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "batch.h"
#include "huge_pages.h"
#include "parallel.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wreturn-type"
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include "xla/ffi/api/ffi.h"
#pragma GCC diagnostic pop

namespace jaxkern {

namespace ffi = xla::ffi;

constexpr int64_t kAnySize = -1;
constexpr size_t kMaxCoreRank = 8;
// The largest alignment that XLA's scratch allocator accepts.
constexpr size_t kScratchAlignment = 16;

inline std::string shape_text(ffi::AnyBuffer::Dimensions dimensions) {
  std::string text = "[";
  for (size_t i = 0; i < dimensions.size(); ++i) {
    text += (i ? ", " : "") + std::to_string(dimensions[i]);
  }
  return text + "]";
}

// The name of a dtype in NumPy and ml_dtypes.
inline const char* dtype_text(ffi::DataType dtype) {
  switch (dtype) {
    case ffi::PRED:
      return "bool";
    case ffi::U8:
      return "uint8";
    case ffi::S8:
      return "int8";
    case ffi::U16:
      return "uint16";
    case ffi::S16:
      return "int16";
    case ffi::U32:
      return "uint32";
    case ffi::S32:
      return "int32";
    case ffi::U64:
      return "uint64";
    case ffi::S64:
      return "int64";
    case ffi::F16:
      return "float16";
    case ffi::BF16:
      return "bfloat16";
    case ffi::F32:
      return "float32";
    case ffi::F64:
      return "float64";
    case ffi::C64:
      return "complex64";
    case ffi::C128:
      return "complex128";
    case ffi::F8E5M2:
      return "float8_e5m2";
    case ffi::F8E4M3:
      return "float8_e4m3";
    case ffi::F8E4M3FN:
      return "float8_e4m3fn";
    case ffi::F8E4M3B11FNUZ:
      return "float8_e4m3b11fnuz";
    case ffi::F8E5M2FNUZ:
      return "float8_e5m2fnuz";
    case ffi::F8E4M3FNUZ:
      return "float8_e4m3fnuz";
    case ffi::F8E3M4:
      return "float8_e3m4";
    case ffi::F8E8M0FNU:
      return "float8_e8m0fnu";
    default:
      return "another dtype";
  }
}

// One checked operand: its memory, dtype, core shape and the offset of each sample.
struct Operand {
  char* data = nullptr;
  ffi::DataType dtype = ffi::DataType::INVALID;
  size_t item_size = 0;
  int64_t core[kMaxCoreRank] = {};
  BatchMap map;

  template <typename T>
  T* at(int64_t sample) const {
    return reinterpret_cast<T*>(data + map.offset(sample) * static_cast<int64_t>(item_size));
  }
};

class Call {
 public:
  // The batch shape is the result's leading axes, all but the last `core_rank`.
  Call(const char* op, ffi::AnyBuffer result, size_t core_rank) : op_(op) {
    const auto dimensions = result.dimensions();
    if (dimensions.size() < core_rank || core_rank > kMaxCoreRank ||
        dimensions.size() - core_rank > static_cast<size_t>(kMaxBatchRank)) {
      fail("result",
           std::to_string(core_rank) + " axes after at most " + std::to_string(kMaxBatchRank) +
               " batch axes",
           "shape " + shape_text(dimensions));
      return;
    }
    rank_ = dimensions.size() - core_rank;
    for (size_t i = 0; i < rank_; ++i) {
      batch_[i] = dimensions[i];
    }
    for (size_t i = 0; i < core_rank; ++i) core_[i] = dimensions[rank_ + i];
    // If one axis has size 0, the product of the other axes may overflow.
    const bool empty = std::find(batch_, batch_ + rank_, 0) != batch_ + rank_;
    samples_ = empty ? 0 : 1;
    for (size_t i = 0; i < rank_; ++i) {
      if (__builtin_mul_overflow(samples_, batch_[i], &samples_)) {
        fail("result", "fewer than 2^63 samples", "shape " + shape_text(dimensions));
        return;
      }
    }
  }

  // Checks an operand. A dtype of INVALID and a size of kAnySize accept anything; the caller then
  // checks them.
  Operand operand(const char* name, ffi::AnyBuffer buffer, ffi::DataType dtype,
                  std::initializer_list<int64_t> core) {
    Operand result;
    if (!ok()) return result;
    const auto dimensions = buffer.dimensions();
    if (dtype != ffi::DataType::INVALID && buffer.element_type() != dtype) {
      fail(std::string("operand '") + name + "'", std::string("dtype ") + dtype_text(dtype),
           dtype_text(buffer.element_type()));
      return result;
    }
    // An operand without any batch axis is the same for every sample.
    const size_t batch_axes = dimensions.size() == core.size() ? 0 : rank_;
    bool matches = dimensions.size() == batch_axes + core.size() && core.size() <= kMaxCoreRank;
    for (size_t i = 0; matches && i < batch_axes; ++i) {
      matches = dimensions[i] == 1 || dimensions[i] == batch_[i];
    }
    size_t axis = 0;
    for (int64_t expected : core) {
      if (!matches) break;
      result.core[axis] = dimensions[batch_axes + axis];
      matches = expected == kAnySize || expected == result.core[axis];
      ++axis;
    }
    if (!matches) {
      fail(std::string("operand '") + name + "'", "shape " + expected_shape_text(core),
           shape_text(dimensions));
      return result;
    }
    result.data = static_cast<char*>(buffer.untyped_data());
    result.dtype = buffer.element_type();
    result.item_size = ffi::ByteWidth(result.dtype);
    // The product of a buffer's axes can overflow only if one of them is 0; strides are unused
    // then.
    const bool empty = std::find(dimensions.begin(), dimensions.end(), 0) != dimensions.end();
    int64_t stride = empty ? 0 : 1;
    for (size_t i = 0; i < core.size(); ++i) stride *= result.core[i];
    result.map.rank = static_cast<int32_t>(rank_);
    for (size_t i = rank_; i-- > 0;) {
      result.map.size[i] = batch_[i];
      result.map.stride[i] = batch_axes == 0 || dimensions[i] == 1 ? 0 : stride;
      if (batch_axes != 0) stride *= dimensions[i];
    }
    return result;
  }

  // Checks a result. Unlike an operand's, its batch axes must have their full size.
  Operand result(const char* name, ffi::AnyBuffer buffer, ffi::DataType dtype,
                 std::initializer_list<int64_t> core) {
    Operand checked = operand(name, buffer, dtype, core);
    const bool shared = buffer.dimensions().size() != rank_ + core.size();
    for (size_t i = 0; ok() && i < rank_; ++i) {
      if (shared || buffer.dimensions()[i] != batch_[i]) {
        fail(std::string("result '") + name + "'", "shape " + expected_shape_text(core),
             shape_text(buffer.dimensions()));
      }
    }
    return checked;
  }

  // Records a problem: "op: name: expected X, got Y". Only the first one is kept.
  void fail(const std::string& name, const std::string& expected, const std::string& got) {
    fail(name + ": expected " + expected + ", got " + got);
  }
  void fail(const std::string& text) {
    if (ok()) message_ = op_ + ": " + text;
  }
  bool ok() const { return message_.empty(); }
  ffi::Error error() const {
    return ok() ? ffi::Error::Success() : ffi::Error::InvalidArgument(message_);
  }

  const std::string& op() const { return op_; }
  int64_t samples() const { return samples_; }
  int64_t result_size(size_t axis) const { return core_[axis]; }

 private:
  std::string expected_shape_text(std::initializer_list<int64_t> core) const {
    std::string text = "[";
    for (size_t i = 0; i < rank_; ++i) text += (i ? ", " : "") + std::to_string(batch_[i]) + "|1";
    for (int64_t size : core) {
      text += (text.size() > 1 ? ", " : "") + (size == kAnySize ? "any" : std::to_string(size));
    }
    return text + "]";
  }

  std::string op_, message_;
  size_t rank_ = 0;
  int64_t batch_[kMaxBatchRank] = {}, core_[kMaxCoreRank] = {};
  int64_t samples_ = 1;
};

// A handler whose errors name the target if a call does not match its binding. XLA's own text names
// neither the target nor, for a wrong dtype, the attribute. An exception, such as std::bad_alloc,
// becomes an error status, because an exception that reaches XLA's frames ends the process.
template <XLA_FFI_Handler* handler>
struct NamedHandler {
  static inline const char* target = "";  // set before registration

  static XLA_FFI_Error* call(XLA_FFI_CallFrame* frame) {
    try {
      XLA_FFI_Error* error = handler(frame);
      return error == nullptr ? nullptr : binding_error(frame, error);
    } catch (const std::bad_alloc&) {
      return exception_error(frame, "out of memory", XLA_FFI_Error_Code_RESOURCE_EXHAUSTED);
    } catch (const std::exception& error) {
      return exception_error(frame, error.what(), XLA_FFI_Error_Code_INTERNAL);
    } catch (...) {
      return exception_error(frame, "an exception that does not derive from std::exception",
                             XLA_FFI_Error_Code_INTERNAL);
    }
  }

 private:
  static XLA_FFI_Error* exception_error(XLA_FFI_CallFrame* frame, const char* what,
                                        XLA_FFI_Error_Code code) {
    char text[512];  // a std::string could fail to allocate
    std::snprintf(text, sizeof text, "%s: %s", target, what);
    XLA_FFI_Error_Create_Args args = {XLA_FFI_Error_Create_Args_STRUCT_SIZE, nullptr, text, code};
    return frame->api->XLA_FFI_Error_Create(&args);
  }

  static XLA_FFI_Error* binding_error(XLA_FFI_CallFrame* frame, XLA_FFI_Error* error) {
    // XLA's helpers are used because newer headers rename the call that they wrap.
    const std::string message = ffi::internal::GetErrorMessage(frame->api, error);
    if (message.find("] Wrong number of ") == std::string::npos &&
        message.find("] Failed to decode ") == std::string::npos) {
      return error;
    }
    ffi::internal::DestroyError(frame->api, error);
    const std::string text = std::string(target) + ": " + message + "\n" + attributes_text(frame);
    XLA_FFI_Error_Create_Args args = {XLA_FFI_Error_Create_Args_STRUCT_SIZE, nullptr, text.c_str(),
                                      XLA_FFI_Error_Code_INVALID_ARGUMENT};
    return frame->api->XLA_FFI_Error_Create(&args);
  }

  static std::string attributes_text(const XLA_FFI_CallFrame* frame) {
    std::string text;
    for (int64_t i = 0; i < frame->attrs.size; ++i) {
      const XLA_FFI_ByteSpan* name = frame->attrs.names[i];
      text += (i ? ", '" : "'") + std::string(name->ptr, name->len) + "' (";
      const void* value = frame->attrs.attrs[i];
      switch (frame->attrs.types[i]) {
        case XLA_FFI_AttrType_SCALAR:
          text += dtype_of(static_cast<const XLA_FFI_Scalar*>(value)->dtype);
          break;
        case XLA_FFI_AttrType_ARRAY:
          text += "an array of " + dtype_of(static_cast<const XLA_FFI_Array*>(value)->dtype);
          break;
        case XLA_FFI_AttrType_STRING:
          text += "a string";
          break;
        default:
          text += "a dictionary";
      }
      text += ")";
    }
    return "The call's attributes are " + (text.empty() ? "none" : text) +
           ". A Python float is passed as float64 and an int as int64; use np.float32(x) or "
           "np.int32(n) for a narrower type";
  }

  static std::string dtype_of(XLA_FFI_DataType dtype) {
    return dtype_text(static_cast<ffi::DataType>(dtype));
  }
};

// XLA's thread pool as an executor, valid during the call only. The number of cores is a second
// bound on the workers, since the pool can be larger.
inline Executor executor_of(ffi::ThreadPool& pool) {
  Executor executor;
  executor.workers = std::min<int64_t>(pool.num_threads(),
                                       std::max<int64_t>(1, std::thread::hardware_concurrency()));
  executor.schedule = [&pool](std::function<void()> task) { pool.Schedule(std::move(task)); };
  return executor;
}

}  // namespace jaxkern

#endif  // JAXKERN_CORE_FFI_H_
