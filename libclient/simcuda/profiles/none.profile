# SPDX-License-Identifier: Apache-2.0
# No latency is added: every call takes as long as the simulator needs.
