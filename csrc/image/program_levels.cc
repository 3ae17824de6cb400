// The image program, compiled once per instruction-set level. This file is apart from levels.cc
// because it is compiled with every product rounded before it is added; see program.h.
#include "image/program-inl.h"
