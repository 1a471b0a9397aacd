# cmake -DSOURCE=DIR -DOUTPUT=commit.cc -P commit.cmake: the commit of the sources as a function; written when it differs.
execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --abbrev=12
  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE status)
if(NOT status EQUAL 0 OR NOT commit MATCHES "^[A-Za-z0-9_.-]+$")
  set(commit "")
endif()
set(text "// Made by the build.
#include \"bench/commit.h\"

namespace orrery {
std::string_view commit_of_build() { return \"${commit}\"; }
}  // namespace orrery
")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} before)
endif()
if(NOT "${before}" STREQUAL "${text}")
  file(WRITE ${OUTPUT} "${text}")
endif()
