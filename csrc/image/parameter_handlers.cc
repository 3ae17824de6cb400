// The CPU handler of parameter programs: it loads the values of up to kParameterLanes images into
// registers, runs the program and stores its results.
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/ffi.h"
#include "core/handler.h"
#include "image/ops.h"
#include "image/parameters.h"

namespace jaxkern::image {
namespace {

using Integers = ffi::Span<const int32_t>;

// An operand or result whose values are in registers.
struct Values {
  Operand operand;
  const int32_t* registers;  // of each value of an image; below 0 for an unused one
  int64_t count;
};

struct ImageParameters {
  Call call;
  ParameterProgram program = {};
  std::vector<Values> operands, results;

  template <class Binding>
  static auto bind(Binding&& contexts) {
    return std::move(contexts)
        .RemainingArgs()                          // [batch..., up to 3 axes] bool, i32, u32, f32
        .RemainingRets()                          // likewise
        .template Attr<Integers>("instructions")  // [instructions * 6]
        .template Attr<Integers>("constants")     // bits of words
        .template Attr<Integers>("registers")     // [2]: of words and of doubles
        .template Attr<Integers>("ranks")         // of operands, then of results
        .template Attr<Integers>("operands")      // registers of all values of operands
        .template Attr<Integers>("results");      // registers of all values of results
  }

  ImageParameters(ffi::RemainingArgs args, ffi::RemainingRets rets, Integers instructions,
                  Integers constants, Integers registers, Integers ranks,
                  Integers operand_registers, Integers result_registers)
      : call("jaxkern.image_parameters", first(rets), rank_of_first(ranks, args.size())) {
    if (!call.ok()) return;
    if (instructions.size() % 6 != 0) {
      call.fail("attribute 'instructions'", "a multiple of 6 numbers",
                std::to_string(instructions.size()));
    }
    check_size("registers", registers, 2);
    check_size("ranks", ranks, args.size() + rets.size());
    if (!call.ok()) return;
    static_assert(sizeof(ParameterInstruction) == 24);
    program = {reinterpret_cast<const ParameterInstruction*>(instructions.begin()),
               static_cast<int64_t>(instructions.size() / 6),
               reinterpret_cast<const uint32_t*>(constants.begin()),
               static_cast<int64_t>(constants.size()),
               registers[0],
               registers[1]};
    if (const std::string problem = check_parameters(program); !problem.empty()) {
      call.fail(problem);
      return;
    }
    size_t used = 0;
    for (size_t k = 0; k < args.size(); ++k) {
      const auto buffer = args.get<ffi::AnyBuffer>(k);
      if (buffer.has_value()) add(false, k, *buffer, ranks[k], operand_registers, &used, &operands);
    }
    check_size("operands", operand_registers, used);
    used = 0;
    for (size_t k = 0; k < rets.size(); ++k) {
      auto buffer = rets.get<ffi::AnyBuffer>(k);
      const int32_t rank = ranks[args.size() + k];
      if (buffer.has_value()) add(true, k, **buffer, rank, result_registers, &used, &results);
    }
    check_size("results", result_registers, used);
  }

 private:
  static ffi::AnyBuffer first(const ffi::RemainingRets& rets) {
    auto buffer = rets.get<ffi::AnyBuffer>(0);
    if (!buffer.has_value()) throw std::runtime_error("expected at least one array as result");
    return **buffer;
  }

  static size_t rank_of_first(Integers ranks, size_t operand_count) {
    return operand_count < ranks.size() ? static_cast<size_t>(ranks[operand_count]) : 0;
  }

  void check_size(const char* attribute, Integers numbers, size_t size) {
    if (numbers.size() == size) return;
    call.fail(std::string("attribute '") + attribute + "'", std::to_string(size) + " numbers",
              std::to_string(numbers.size()));
  }

  Operand checked(bool is_result, const char* name, ffi::AnyBuffer buffer, int32_t rank) {
    const auto read = [&](std::initializer_list<int64_t> core) {
      const ffi::DataType any = ffi::DataType::INVALID;
      return is_result ? call.result(name, buffer, any, core)
                       : call.operand(name, buffer, any, core);
    };
    if (rank == 0) return read({});
    if (rank == 1) return read({kAnySize});
    if (rank == 2) return read({kAnySize, kAnySize});
    if (rank == 3) return read({kAnySize, kAnySize, kAnySize});
    call.fail(std::string("rank of ") + (is_result ? "result '" : "operand '") + name + "'",
              "0 to 3", std::to_string(rank));
    return {};
  }

  void add(bool is_result, size_t index, ffi::AnyBuffer buffer, int32_t rank, Integers registers,
           size_t* used, std::vector<Values>* list) {
    const std::string number = std::to_string(index);
    const Operand operand = checked(is_result, number.c_str(), buffer, rank);
    if (!call.ok()) return;
    const std::string name = (is_result ? "result '" : "operand '") + number + "'";
    const ffi::DataType dtype = operand.dtype;
    if (dtype != ffi::PRED && dtype != ffi::S32 && dtype != ffi::U32 && dtype != ffi::F32) {
      call.fail(name, "dtype bool, int32, uint32 or float32", dtype_text(dtype));
      return;
    }
    const size_t left = registers.size() - *used;
    size_t count = 1;
    for (int32_t axis = 0; axis < rank; ++axis) {
      // At most `left` before, and a size fits in an int64.
      if (__builtin_mul_overflow(count, static_cast<size_t>(operand.core[axis]), &count)) {
        count = left + 1;
      }
    }
    if (count > left) {
      call.fail(name, "a register for each value", std::to_string(left) + " registers");
      return;
    }
    const int32_t least = is_result ? 0 : -1;  // An operand's value may be unused.
    for (size_t k = 0; k < count; ++k) {
      const int32_t at = registers[*used + k];
      if (at >= least && at < program.words) continue;
      call.fail(
          name,
          "registers from " + std::to_string(least) + " to " + std::to_string(program.words - 1),
          std::to_string(at));
      return;
    }
    list->push_back({operand, registers.begin() + *used, static_cast<int64_t>(count)});
    *used += count;
  }
};

void load(const Values& values, int64_t begin, int64_t lanes, char* registers) {
  const bool bytes = values.operand.dtype == ffi::PRED;
  for (int64_t i = 0; i < lanes; ++i) {
    const char* image = values.operand.at<char>(begin + i);
    for (int64_t k = 0; k < values.count; ++k) {
      if (values.registers[k] < 0) continue;
      uint32_t word = bytes ? image[k] != 0 : 0;
      if (!bytes) memcpy(&word, image + 4 * k, sizeof word);
      word_register(registers, values.registers[k])[i] = word;
    }
  }
}

void store(const Values& values, int64_t begin, int64_t lanes, char* registers) {
  const bool bytes = values.operand.dtype == ffi::PRED;
  for (int64_t i = 0; i < lanes; ++i) {
    char* image = values.operand.at<char>(begin + i);
    for (int64_t k = 0; k < values.count; ++k) {
      const uint32_t word = word_register(registers, values.registers[k])[i];
      if (bytes) {
        image[k] = static_cast<char>(word != 0);
      } else {
        memcpy(image + 4 * k, &word, sizeof word);
      }
    }
  }
}

ffi::Error run_program(const ImageParameters& op, ffi::ThreadPool pool) {
  Call call = op.call;
  if (const char* problem = simd_problem()) call.fail(problem);
  if (!call.ok()) return call.error();
  parallel_for(executor_of(pool), call.samples(), kParameterLanes, [&](int64_t begin, int64_t end) {
    char* const registers = thread_scratch<kRegisterBytes>();
    for (const Values& values : op.operands) {
      load(values, begin, end - begin, registers);
    }
    run_parameters(op.program, registers);
    for (const Values& values : op.results) {
      store(values, begin, end - begin, registers);
    }
  });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace jaxkern::image

JAXKERN_CPU_HANDLER(ImageParameters, jaxkern::image::run_program)
