/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every entry of the driver table, once: DRIVER_ENTRY(member, symbol, parameters). DRIVER_ENTRY_OR
 * names the symbol of older drivers behind the current one; DRIVER_ENTRY_OPTIONAL may be missing,
 * all others not. driver.h makes the members from it, driver.c the loading, tests/abi the
 * comparison of signatures with cuda.h, so a new entry is one line here.
 *
 * Included more than once: no guard.
 */
DRIVER_ENTRY(init, cuInit, (unsigned int flags))
DRIVER_ENTRY(driver_get_version, cuDriverGetVersion, (int *version))
DRIVER_ENTRY(get_error_name, cuGetErrorName, (CUresult error, const char **name))
DRIVER_ENTRY(get_error_string, cuGetErrorString, (CUresult error, const char **text))
DRIVER_ENTRY_OPTIONAL(get_proc_address, cuGetProcAddress_v2,
                      (const char *symbol, void **function, int cuda_version, uint64_t flags,
                       CUdriverProcAddressQueryResult *status))

DRIVER_ENTRY(device_get_count, cuDeviceGetCount, (int *count))
DRIVER_ENTRY(device_get, cuDeviceGet, (CUdevice * device, int ordinal))
DRIVER_ENTRY(device_get_name, cuDeviceGetName, (char *name, int length, CUdevice device))
DRIVER_ENTRY_OR(device_get_uuid, cuDeviceGetUuid_v2, cuDeviceGetUuid,
                (CUuuid * uuid, CUdevice device))
DRIVER_ENTRY(device_get_attribute, cuDeviceGetAttribute,
             (int *value, CUdevice_attribute attribute, CUdevice device))
DRIVER_ENTRY(device_total_mem, cuDeviceTotalMem_v2, (size_t * bytes, CUdevice device))

DRIVER_ENTRY(device_primary_ctx_retain, cuDevicePrimaryCtxRetain,
             (CUcontext * context, CUdevice device))
DRIVER_ENTRY(device_primary_ctx_release, cuDevicePrimaryCtxRelease_v2, (CUdevice device))
DRIVER_ENTRY(device_primary_ctx_reset, cuDevicePrimaryCtxReset_v2, (CUdevice device))
DRIVER_ENTRY(ctx_push_current, cuCtxPushCurrent_v2, (CUcontext context))
DRIVER_ENTRY(ctx_pop_current, cuCtxPopCurrent_v2, (CUcontext * context))
DRIVER_ENTRY(ctx_set_current, cuCtxSetCurrent, (CUcontext context))
DRIVER_ENTRY(ctx_get_current, cuCtxGetCurrent, (CUcontext * context))
DRIVER_ENTRY(ctx_get_device, cuCtxGetDevice, (CUdevice * device))
DRIVER_ENTRY(ctx_synchronize, cuCtxSynchronize, (void))

DRIVER_ENTRY(mem_get_info, cuMemGetInfo_v2, (size_t * free_bytes, size_t *total_bytes))
DRIVER_ENTRY(mem_alloc, cuMemAlloc_v2, (CUdeviceptr * pointer, size_t bytes))
DRIVER_ENTRY(mem_free, cuMemFree_v2, (CUdeviceptr pointer))
DRIVER_ENTRY(mem_host_alloc, cuMemHostAlloc, (void **pointer, size_t bytes, unsigned int flags))
DRIVER_ENTRY(mem_free_host, cuMemFreeHost, (void *pointer))
DRIVER_ENTRY(mem_host_register, cuMemHostRegister_v2,
             (void *pointer, size_t bytes, unsigned int flags))
DRIVER_ENTRY(mem_host_unregister, cuMemHostUnregister, (void *pointer))
DRIVER_ENTRY(pointer_get_attribute, cuPointerGetAttribute,
             (void *data, CUpointer_attribute attribute, CUdeviceptr pointer))

DRIVER_ENTRY(memcpy_htod, cuMemcpyHtoD_v2,
             (CUdeviceptr destination, const void *source, size_t bytes))
DRIVER_ENTRY(memcpy_dtoh, cuMemcpyDtoH_v2, (void *destination, CUdeviceptr source, size_t bytes))
DRIVER_ENTRY(memcpy_dtod, cuMemcpyDtoD_v2,
             (CUdeviceptr destination, CUdeviceptr source, size_t bytes))
DRIVER_ENTRY(memcpy_htod_async, cuMemcpyHtoDAsync_v2,
             (CUdeviceptr destination, const void *source, size_t bytes, CUstream stream))
DRIVER_ENTRY(memcpy_dtoh_async, cuMemcpyDtoHAsync_v2,
             (void *destination, CUdeviceptr source, size_t bytes, CUstream stream))
DRIVER_ENTRY(memcpy_dtod_async, cuMemcpyDtoDAsync_v2,
             (CUdeviceptr destination, CUdeviceptr source, size_t bytes, CUstream stream))
DRIVER_ENTRY(memcpy_2d, cuMemcpy2D_v2, (const CUDA_MEMCPY2D *copy))
DRIVER_ENTRY(memcpy_2d_async, cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D *copy, CUstream stream))
DRIVER_ENTRY(memset_d8, cuMemsetD8_v2, (CUdeviceptr destination, unsigned char value, size_t count))
DRIVER_ENTRY(memset_d32, cuMemsetD32_v2,
             (CUdeviceptr destination, unsigned int value, size_t count))
DRIVER_ENTRY(memset_d8_async, cuMemsetD8Async,
             (CUdeviceptr destination, unsigned char value, size_t count, CUstream stream))
DRIVER_ENTRY(memset_d32_async, cuMemsetD32Async,
             (CUdeviceptr destination, unsigned int value, size_t count, CUstream stream))

DRIVER_ENTRY(mem_get_allocation_granularity, cuMemGetAllocationGranularity,
             (size_t * granularity, const CUmemAllocationProp *properties,
              CUmemAllocationGranularity_flags option))
DRIVER_ENTRY(mem_address_reserve, cuMemAddressReserve,
             (CUdeviceptr * address, size_t bytes, size_t alignment, CUdeviceptr hint,
              unsigned long long flags))
DRIVER_ENTRY(mem_address_free, cuMemAddressFree, (CUdeviceptr address, size_t bytes))
DRIVER_ENTRY(mem_create, cuMemCreate,
             (CUmemGenericAllocationHandle * handle, size_t bytes,
              const CUmemAllocationProp *properties, unsigned long long flags))
DRIVER_ENTRY(mem_release, cuMemRelease, (CUmemGenericAllocationHandle handle))
DRIVER_ENTRY(mem_map, cuMemMap,
             (CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
              unsigned long long flags))
DRIVER_ENTRY(mem_unmap, cuMemUnmap, (CUdeviceptr address, size_t bytes))
DRIVER_ENTRY(mem_set_access, cuMemSetAccess,
             (CUdeviceptr address, size_t bytes, const CUmemAccessDesc *descriptions, size_t count))
DRIVER_ENTRY(mem_get_access, cuMemGetAccess,
             (unsigned long long *flags, const CUmemLocation *location, CUdeviceptr address))
DRIVER_ENTRY(mem_export_to_shareable_handle, cuMemExportToShareableHandle,
             (void *shareable, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
              unsigned long long flags))
/* For POSIX descriptors `shareable` is (void *)(intptr_t)fd; the caller keeps its descriptor. */
DRIVER_ENTRY(mem_import_from_shareable_handle, cuMemImportFromShareableHandle,
             (CUmemGenericAllocationHandle * handle, void *shareable,
              CUmemAllocationHandleType type))
DRIVER_ENTRY(mem_retain_allocation_handle, cuMemRetainAllocationHandle,
             (CUmemGenericAllocationHandle * handle, void *address))
DRIVER_ENTRY(mem_get_allocation_properties, cuMemGetAllocationPropertiesFromHandle,
             (CUmemAllocationProp * properties, CUmemGenericAllocationHandle handle))

/* Device code: on the simulator there is none, and these say so. */
DRIVER_ENTRY(module_load_data, cuModuleLoadData, (CUmodule * module, const void *image))
DRIVER_ENTRY(module_unload, cuModuleUnload, (CUmodule module))
DRIVER_ENTRY(module_get_function, cuModuleGetFunction,
             (CUfunction * function, CUmodule module, const char *name))
DRIVER_ENTRY(launch_kernel, cuLaunchKernel,
             (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
              unsigned int block_x, unsigned int block_y, unsigned int block_z,
              unsigned int shared_bytes, CUstream stream, void **parameters, void **extra))

DRIVER_ENTRY(stream_create, cuStreamCreate, (CUstream * stream, unsigned int flags))
DRIVER_ENTRY(stream_create_with_priority, cuStreamCreateWithPriority,
             (CUstream * stream, unsigned int flags, int priority))
DRIVER_ENTRY(stream_destroy, cuStreamDestroy_v2, (CUstream stream))
DRIVER_ENTRY(stream_synchronize, cuStreamSynchronize, (CUstream stream))
DRIVER_ENTRY(stream_query, cuStreamQuery, (CUstream stream))
DRIVER_ENTRY(stream_wait_event, cuStreamWaitEvent,
             (CUstream stream, CUevent event, unsigned int flags))
DRIVER_ENTRY(launch_host_func, cuLaunchHostFunc,
             (CUstream stream, CUhostFn function, void *user_data))
DRIVER_ENTRY(event_create, cuEventCreate, (CUevent * event, unsigned int flags))
DRIVER_ENTRY(event_destroy, cuEventDestroy_v2, (CUevent event))
DRIVER_ENTRY(event_record, cuEventRecord, (CUevent event, CUstream stream))
DRIVER_ENTRY(event_query, cuEventQuery, (CUevent event))
DRIVER_ENTRY(event_synchronize, cuEventSynchronize, (CUevent event))
DRIVER_ENTRY(event_elapsed_time, cuEventElapsedTime,
             (float *milliseconds, CUevent start, CUevent end))
