// An object with a weak symbol of std, for the test of check_level_objects.cmake.
#include <vector>

template class std::vector<short>;
