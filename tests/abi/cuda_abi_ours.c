/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/driver/cuda_abi.h"

#include "tests/abi/cuda_abi.h"

const struct abi_fact abi_ours[] = {
#include "tests/abi/cuda_abi_list.h"
};
const size_t abi_ours_count = sizeof(abi_ours) / sizeof(abi_ours[0]);
