# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's CUDA bindings for Python drive the virtual memory part of the simulated driver.

A program not written by us, which finds the driver by the name libcuda.so.1 and its entries by
cuGetProcAddress. Run by test_sim_python with LD_LIBRARY_PATH set; prints "N passed, M failed".
"""
import array
import os
import socket
import sys
import traceback

from cuda.bindings import driver as cuda

OK = cuda.CUresult.CUDA_SUCCESS
POSIX = cuda.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR


def call(function, *arguments):
    result, *values = function(*arguments)
    if result != OK:
        raise RuntimeError(f"{function.__name__}: {result.name}")
    return values[0] if len(values) == 1 else values


def properties():
    prop = cuda.CUmemAllocationProp()
    prop.type = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    prop.requestedHandleTypes = POSIX
    prop.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    prop.location.id = 0
    return prop


def access(flags=cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE):
    description = cuda.CUmemAccessDesc()
    description.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    description.location.id = 0
    description.flags = flags
    return description


def start():
    call(cuda.cuInit, 0)
    device = call(cuda.cuDeviceGet, 0)
    call(cuda.cuCtxSetCurrent, call(cuda.cuDevicePrimaryCtxRetain, device))
    flag = cuda.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
    return call(cuda.cuMemGetAllocationGranularity, properties(), flag)


def mapped(handle, granule):
    address = call(cuda.cuMemAddressReserve, granule, 0, 0, 0)
    call(cuda.cuMemMap, address, granule, 0, handle, 0)
    call(cuda.cuMemSetAccess, address, granule, [access()], 1)
    return address


def test_device(granule):
    assert call(cuda.cuDeviceGetCount) == 1
    assert call(cuda.cuDeviceGetName, 64, 0).startswith(b"gpumem simulated GPU")
    assert len(call(cuda.cuDeviceGetUuid, 0).bytes) == 16
    assert granule == 65536
    attribute = cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
    assert call(cuda.cuDeviceGetAttribute, attribute, 0) == 1


def test_map(granule):
    free_before, total = call(cuda.cuMemGetInfo)
    address = call(cuda.cuMemAddressReserve, 4 * granule, 0, 0, 0)
    for i in range(4):
        handle = call(cuda.cuMemCreate, granule, properties(), 0)
        call(cuda.cuMemMap, int(address) + i * granule, granule, 0, handle, 0)
        call(cuda.cuMemRelease, handle)
    call(cuda.cuMemSetAccess, address, 4 * granule, [access()], 1)
    assert call(cuda.cuMemGetInfo)[0] == free_before - 4 * granule
    out = bytes(range(256)) * (3 * granule // 256)
    back = bytearray(len(out))
    call(cuda.cuMemcpyHtoD, int(address) + 100, out, len(out))
    call(cuda.cuMemcpyDtoH, back, int(address) + 100, len(out))
    assert bytes(back) == out
    call(cuda.cuMemUnmap, address, 4 * granule)
    call(cuda.cuMemAddressFree, address, 4 * granule)
    assert call(cuda.cuMemGetInfo) == [free_before, total]


def test_access(granule):
    handle = call(cuda.cuMemCreate, granule, properties(), 0)
    address = mapped(handle, granule)
    location = access().location
    flags = call(cuda.cuMemGetAccess, location, address)
    assert int(flags) == 3, flags
    read_only = access(cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READ)
    call(cuda.cuMemSetAccess, address, granule, [read_only], 1)
    assert int(call(cuda.cuMemGetAccess, location, address)) == 1
    again = call(cuda.cuMemRetainAllocationHandle, int(address))
    assert call(cuda.cuMemGetAllocationPropertiesFromHandle, again).location.id == 0
    call(cuda.cuMemRelease, again)
    call(cuda.cuMemUnmap, address, granule)
    call(cuda.cuMemRelease, handle)
    call(cuda.cuMemAddressFree, address, granule)


def test_errors(granule):
    error = cuda.CUresult
    assert cuda.cuMemCreate(granule + 1, properties(), 0)[0] == error.CUDA_ERROR_INVALID_VALUE
    assert cuda.cuMemUnmap(0x1000, granule)[0] == error.CUDA_ERROR_INVALID_VALUE
    assert cuda.cuMemCreate(1 << 40, properties(), 0)[0] == error.CUDA_ERROR_OUT_OF_MEMORY
    assert call(cuda.cuGetErrorName, error.CUDA_ERROR_OUT_OF_MEMORY) == b"CUDA_ERROR_OUT_OF_MEMORY"
    assert cuda.cuModuleLoadData(b"\x7fELF" + bytes(60))[0] == error.CUDA_ERROR_NO_BINARY_FOR_GPU


def test_streams(granule):
    handle = call(cuda.cuMemCreate, granule, properties(), 0)
    address = mapped(handle, granule)
    stream = call(cuda.cuStreamCreate, cuda.CUstream_flags.CU_STREAM_NON_BLOCKING)
    event = call(cuda.cuEventCreate, 0)
    call(cuda.cuMemsetD8Async, address, 7, granule, stream)
    call(cuda.cuEventRecord, event, stream)
    call(cuda.cuEventSynchronize, event)
    back = bytearray(granule)
    call(cuda.cuMemcpyDtoH, back, address, granule)
    assert bytes(back) == bytes([7]) * granule
    call(cuda.cuEventDestroy, event)
    call(cuda.cuStreamDestroy, stream)
    call(cuda.cuMemUnmap, address, granule)
    call(cuda.cuMemRelease, handle)
    call(cuda.cuMemAddressFree, address, granule)


def test_another_process(granule):
    """Memory made and filled by another process, which is gone when it is read."""
    here, there = socket.socketpair()
    os.set_inheritable(there.fileno(), True)
    child = os.spawnv(os.P_NOWAIT, sys.executable,
                      [sys.executable, __file__, "--export", str(there.fileno())])
    there.close()
    _, control, _, _ = here.recvmsg(1, socket.CMSG_SPACE(4))
    fd = array.array("i", control[0][2][:4])[0]
    assert os.waitpid(child, 0)[1] == 0
    handle = call(cuda.cuMemImportFromShareableHandle, fd, POSIX)
    os.close(fd)
    address = mapped(handle, granule)
    back = bytearray(granule)
    call(cuda.cuMemcpyDtoH, back, address, granule)
    assert bytes(back) == bytes([0x5A]) * granule
    call(cuda.cuMemUnmap, address, granule)
    call(cuda.cuMemRelease, handle)
    call(cuda.cuMemAddressFree, address, granule)


def export(descriptor):
    granule = start()
    handle = call(cuda.cuMemCreate, granule, properties(), 0)
    call(cuda.cuMemsetD8, mapped(handle, granule), 0x5A, granule)
    fd = call(cuda.cuMemExportToShareableHandle, handle, POSIX, 0)
    out = socket.socket(fileno=descriptor)
    out.sendmsg([b"d"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [int(fd)]))])


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "--export":
        export(int(sys.argv[2]))
        return 0
    granule = start()
    before = call(cuda.cuMemGetInfo)
    passed = failed = 0
    for name, function in sorted(globals().items()):
        if not name.startswith("test_"):
            continue
        try:
            function(granule)
            assert call(cuda.cuMemGetInfo) == before, "memory is left over"
            print(f"ok {name}")
            passed += 1
        except Exception:
            traceback.print_exc()
            print(f"not ok {name}")
            failed += 1
    print(f"{passed} passed, {failed} failed")
    return failed != 0


sys.exit(main())
