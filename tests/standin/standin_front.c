/* SPDX-License-Identifier: Apache-2.0
 *
 * A stand-in for cuDNN's libcudnn.so.9 whose sub-libraries are missing: it exports the functions that the engine looks
 * up and ends the process in the first call, as the real library does without libcudnn_graph.so.9.
 */
#include <stdlib.h>

#define STANDIN_FRONT(name)                                                                                            \
    __attribute__((visibility("default"))) void name(void);                                                            \
    void name(void) { abort(); }

STANDIN_FRONT(cudnnGetVersion)
STANDIN_FRONT(cudnnGetErrorString)
STANDIN_FRONT(cudnnGetLastErrorString)
STANDIN_FRONT(cudnnCreate)
STANDIN_FRONT(cudnnDestroy)
STANDIN_FRONT(cudnnSetStream)
STANDIN_FRONT(cudnnBackendCreateDescriptor)
STANDIN_FRONT(cudnnBackendDestroyDescriptor)
STANDIN_FRONT(cudnnBackendSetAttribute)
STANDIN_FRONT(cudnnBackendGetAttribute)
STANDIN_FRONT(cudnnBackendFinalize)
STANDIN_FRONT(cudnnBackendExecute)
STANDIN_FRONT(cudnnGraphVersionCheck)
