/* SPDX-License-Identifier: Apache-2.0 */
/* The interface definition, taken from its one source at build time. */
#include "daemon/admin.h"

__asm__(".pushsection .rodata\n"
        ".global admin_interface_text\n"
        ".hidden admin_interface_text\n"
        ".type admin_interface_text, @object\n"
        "admin_interface_text:\n"
        ".incbin \"include/gpumem/io.gpumemd.varlink\"\n"
        ".byte 0\n"
        ".size admin_interface_text, . - admin_interface_text\n"
        ".popsection\n");
