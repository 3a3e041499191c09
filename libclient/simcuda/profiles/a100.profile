# SPDX-License-Identifier: Apache-2.0
# NVIDIA A100: mean microseconds of the virtual memory calls, 2 MiB allocations. The first five are
# published measurements; what nobody published stays as fast as the simulator is. Set it here, or
# copy this file and name the copy in GPUMEM_SIM_PROFILE.
create = 193
map = 1.5
set_access = 36
unmap = 26
reserve = 19
import = 0
export = 0
release = 0
free = 0
# How long the memory of a killed process takes to be free again.
late_return = 0
