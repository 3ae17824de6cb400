# Fails if an object compiled for one instruction-set level exports a weak symbol:
#   cmake -DNM=... -DOBJECTS=a.o,b.o -P check_level_objects.cmake
#
# The compiler emits an inline function or a template instance that it does not inline as a weak
# symbol, and the linker keeps one of all copies. If it keeps the copy of an AVX-512 object, baseline
# code calls it too, and older CPUs stop with SIGILL. Levels therefore define functions in an unnamed
# namespace, and use only functions of std that are inlined.
cmake_minimum_required(VERSION 3.22)
string(REPLACE "," ";" objects "${OBJECTS}")
if(NOT objects)
  message(FATAL_ERROR "OBJECTS is empty; expected the objects of a level")
endif()
set(found "")
foreach(object IN LISTS objects)
  execute_process(COMMAND "${NM}" --demangle --defined-only "${object}" OUTPUT_VARIABLE symbols
                  RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${NM} cannot read ${object}")
  endif()
  string(REGEX MATCHALL "[0-9a-fA-F]+ [WVu] [^\n]+" weak "${symbols}")
  foreach(symbol IN LISTS weak)
    string(APPEND found "\n  ${object}: ${symbol}")
  endforeach()
endforeach()
if(found)
  message(FATAL_ERROR "expected no weak symbols in objects of an instruction-set level, got:${found}\n"
                      "move the function into the level's namespace, or write the loop without it")
endif()
