/* SPDX-License-Identifier: Apache-2.0 */
/* The driver as a whole, devices, error names, symbols, device code. */
#include <string.h>
#include <sys/wait.h>

#include "tests/conformance/conformance.h"

static void init_again(struct run *run)
{
        OK("a second cuInit", run->cuda->init(0));
        EXPECT("flags", run->cuda->init(1), CUDA_ERROR_INVALID_VALUE);
}

static void before_init(struct run *run)
{
        struct peer peer;
        int status;

        NEED_TRUE(peer_start(&peer, "bare-before-init"));
        status = peer_end(&peer, 0);
        CHECK("calls before cuInit say so", WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void version(struct run *run)
{
        int number = 0;

        OK("cuDriverGetVersion", run->cuda->driver_get_version(&number));
        CHECK("11.0 at least", number >= 11000);
        EXPECT("nowhere to put it", run->cuda->driver_get_version(NULL), CUDA_ERROR_INVALID_VALUE);
}

static void error_names(struct run *run)
{
        const char *name = NULL, *text = NULL;

        OK("name", run->cuda->get_error_name(CUDA_ERROR_OUT_OF_MEMORY, &name));
        CHECK("it is the name in cuda.h", name && strcmp(name, "CUDA_ERROR_OUT_OF_MEMORY") == 0);
        OK("name of success", run->cuda->get_error_name(CUDA_SUCCESS, &name));
        CHECK("it is that in cuda.h", name && strcmp(name, "CUDA_SUCCESS") == 0);
        OK("text", run->cuda->get_error_string(CUDA_ERROR_OUT_OF_MEMORY, &text));
        CHECK("a text", text && text[0] != '\0');
        name = text;
        EXPECT("name of no error", run->cuda->get_error_name((CUresult)12345, &name),
               CUDA_ERROR_INVALID_VALUE);
        CHECK("no name", name == NULL);
        EXPECT("text of no error", run->cuda->get_error_string((CUresult)12345, &text),
               CUDA_ERROR_INVALID_VALUE);
        CHECK("no text", text == NULL);
}

static void count_and_get(struct run *run)
{
        CUdevice device;
        int count = 0;

        OK("count", run->cuda->device_get_count(&count));
        CHECK("one at least", count >= 1);
        EXPECT("count nowhere", run->cuda->device_get_count(NULL), CUDA_ERROR_INVALID_VALUE);
        OK("the last", run->cuda->device_get(&device, count - 1));
        EXPECT("beyond the last", run->cuda->device_get(&device, count), CUDA_ERROR_INVALID_DEVICE);
        EXPECT("negative", run->cuda->device_get(&device, -1), CUDA_ERROR_INVALID_DEVICE,
               CUDA_ERROR_INVALID_VALUE);
}

static void name_and_uuid(struct run *run)
{
        static const char zero[16];
        char name[256] = "", short_name[4] = "xxx";
        CUuuid uuid, again;

        memset(&uuid, 0, sizeof(uuid));
        OK("name", run->cuda->device_get_name(name, sizeof(name), run->device));
        CHECK("a name", name[0] != '\0');
        OK("little room for it", run->cuda->device_get_name(short_name, 4, run->device));
        OBSERVE("cut and ended", short_name[3] == '\0');
        EXPECT("name of no device", run->cuda->device_get_name(name, sizeof(name), 4711),
               CUDA_ERROR_INVALID_DEVICE);
        OK("UUID", run->cuda->device_get_uuid(&uuid, run->device));
        OK("again", run->cuda->device_get_uuid(&again, run->device));
        CHECK("the same", memcmp(&uuid, &again, sizeof(uuid)) == 0);
        CHECK("not zero", memcmp(uuid.bytes, zero, 16) != 0);
        EXPECT("UUID of no device", run->cuda->device_get_uuid(&uuid, 4711),
               CUDA_ERROR_INVALID_DEVICE);
}

static void attributes(struct run *run)
{
        int value = -1;

        OK("virtual memory",
           run->cuda->device_get_attribute(
                   &value, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, run->device));
        CHECK("supported", value == 1);
        OK("descriptors",
           run->cuda->device_get_attribute(
                   &value, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
                   run->device));
        CHECK("supported too", value == 1);
        OK("compute capability",
           run->cuda->device_get_attribute(&value, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                                           run->device));
        CHECK("7 at least", value >= 7);
        OK("warp size",
           run->cuda->device_get_attribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, run->device));
        CHECK("32", value == 32);
        OK("host memory by cuMemCreate",
           run->cuda->device_get_attribute(
                   &value, CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                   run->device));
        OBSERVE("not there", value == 0);
        EXPECT("no attribute",
               run->cuda->device_get_attribute(&value, (CUdevice_attribute)0x7ffffff, run->device),
               CUDA_ERROR_INVALID_VALUE);
        EXPECT("of no device",
               run->cuda->device_get_attribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 4711),
               CUDA_ERROR_INVALID_DEVICE);
        EXPECT("nowhere",
               run->cuda->device_get_attribute(NULL, CU_DEVICE_ATTRIBUTE_WARP_SIZE, run->device),
               CUDA_ERROR_INVALID_VALUE);
}

static void memory_size(struct run *run)
{
        size_t total = 0, unused = 0, also_total = 0;

        OK("cuDeviceTotalMem", run->cuda->device_total_mem(&total, run->device));
        CHECK("some", total > 0);
        OK("cuMemGetInfo", run->cuda->mem_get_info(&unused, &also_total));
        CHECK("the same total", total == also_total);
        CHECK("not more free than there is", unused <= total);
}

static void symbols(struct run *run)
{
        CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
        const struct driver *cuda = run->cuda;
        void *function = NULL;
        int number = 0;

        if (!cuda->get_proc_address) {
                step_skip(run, "the driver is older than cuGetProcAddress_v2");
                return;
        }
        NEED(cuda->driver_get_version(&number));
        OK("of version 12", cuda->get_proc_address("cuMemCreate", &function, 12000, 0, &status));
        CHECK("found", function != NULL && status == CU_GET_PROC_ADDRESS_SUCCESS);
        OK("cuMemAlloc of 3.2", cuda->get_proc_address("cuMemAlloc", &function, 3020, 0, &status));
        CHECK("found as well", function != NULL);
        EXPECT("older than the call",
               cuda->get_proc_address("cuMemCreate", &function, 10010, 0, &status), CUDA_SUCCESS,
               CUDA_ERROR_NOT_FOUND);
        CHECK("the version does not suffice",
              function == NULL && status == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
        EXPECT("no such call", cuda->get_proc_address("cuNone", &function, 12000, 0, &status),
               CUDA_SUCCESS, CUDA_ERROR_NOT_FOUND);
        CHECK("not found", function == NULL && status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
        EXPECT("newer than the driver",
               cuda->get_proc_address("cuMemCreate", &function, number + 1000, 0, &status),
               CUDA_ERROR_INVALID_VALUE, CUDA_SUCCESS);
        EXPECT("nowhere", cuda->get_proc_address("cuMemCreate", NULL, 12000, 0, &status),
               CUDA_ERROR_INVALID_VALUE);
        EXPECT("flags", cuda->get_proc_address("cuMemCreate", &function, 12000, 64, &status),
               CUDA_ERROR_INVALID_VALUE);
}

static void modules(struct run *run)
{
        static const char garbage[256] = "no image at all";
        CUmodule module;

        EXPECT("an image that is none", run->cuda->module_load_data(&module, garbage),
               CUDA_ERROR_INVALID_IMAGE, CUDA_ERROR_INVALID_PTX, CUDA_ERROR_NO_BINARY_FOR_GPU,
               CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_UNKNOWN);
        EXPECT("nothing", run->cuda->module_load_data(&module, NULL), CUDA_ERROR_INVALID_VALUE);
}

const struct test tests_of_devices[] = {
        {"device.init_again", init_again},
        {"device.before_init", before_init},
        {"device.version", version},
        {"device.error_names", error_names},
        {"device.count_and_get", count_and_get},
        {"device.name_and_uuid", name_and_uuid},
        {"device.attributes", attributes},
        {"device.memory_size", memory_size},
        {"device.symbols", symbols},
        {"device.modules", modules},
        {NULL, NULL},
};
