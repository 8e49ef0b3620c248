# Writes the sources of the CUDA kernels into a C file, so that the library contains them:
#   cmake -DFOLDER=src -DOUTPUT=cuda_sources.c -P embed_cuda.cmake
# The name of a file in src/engine/cuda/kernels is its path below that folder (sm90/forward.cu), that of others the file
# name. The hash of all sources is the version of the kernel set.
set(kernels ${FOLDER}/engine/cuda/kernels)
file(GLOB_RECURSE sources ${kernels}/*.cu ${kernels}/*.cuh ${kernels}/*.h)
list(APPEND sources ${FOLDER}/lower/program_ops.h ${FOLDER}/program/interval_rules.h)
list(SORT sources)
set(rows "")
set(all "")
foreach(source ${sources})
  file(RELATIVE_PATH name ${kernels} ${source})
  if(name MATCHES "^[.]")
    get_filename_component(name ${source} NAME)
  endif()
  file(READ ${source} text)
  string(APPEND all "${name}\n${text}")
  string(REPLACE "\\" "\\\\" text "${text}")
  string(REPLACE "\"" "\\\"" text "${text}")
  string(REPLACE "?" "\\?" text "${text}") # no trigraphs
  string(REPLACE "\n" "\\n\"\n     \"" text "${text}")
  string(APPEND rows "    {\"${name}\",\n     \"${text}\"},\n")
endforeach()
string(SHA256 hash "${all}")
string(SUBSTRING ${hash} 0 16 hash)
file(WRITE ${OUTPUT} "/* Written by cmake/embed_cuda.cmake. */
#include \"engine/cuda/host/sources.h\"

const fxa__cuda_source fxa__cuda_sources[] = {
${rows}};
const size_t fxa__cuda_source_count = sizeof fxa__cuda_sources / sizeof fxa__cuda_sources[0];
const char fxa__cuda_sources_hash[] = \"${hash}\";
")
