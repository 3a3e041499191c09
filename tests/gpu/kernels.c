/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mapped memory under real kernels: whether they see it, whether mappings may change beside them,
 * and what a stray access does. The kernels are PTX, which the driver compiles: no nvcc needed. A
 * driver without a compiler (the simulator) is skipped.
 */
#include <stdio.h>
#include <string.h>

#include "tests/gpu/gpu_check.h"

#define SPIN_NS 400000000ull
#define EDITS   20

/* write(address, value): one word. spin(address, ns): writes to it until so much time has passed.
 */
static const char ptx[] = ".version 6.4\n"
                          ".target sm_75\n"
                          ".address_size 64\n"
                          ".visible .entry write(.param .u64 address, .param .u32 value)\n"
                          "{\n"
                          "  .reg .b64 %rd<3>; .reg .b32 %r<2>;\n"
                          "  ld.param.u64 %rd1, [address];\n"
                          "  ld.param.u32 %r1, [value];\n"
                          "  cvta.to.global.u64 %rd2, %rd1;\n"
                          "  st.global.u32 [%rd2], %r1;\n"
                          "  ret;\n"
                          "}\n"
                          ".visible .entry spin(.param .u64 address, .param .u64 ns)\n"
                          "{\n"
                          "  .reg .b64 %rd<7>; .reg .b32 %r<2>; .reg .pred %p<2>;\n"
                          "  ld.param.u64 %rd1, [address];\n"
                          "  ld.param.u64 %rd2, [ns];\n"
                          "  cvta.to.global.u64 %rd3, %rd1;\n"
                          "  mov.u64 %rd4, %globaltimer;\n"
                          "  mov.u32 %r1, 1;\n"
                          "again:\n"
                          "  st.volatile.global.u32 [%rd3], %r1;\n"
                          "  mov.u64 %rd5, %globaltimer;\n"
                          "  sub.u64 %rd6, %rd5, %rd4;\n"
                          "  setp.lt.u64 %p1, %rd6, %rd2;\n"
                          "  @%p1 bra again;\n"
                          "  ret;\n"
                          "}\n";

static CUresult launch(const struct check *check, CUfunction function, CUstream stream,
                       CUdeviceptr address, unsigned long long value)
{
        void *parameters[] = {&address, &value};

        return check->cuda->launch_kernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
}

static CUdeviceptr fresh(const struct check *check)
{
        CUmemAllocationProp properties = check_properties(check);
        CUmemGenericAllocationHandle handle;
        CUdeviceptr address;

        NEED(mem_create(&handle, check->granule, &properties, 0));
        address = check_map(check, handle, check->granule);
        NEED(mem_release(handle));
        return address;
}

/* One kernel's word in each of two mappings. */
static bool sees_memory(const struct check *check, CUfunction write)
{
        CUdeviceptr first = fresh(check), second = fresh(check);
        uint32_t a = 0, b = 0;

        if (launch(check, write, NULL, first, 0x1234) != CUDA_SUCCESS ||
            launch(check, write, NULL, second + check->granule - 4, 0x5678) != CUDA_SUCCESS)
                return false;
        NEED(ctx_synchronize());
        NEED(memcpy_dtoh(&a, first, 4));
        NEED(memcpy_dtoh(&b, second + check->granule - 4, 4));
        return a == 0x1234 && b == 0x5678;
}

/* Maps and unmaps beside a kernel that runs all the while. False: it, or a call, failed. */
static bool edit_beside(const struct check *check, CUfunction spin)
{
        CUdeviceptr address = fresh(check);
        double samples[EDITS], start;
        CUstream stream;
        CUresult busy, end;
        int i;

        NEED(stream_create(&stream, CU_STREAM_NON_BLOCKING));
        if (launch(check, spin, stream, address, SPIN_NS) != CUDA_SUCCESS)
                return false;
        for (i = 0; i < EDITS; i++) {
                CUdeviceptr other;

                start = now_us();
                other = fresh(check);
                NEED(mem_unmap(other, check->granule));
                NEED(mem_address_free(other, check->granule));
                samples[i] = now_us() - start;
        }
        busy = check->cuda->stream_query(stream);
        end = check->cuda->stream_synchronize(stream);
        printf(",\"edit_beside_us\":");
        print_samples(samples, EDITS);
        printf(",\"kernel_still_ran_after_edits\":%s,\"kernel_ended\":\"%s\"",
               busy == CUDA_ERROR_NOT_READY ? "true" : "false",
               driver_error_name(check->cuda, end));
        return end == CUDA_SUCCESS;
}

/* What later calls say after a kernel wrote where nothing is; last, because it may be for good. */
static void stray(const struct check *check, CUfunction write)
{
        CUmemAllocationProp properties = check_properties(check);
        const struct driver *cuda = check->cuda;
        CUmemGenericAllocationHandle handle;
        CUcontext context = NULL;
        CUdeviceptr address;
        CUresult launched, create;

        NEED(mem_address_reserve(&address, check->granule, 0, 0, 0));
        launched = launch(check, write, NULL, address, 1);
        printf(",\"stray\":{\"launch\":\"%s\",\"synchronize\":\"%s\"",
               driver_error_name(cuda, launched), driver_error_name(cuda, cuda->ctx_synchronize()));
        create = cuda->mem_create(&handle, check->granule, &properties, 0);
        printf(",\"create\":\"%s\",\"reset\":\"%s\"", driver_error_name(cuda, create),
               driver_error_name(cuda, cuda->device_primary_ctx_reset(check->device)));
        printf(",\"retain\":\"%s\"",
               driver_error_name(cuda, cuda->device_primary_ctx_retain(&context, check->device)));
        printf(",\"synchronize_again\":\"%s\"}",
               driver_error_name(cuda, cuda->ctx_set_current(context) == CUDA_SUCCESS
                                               ? cuda->ctx_synchronize()
                                               : CUDA_ERROR_INVALID_CONTEXT));
}

int part_kernels(const struct check *check)
{
        CUfunction write, spin;
        bool sees, edits;
        CUmodule module;
        CUresult result = check->cuda->module_load_data(&module, ptx);

        if (result == CUDA_ERROR_JIT_COMPILER_NOT_FOUND) {
                printf("{\"skipped\":\"the driver has no compiler\"}\n");
                return 0;
        }
        if (result != CUDA_SUCCESS) {
                printf("{\"error\":\"cuModuleLoadData: %s\"}\n",
                       driver_error_name(check->cuda, result));
                return 1;
        }
        NEED(module_get_function(&write, module, "write"));
        NEED(module_get_function(&spin, module, "spin"));
        sees = sees_memory(check, write);
        printf("{\"sees_memory\":%s", sees ? "true" : "false");
        edits = edit_beside(check, spin);
        stray(check, write);
        printf("}\n");
        return sees && edits ? 0 : 1;
}
