/* SPDX-License-Identifier: Apache-2.0
 *
 * Device descriptions: invalid ones are refused with a message, whatever bytes they contain; a description written of
 * the stand-in, or of this machine, is read back as the same device.
 */
#include "gpu/device_description.h"
#include "standin/standin_profile.h"
#include "t.h"

TEST(profiles_that_are_none) {
    static const struct {
        const char *from, *to, *says;
    } cases[] = {
        {"{", "[", "not a device description"},
        {"\"deviceVer\":900", "\"deviceVer\":-1", "for deviceVer"},
        {"900", "9e2", "for deviceVer"},
        {"\"deviceVer\":900,", "", "lacks deviceVer"},
        {"deviceVer", "deviceWer", "which"},
        {"132", "0", "target has 0 for multiProcessorCount: accepted are whole numbers from 1 to 2147483647"},
        {"H200\"", "H2\\u0030\"", "for deviceName: accepted are strings of up to 95 characters of ASCII without \\"},
        {"[1024,1024,64]", "[1024,1024]",
         "target has [1024,1024] for maxBlockSize: accepted are [x,y,z], each a whole number from 1 to 2147483647"},
        {"\"warpSize\":32", "\"warpSize\":32,\"warpSize\":32", "twice"},
        {"13000", "99999999999999999999", "for driverVer"},
        {"H200\"}", "H200\"} x", "does not end"},
        {"900", "10000", "for deviceVer"},
        {"\"warpSize\":32", "\"warpSize\":64", "target has 64 for warpSize: accepted is 32"},
        {"\"warpSize\":32", "\"warpSize\":4294967328", "for warpSize"},
        {"\"warpSize\":32", "\"warpSize\":032", "for warpSize"},
        {"\"warpSize\":32", "\"warpSize\":00", "for warpSize"},
        {"\"warpSize\":32", "\"warpSize\":+32", "for warpSize"},
        {"\"warpSize\":32", "\"warpSize\":3 2", "target has 3 2 for warpSize"},
        {"\"warpSize\":32", "\"warpSize\":\"32\"", "for warpSize"},
        {"\"warpSize\":32", "\"warpSize\":null", "for warpSize"},
        {"\"warpSize\":32", "\"warpSize\":32.0", "for warpSize"},
        {"NVIDIA", "NVIDI\xc1", "for deviceName"},
        {"NVIDIA", "NVI\nDIA", "for deviceName"},
        {"NVIDIA", /* cuDNN would end the process on a long name */
         "NVIDIA NVIDIA NVIDIA NVIDIA NVIDIA NVIDIA NVIDIA NVIDIA NVIDIA NVIDIA NVIDIA NVIDIA NVIDIA NVIDIA NVIDIA",
         "for deviceName"},
        {"{\"", "{,\"", "where a \"key\": is to be"},
        {",\"warpSize\"", ",,\"warpSize\"", "where a \"key\": is to be"},
        {"H200\"}", "H200\",}", "target has \"}\" where a \"key\": is to be"},
        {"150109880320", "{}", "for totalGlobalMem"},
        {"\"NVIDIA H200\"", "5", "target has 5 for deviceName"},
        {"232448", "1000",
         "target has 1000 for maxSharedMemoryPerBlockOptin: accepted are whole numbers from 49152 to"},
    };
    fxa__gpu_description out;
    T_OK(fxa__gpu_description_parse(profile, &out, &err));
    T_INT(out.arch, 90);
    T_INT(out.driver, 13000);
    T_INT(out.processors, 132);
    T_STR(out.name, "NVIDIA H200");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[2048];
        const char *at = strstr(profile, cases[i].from);
        T_REQUIRE(at);
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - profile), profile, cases[i].to, at + strlen(cases[i].from));
        T_STATUS(fxa__gpu_description_parse(text, &out, &err), FXA_E_PROBLEM);
        T_HAS(err.text, cases[i].says);
    }
    for (size_t n = 0; n < sizeof profile - 1; n++) { /* the description cut off at each byte */
        char text[sizeof profile];
        snprintf(text, sizeof text, "%.*s", (int)n, profile);
        T_STATUS(fxa__gpu_description_parse(text, &out, &err), FXA_E_PROBLEM);
        T_CHECK(strstr(err.text, "it is empty") || strstr(err.text, "target ends ") || strstr(err.text, "is to be"));
    }
}

/* Changes one byte of a description: it must be accepted, or refused with a message. */
TEST(any_byte_is_another) {
    t_rng rng = {t_seed()};
    int taken = 0, refused = 0;
    for (int i = 0; i < t_scaled(20000); i++) {
        char text[sizeof profile];
        fxa__gpu_description out;
        memcpy(text, profile, sizeof text);
        text[t_int(&rng, 0, (int)sizeof profile - 2)] = (char)t_int(&rng, 0, 255);
        fxa_status status = fxa__gpu_description_parse(text, &out, &err);
        if (status != FXA_OK) T_CHECK(status == FXA_E_PROBLEM && err.text[0]);
        if (status == FXA_OK) T_CHECK(out.arch >= 50 && out.arch < 1000 && out.processors > 0 && out.driver >= 1000);
        taken += status == FXA_OK, refused += status != FXA_OK;
    }
    T_CHECK(taken > 0 && refused > 0);
}

/* Writes a description by the driver and reads it back; tests/CMakeLists.txt selects the stand-in driver. */
TEST(what_is_written_is_read) {
    fxa__host *host = NULL;
    T_OK(fxa__host_create(NULL, NULL, &host, &err));
    for (int32_t ordinal = 0; ordinal < 2; ordinal++) {
        fxa__writer w = {.host = host};
        fxa__gpu gpu;
        fxa__gpu_description out;
        fxa_status status = fxa__gpu_find(&gpu, ordinal, &err);
        if (status != FXA_OK) {
            T_STATUS(fxa__gpu_description_write(ordinal, &w, &err), FXA_E_UNAVAILABLE);
            fxa__writer_free(&w);
            fxa__host_release(host);
            T_SKIP(err.text);
        }
        T_OK(fxa__gpu_description_write(ordinal, &w, &err));
        fxa__write_u8(&w, 0);
        T_OK(fxa__gpu_description_parse((const char *)w.data, &out, &err));
        T_INT(out.arch, gpu.arch);
        T_INT(out.driver, gpu.driver_version);
        T_INT(out.processors, gpu.processors);
        T_STR(out.name, gpu.name);
        fxa__gpu_forget(&gpu);
        fxa__writer_free(&w);
    }
    fxa__host_release(host);
}

T_MAIN
