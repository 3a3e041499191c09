/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every entry of the driver table, once: DRIVER_ENTRY(member, symbol, fallback symbol or NULL,
 * parameters). driver.h makes the members from it, driver.c the loading, so a new entry is one line
 * here. The symbols are those a current driver exports (version suffix included); all are required
 * unless DRIVER_ENTRY_OPTIONAL.
 *
 * Included more than once: no guard.
 */
DRIVER_ENTRY(init, "cuInit", NULL, (unsigned int flags))
DRIVER_ENTRY(driver_get_version, "cuDriverGetVersion", NULL, (int *version))
DRIVER_ENTRY(get_error_name, "cuGetErrorName", NULL, (CUresult error, const char **name))
DRIVER_ENTRY(get_error_string, "cuGetErrorString", NULL, (CUresult error, const char **text))
DRIVER_ENTRY_OPTIONAL(get_proc_address, "cuGetProcAddress_v2", NULL,
                      (const char *symbol, void **function, int cuda_version, uint64_t flags,
                       CUdriverProcAddressQueryResult *status))

DRIVER_ENTRY(device_get_count, "cuDeviceGetCount", NULL, (int *count))
DRIVER_ENTRY(device_get, "cuDeviceGet", NULL, (CUdevice * device, int ordinal))
DRIVER_ENTRY(device_get_name, "cuDeviceGetName", NULL, (char *name, int length, CUdevice device))
DRIVER_ENTRY(device_get_uuid, "cuDeviceGetUuid_v2", "cuDeviceGetUuid",
             (CUuuid * uuid, CUdevice device))
DRIVER_ENTRY(device_get_attribute, "cuDeviceGetAttribute", NULL,
             (int *value, CUdevice_attribute attribute, CUdevice device))
DRIVER_ENTRY(device_total_mem, "cuDeviceTotalMem_v2", NULL, (size_t * bytes, CUdevice device))

DRIVER_ENTRY(device_primary_ctx_retain, "cuDevicePrimaryCtxRetain", NULL,
             (CUcontext * context, CUdevice device))
DRIVER_ENTRY(device_primary_ctx_release, "cuDevicePrimaryCtxRelease_v2", NULL, (CUdevice device))
DRIVER_ENTRY(device_primary_ctx_reset, "cuDevicePrimaryCtxReset_v2", NULL, (CUdevice device))
DRIVER_ENTRY(ctx_push_current, "cuCtxPushCurrent_v2", NULL, (CUcontext context))
DRIVER_ENTRY(ctx_pop_current, "cuCtxPopCurrent_v2", NULL, (CUcontext * context))
DRIVER_ENTRY(ctx_set_current, "cuCtxSetCurrent", NULL, (CUcontext context))
DRIVER_ENTRY(ctx_get_current, "cuCtxGetCurrent", NULL, (CUcontext * context))
DRIVER_ENTRY(ctx_get_device, "cuCtxGetDevice", NULL, (CUdevice * device))
DRIVER_ENTRY(ctx_synchronize, "cuCtxSynchronize", NULL, (void))

DRIVER_ENTRY(mem_get_info, "cuMemGetInfo_v2", NULL, (size_t * free_bytes, size_t *total_bytes))
DRIVER_ENTRY(mem_alloc, "cuMemAlloc_v2", NULL, (CUdeviceptr * pointer, size_t bytes))
DRIVER_ENTRY(mem_free, "cuMemFree_v2", NULL, (CUdeviceptr pointer))
DRIVER_ENTRY(mem_host_alloc, "cuMemHostAlloc", NULL,
             (void **pointer, size_t bytes, unsigned int flags))
DRIVER_ENTRY(mem_free_host, "cuMemFreeHost", NULL, (void *pointer))
DRIVER_ENTRY(mem_host_register, "cuMemHostRegister_v2", NULL,
             (void *pointer, size_t bytes, unsigned int flags))
DRIVER_ENTRY(mem_host_unregister, "cuMemHostUnregister", NULL, (void *pointer))
DRIVER_ENTRY(pointer_get_attribute, "cuPointerGetAttribute", NULL,
             (void *data, CUpointer_attribute attribute, CUdeviceptr pointer))

DRIVER_ENTRY(memcpy_htod, "cuMemcpyHtoD_v2", NULL,
             (CUdeviceptr destination, const void *source, size_t bytes))
DRIVER_ENTRY(memcpy_dtoh, "cuMemcpyDtoH_v2", NULL,
             (void *destination, CUdeviceptr source, size_t bytes))
DRIVER_ENTRY(memcpy_dtod, "cuMemcpyDtoD_v2", NULL,
             (CUdeviceptr destination, CUdeviceptr source, size_t bytes))
DRIVER_ENTRY(memcpy_htod_async, "cuMemcpyHtoDAsync_v2", NULL,
             (CUdeviceptr destination, const void *source, size_t bytes, CUstream stream))
DRIVER_ENTRY(memcpy_dtoh_async, "cuMemcpyDtoHAsync_v2", NULL,
             (void *destination, CUdeviceptr source, size_t bytes, CUstream stream))
DRIVER_ENTRY(memcpy_dtod_async, "cuMemcpyDtoDAsync_v2", NULL,
             (CUdeviceptr destination, CUdeviceptr source, size_t bytes, CUstream stream))
DRIVER_ENTRY(memcpy_2d, "cuMemcpy2D_v2", NULL, (const CUDA_MEMCPY2D *copy))
DRIVER_ENTRY(memcpy_2d_async, "cuMemcpy2DAsync_v2", NULL,
             (const CUDA_MEMCPY2D *copy, CUstream stream))
DRIVER_ENTRY(memset_d8, "cuMemsetD8_v2", NULL,
             (CUdeviceptr destination, unsigned char value, size_t count))
DRIVER_ENTRY(memset_d32, "cuMemsetD32_v2", NULL,
             (CUdeviceptr destination, unsigned int value, size_t count))
DRIVER_ENTRY(memset_d8_async, "cuMemsetD8Async", NULL,
             (CUdeviceptr destination, unsigned char value, size_t count, CUstream stream))
DRIVER_ENTRY(memset_d32_async, "cuMemsetD32Async", NULL,
             (CUdeviceptr destination, unsigned int value, size_t count, CUstream stream))

DRIVER_ENTRY(mem_get_allocation_granularity, "cuMemGetAllocationGranularity", NULL,
             (size_t * granularity, const CUmemAllocationProp *properties,
              CUmemAllocationGranularity_flags option))
DRIVER_ENTRY(mem_address_reserve, "cuMemAddressReserve", NULL,
             (CUdeviceptr * address, size_t bytes, size_t alignment, CUdeviceptr hint,
              unsigned long long flags))
DRIVER_ENTRY(mem_address_free, "cuMemAddressFree", NULL, (CUdeviceptr address, size_t bytes))
DRIVER_ENTRY(mem_create, "cuMemCreate", NULL,
             (CUmemGenericAllocationHandle * handle, size_t bytes,
              const CUmemAllocationProp *properties, unsigned long long flags))
DRIVER_ENTRY(mem_release, "cuMemRelease", NULL, (CUmemGenericAllocationHandle handle))
DRIVER_ENTRY(mem_map, "cuMemMap", NULL,
             (CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
              unsigned long long flags))
DRIVER_ENTRY(mem_unmap, "cuMemUnmap", NULL, (CUdeviceptr address, size_t bytes))
DRIVER_ENTRY(mem_set_access, "cuMemSetAccess", NULL,
             (CUdeviceptr address, size_t bytes, const CUmemAccessDesc *descriptions, size_t count))
DRIVER_ENTRY(mem_get_access, "cuMemGetAccess", NULL,
             (unsigned long long *flags, const CUmemLocation *location, CUdeviceptr address))
DRIVER_ENTRY(mem_export_to_shareable_handle, "cuMemExportToShareableHandle", NULL,
             (void *shareable, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
              unsigned long long flags))
/* For POSIX descriptors `shareable` is (void *)(intptr_t)fd; the caller keeps its descriptor. */
DRIVER_ENTRY(mem_import_from_shareable_handle, "cuMemImportFromShareableHandle", NULL,
             (CUmemGenericAllocationHandle * handle, void *shareable,
              CUmemAllocationHandleType type))
DRIVER_ENTRY(mem_retain_allocation_handle, "cuMemRetainAllocationHandle", NULL,
             (CUmemGenericAllocationHandle * handle, void *address))
DRIVER_ENTRY(mem_get_allocation_properties, "cuMemGetAllocationPropertiesFromHandle", NULL,
             (CUmemAllocationProp * properties, CUmemGenericAllocationHandle handle))

DRIVER_ENTRY(stream_create, "cuStreamCreate", NULL, (CUstream * stream, unsigned int flags))
DRIVER_ENTRY(stream_create_with_priority, "cuStreamCreateWithPriority", NULL,
             (CUstream * stream, unsigned int flags, int priority))
DRIVER_ENTRY(stream_destroy, "cuStreamDestroy_v2", NULL, (CUstream stream))
DRIVER_ENTRY(stream_synchronize, "cuStreamSynchronize", NULL, (CUstream stream))
DRIVER_ENTRY(stream_query, "cuStreamQuery", NULL, (CUstream stream))
DRIVER_ENTRY(stream_wait_event, "cuStreamWaitEvent", NULL,
             (CUstream stream, CUevent event, unsigned int flags))
DRIVER_ENTRY(launch_host_func, "cuLaunchHostFunc", NULL,
             (CUstream stream, CUhostFn function, void *user_data))
DRIVER_ENTRY(event_create, "cuEventCreate", NULL, (CUevent * event, unsigned int flags))
DRIVER_ENTRY(event_destroy, "cuEventDestroy_v2", NULL, (CUevent event))
DRIVER_ENTRY(event_record, "cuEventRecord", NULL, (CUevent event, CUstream stream))
DRIVER_ENTRY(event_query, "cuEventQuery", NULL, (CUevent event))
DRIVER_ENTRY(event_synchronize, "cuEventSynchronize", NULL, (CUevent event))
DRIVER_ENTRY(event_elapsed_time, "cuEventElapsedTime", NULL,
             (float *milliseconds, CUevent start, CUevent end))
