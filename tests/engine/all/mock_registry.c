/* SPDX-License-Identifier: Apache-2.0
 *
 * A registry with the mock device and ref, for test suites that are linked with this file and so run on the mock device
 * (tests/CMakeLists.txt).
 */
#include "support/mock/mock_device.h"
#include "support/fixtures/own_engines.h"

#include <stdlib.h>

static const fxa__engine *own_engines[OWN_ENGINES] = {&mock_engine, &fxa__engine_ref};

/* Ends the process at exit if objects of the mock are left or a mistake was counted, whatever the tests reported. */
__attribute__((destructor)) static void mock_registry_end(void) {
    if (mock.mistakes || mock.blocks || mock.codes || mock.queued || mock.opened != mock.closed) abort();
}
