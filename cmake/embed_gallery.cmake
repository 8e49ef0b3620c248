# Writes the programs of the gallery into a C file, so that the command has them wherever it lies:
#   cmake -DFOLDER=examples/programs -DOUTPUT=gallery_programs.c -P embed_gallery.cmake
file(GLOB programs ${FOLDER}/*.fxa)
list(SORT programs)
set(rows "")
foreach(program ${programs})
  get_filename_component(name ${program} NAME_WE)
  file(READ ${program} text)
  string(REPLACE "\\" "\\\\" text "${text}")
  string(REPLACE "\"" "\\\"" text "${text}")
  string(REPLACE "?" "\\?" text "${text}") # no trigraphs
  string(REPLACE "\n" "\\n\"\n     \"" text "${text}")
  string(APPEND rows "    {\"${name}\",\n     \"${text}\"},\n")
endforeach()
file(WRITE ${OUTPUT} "/* Written by cmake/embed_gallery.cmake. */
#include \"input/gallery.h\"

const gallery_program gallery_programs[] = {
${rows}};
const size_t gallery_count = sizeof gallery_programs / sizeof gallery_programs[0];
")
