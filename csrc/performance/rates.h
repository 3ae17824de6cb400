// Results of a probe by name: bytes or operations per second, or bytes of memory.
#ifndef JAXKERN_PERFORMANCE_RATES_H_
#define JAXKERN_PERFORMANCE_RATES_H_

#include <map>
#include <string>

namespace jaxkern::performance {

using Rates = std::map<std::string, double>;

}  // namespace jaxkern::performance

#endif  // JAXKERN_PERFORMANCE_RATES_H_
