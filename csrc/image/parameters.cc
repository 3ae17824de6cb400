// The checks of parameter programs.
#include "image/parameters.h"

#include <type_traits>

namespace jaxkern::image {
namespace {

template <typename T>
constexpr char kind_of() {
  return sizeof(T) == 8 ? 'd' : 'w';
}

constexpr ParameterOpInfo kOps[] = {
#define JAXKERN_INFO(name, R, T, expression) \
  {#name, {kind_of<R>(), '-', kind_of<T>(), kind_of<T>(), kind_of<T>(), 0}},
    JAXKERN_LANE_OPS(JAXKERN_INFO)
#undef JAXKERN_INFO
        {"select_d", "d-wdd"},
    {"constant_i", "w-c--"},
    {"constant_d", "d-c--"},
    {"gather_i", "w-wcn"},
    {"threefry", "wwwww"},
    {"random_gamma", "w-www"},
};
static_assert(sizeof(kOps) / sizeof(kOps[0]) == kParameterOps);

bool is_index(int64_t index, int64_t count) { return index >= 0 && index < count; }

bool is_valid(const ParameterProgram& program, const ParameterInstruction& instruction) {
  if (!is_index(instruction.op, kParameterOps)) return false;
  const char* kinds = kOps[instruction.op].kinds;
  const int32_t fields[] = {instruction.out, instruction.second, instruction.x, instruction.y,
                            instruction.z};
  for (int k = 0; k < 5; ++k) {
    if (kinds[k] == 'w' && !is_index(fields[k], program.words)) return false;
    if (kinds[k] == 'd' && !is_index(fields[k], program.doubles)) return false;
    const int64_t more = instruction.op == k_constant_d ? 1 : 0;
    if (kinds[k] == 'c' && !is_index(fields[k] + more, program.constant_count)) return false;
    if (kinds[k] == 'c' && fields[k] < 0) return false;
    if (kinds[k] == 'n' &&
        (fields[k] < 1 || int64_t{fields[k]} > program.constant_count - instruction.y)) {
      return false;
    }
  }
  return true;
}

}  // namespace

const ParameterOpInfo* parameter_ops() { return kOps; }

std::string check_parameters(const ParameterProgram& program) {
  const int64_t most = int64_t{kRegisterBytes} / kParameterLanes / 4;
  if (!is_index(program.words, most + 1) || !is_index(program.doubles, most / 2 + 1) ||
      program.words + 2 * program.doubles > most) {
    return "registers: expected at most " + std::to_string(most) + " words";
  }
  for (int64_t i = 0; i < program.instruction_count; ++i) {
    if (!is_valid(program, program.instructions[i])) {
      return "instruction " + std::to_string(i) + ": expected valid registers and constants";
    }
  }
  return {};
}

}  // namespace jaxkern::image
