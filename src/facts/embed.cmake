# cmake -DSOURCE=src/facts -DOUTPUT=facts.cc -DTYPE=EmbeddedFacts -DFUNCTION=embedded_facts -DHEADER=facts/embedded.h
#   -P embed.cmake: the TOML and Python files of a folder's folders as one source file.
file(GLOB files RELATIVE ${SOURCE} ${SOURCE}/*/*.toml ${SOURCE}/*/*.py)
list(SORT files)
set(rows "")
foreach(file IN LISTS files)
  file(READ ${SOURCE}/${file} text)
  get_filename_component(folder ${file} DIRECTORY)
  get_filename_component(name ${file} NAME_WLE)
  string(APPEND rows "    {\"${folder}\", \"${name}\", R\"facts(${text})facts\"},\n")
endforeach()
file(WRITE ${OUTPUT} "// Made by the build from the folders of ${HEADER}.
#include \"${HEADER}\"

namespace orrery {
namespace {

constexpr ${TYPE} kFiles[] = {
${rows}};

}  // namespace

std::span<const ${TYPE}> ${FUNCTION}() { return kFiles; }

}  // namespace orrery
")
