# cmake -DSOURCE=src/facts -DOUTPUT=facts.cc -P embed.cmake: the files of facts as one source file.
file(GLOB files RELATIVE ${SOURCE} ${SOURCE}/*/*.toml)
list(SORT files)
set(rows "")
foreach(file IN LISTS files)
  file(READ ${SOURCE}/${file} text)
  get_filename_component(folder ${file} DIRECTORY)
  get_filename_component(name ${file} NAME_WLE)
  string(APPEND rows "    {\"${folder}\", \"${name}\", R\"facts(${text})facts\"},\n")
endforeach()
file(WRITE ${OUTPUT} "// Made by the build from src/facts/*/*.toml.
#include \"facts/embedded.h\"

namespace orrery {
namespace {

constexpr EmbeddedFacts kFacts[] = {
${rows}};

}  // namespace

std::span<const EmbeddedFacts> embedded_facts() { return kFacts; }

}  // namespace orrery
")
