// Constants that Python duplicates, so that pure JAX needs no native module. A test compares them.
#include <cstdint>

#include "bind/objects.h"
#include "correlators/multitau.h"
#include "image/blur.h"
#include "image/check.h"
#include "image/producer.h"
#include "image/program.h"
#include "image/stages.h"
#include "ring/gather.h"
#include "ring/ring.h"
#include "tokens/packer.h"
#include "xpcs/arithmetic.h"
#include "xpcs/plan.h"

namespace nb = nanobind;

namespace jaxkern {
namespace {

// name_of(Type) returns the name of an enumerator, or nullptr for another number. The compiler
// warns about an enumerator that is missing from a switch.
#define JAXKERN_NAME(name) \
  case Type::name:         \
    return #name;

#define JAXKERN_ENUM(function, type, names) \
  const char* function(type value) {        \
    using Type = type;                      \
    switch (value) { names(JAXKERN_NAME) }  \
    return nullptr;                         \
  }

// clang-format off
#define JAXKERN_CODES(N)                                                                  \
  N(kNone) N(kBrightness) N(kContrast) N(kSaturation) N(kHue) N(kSharpness) N(kPosterize) \
  N(kSolarize) N(kAutocontrast) N(kEqualize) N(kInvert) N(kGrayscale) N(kPermute)         \
  N(kBlur) N(kWarp) N(kKeep) N(kAdd) N(kMean) N(kPerspective) N(kNoise) N(kErase)         \
  N(kElastic) N(kTurn)
#define JAXKERN_FILTERS(N)                                    \
  N(kNone) N(kNearest) N(kBilinear) N(kAntialias) N(kBicubic) \
  N(kBicubicAntialias) N(kBicubicLevels) N(kBicubicAntialiasLevels)
// clang-format on
#define JAXKERN_DTYPES(N) N(kU8) N(kF16) N(kBF16) N(kF32)
#define JAXKERN_LAYOUTS(N) N(kNHWC) N(kNCHW)
#define JAXKERN_PADDINGS(N) N(kFill) N(kEdge) N(kReflect) N(kSymmetric)
#define JAXKERN_ROUNDINGS(N) N(kKeep) N(kNearest) N(kTruncate)
#define JAXKERN_CODECS(N) N(kJpeg) N(kRaw)
#define JAXKERN_CASTS(N) N(kNone) N(kInt64ToInt32) N(kFloat64ToFloat32)
#define JAXKERN_OUTCOMES(N) \
  N(kOk) N(kTimeout) N(kFailed) N(kFinished) N(kClosed) N(kInvalid) N(kForked) N(kNoMemory)
#define JAXKERN_METHODS(N) N(kFirstFit) N(kBestFit) N(kConcatSplit)
#define JAXKERN_OVERLONGS(N) N(kError) N(kSplit) N(kTruncate) N(kDrop)
#define JAXKERN_LOSSES(N) N(kLinear) N(kSoftL1) N(kHuber) N(kCauchy) N(kArctan)
#define JAXKERN_SYMMETRICS(N) N(kNo) N(kYes) N(kAuto)

JAXKERN_ENUM(code_name, image::Code, JAXKERN_CODES)
JAXKERN_ENUM(filter_name, image::Filter, JAXKERN_FILTERS)
JAXKERN_ENUM(dtype_name, image::Dtype, JAXKERN_DTYPES)
JAXKERN_ENUM(layout_name, image::Layout, JAXKERN_LAYOUTS)
JAXKERN_ENUM(padding_name, image::Padding, JAXKERN_PADDINGS)
JAXKERN_ENUM(rounding_name, image::Rounding, JAXKERN_ROUNDINGS)
JAXKERN_ENUM(codec_name, image::Codec, JAXKERN_CODECS)
JAXKERN_ENUM(cast_name, ring::Cast, JAXKERN_CASTS)
JAXKERN_ENUM(outcome_name, ring::Outcome, JAXKERN_OUTCOMES)
JAXKERN_ENUM(method_name, tokens::Method, JAXKERN_METHODS)
JAXKERN_ENUM(overlong_name, tokens::Overlong, JAXKERN_OVERLONGS)
JAXKERN_ENUM(loss_name, xpcs::Loss, JAXKERN_LOSSES)
JAXKERN_ENUM(symmetric_name, xpcs::Symmetric, JAXKERN_SYMMETRICS)

// Returns {name: number} of an enum with small numbers.
template <typename Enum>
nb::dict numbers(const char* (*name_of)(Enum)) {
  nb::dict result;
  for (int32_t number = -1; number < 256; ++number) {
    const char* name = name_of(static_cast<Enum>(number));
    if (name != nullptr) result[name] = number;
  }
  return result;
}

nb::dict constants() {
  nb::dict all;
  all["image.Code"] = numbers(code_name);
  all["image.Filter"] = numbers(filter_name);
  all["image.Dtype"] = numbers(dtype_name);
  all["image.Layout"] = numbers(layout_name);
  all["image.Padding"] = numbers(padding_name);
  all["image.Rounding"] = numbers(rounding_name);
  all["image.Codec"] = numbers(codec_name);
  all["image.kMaxStages"] = image::kMaxStages;
  all["image.kMaxSegments"] = image::kMaxSegments;
  all["image.kMaxErasures"] = image::kMaxErasures;
  all["image.kMaxSize"] = image::kMaxSize;
  all["image.kMaxPixels"] = image::kMaxPixels;
  all["image.kMaxBlurKernel"] = image::kMaxBlurKernel;
  all["image.kMaxProgramSteps"] = image::kMaxProgramSteps;
  all["image.kProgramValues"] = image::kProgramValues;
  all["image.kMaxFactor"] = image::kMaxFactor;
  all["ring.Cast"] = numbers(cast_name);
  all["ring.Outcome"] = numbers(outcome_name);
  all["ring.kNextIndex"] = ring::kNextIndex;
  all["ring.kLastIndex"] = ring::kLastIndex;
  all["tokens.Method"] = numbers(method_name);
  all["tokens.Overlong"] = numbers(overlong_name);
  all["correlators.kMostDelays"] = correlators::kMostDelays;
  all["xpcs.Loss"] = numbers(loss_name);
  all["xpcs.Symmetric"] = numbers(symmetric_name);
  all["xpcs.kMaxTables"] = xpcs::kMaxTables;
  all["xpcs.kMaxComponents"] = xpcs::kMaxComponents;
  all["xpcs.kMaxComponentParameters"] = xpcs::kMaxComponentParameters;
  all["xpcs.kRowBlock"] = xpcs::kRowBlock;
  return all;
}

}  // namespace

void define_constants(nb::module_& module) {
  module.def("constants", &constants, nb::sig("def constants() -> dict[str, object]"),
             "Return enums as {name: number}, and limits, which Python duplicates.");
}

}  // namespace jaxkern
