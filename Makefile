# SPDX-License-Identifier: Apache-2.0
# gpumemd: one Makefile. `make help` lists the targets.
#
# Sources are found by folder (one folder, one product or archive), so a new file needs no entry here.
# Everything that is made lies in $(BUILD): build/, or build/san-... when SAN= names sanitizers.

VERSION   := 0.1.0
SOVERSION := 0

SAN ?=
ifeq ($(strip $(SAN)),)
BUILD := build
else
comma := ,
BUILD := build/san-$(subst $(comma),-,$(SAN))
SANFLAGS := -fsanitize=$(SAN) -fno-omit-frame-pointer -DGPUMEM_LOCK_CHECK
ifneq ($(findstring undefined,$(SAN)),)
SANFLAGS += -fno-sanitize-recover=undefined
endif
endif

PREFIX  ?= /usr/local
DESTDIR ?=
LIBDIR  ?= $(PREFIX)/lib
BINDIR  ?= $(PREFIX)/bin
SBINDIR ?= $(PREFIX)/sbin
MANDIR  ?= $(PREFIX)/share/man
SYSCONFDIR ?= /etc

V ?= 0
ifeq ($(V),1)
Q :=
say = @:
else
Q := @
say = @printf '  %-8s %s\n'
endif

CC      ?= gcc
PKGS    := libsystemd json-c inih
CFLAGS  ?= -O2 -g
WARN    := -Wall -Wextra -Wshadow -Wvla -Wmissing-prototypes -Wstrict-prototypes \
           -Werror=implicit-function-declaration -Werror=incompatible-pointer-types
CPPFLAGS += -D_GNU_SOURCE -Iinclude -I. -DGPUMEM_VERSION='"$(VERSION)"' -DGPUMEM_SYSCONFDIR='"$(SYSCONFDIR)"'
# Contraction is off so that a kernel's rounding is what its source says, on every optimisation level.
ALL_CFLAGS = -std=gnu11 -fPIC -pthread -fvisibility=hidden -ffp-contract=off $(WARN) $(CFLAGS) $(SANFLAGS) $(CPPFLAGS)
ALL_LDFLAGS = -pthread $(SANFLAGS) $(LDFLAGS)
PKG_CFLAGS = $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
LIBS_SYSTEMD = $(shell pkg-config --libs libsystemd 2>/dev/null)
LIBS_JSON    = $(shell pkg-config --libs json-c 2>/dev/null)
LIBS_INIH    = $(shell pkg-config --libs inih 2>/dev/null)

srcs = $(sort $(wildcard $(addsuffix /*.c,$(1))))
objs = $(patsubst %.c,$(BUILD)/obj/%.o,$(call srcs,$(1)))

DRIVER_OBJS  := $(call objs,libclient/driver)
WIRE_OBJS    := $(call objs,libclient/wire)
KERNEL_OBJS  := $(call objs,kernels/cpu)
CLIENT_OBJS  := $(call objs,libclient)
SIM_OBJS     := $(call objs,libclient/simcuda)
SIM_PROFILES := $(patsubst libclient/simcuda/%,$(BUILD)/%,$(wildcard libclient/simcuda/profiles/*.profile))
DAEMON_OBJS  := $(filter-out %/main.o,$(call objs,daemon))
KEEPER_OBJS  := $(filter-out %/main.o,$(call objs,daemon/keeper))
CTL_OBJS     := $(filter-out %/main.o,$(call objs,tools/gpumemctl))
GEN_OBJS     := $(filter-out %/main.o,$(call objs,tools/gen))
BENCH_OBJS   := $(filter-out %/main.o,$(call objs,tools/bench))
UNIT_TESTS   := $(patsubst tests/unit/%.c,$(BUILD)/tests/unit/%,$(sort $(wildcard tests/unit/test_*.c)))
INTEGRATION_TESTS := $(patsubst tests/integration/%.c,$(BUILD)/tests/integration/%,$(sort $(wildcard tests/integration/test_*.c)))
HELPERS      := $(patsubst tests/integration/%.c,$(BUILD)/tests/integration/%,$(sort $(wildcard tests/integration/helper_*.c)))
SUPPORT_OBJS := $(call objs,tests/support)
MAN_SOURCES  := $(sort $(wildcard daemon/*.scd daemon/keeper/*.scd libclient/*.scd tools/*/*.scd))
MAN_PAGES    := $(addprefix $(BUILD)/man/,$(notdir $(MAN_SOURCES:.scd=)))

A_DRIVER := $(BUILD)/lib/driver.a
A_WIRE   := $(BUILD)/lib/wire.a
A_KERNEL := $(BUILD)/lib/kernels-cpu.a
A_CLIENT := $(BUILD)/lib/client.a
A_DAEMON := $(BUILD)/lib/daemon.a
A_KEEPER := $(BUILD)/lib/keeper.a
A_CTL    := $(BUILD)/lib/gpumemctl.a
A_GEN    := $(BUILD)/lib/gen.a
A_BENCH  := $(BUILD)/lib/bench.a
A_SUPPORT := $(BUILD)/lib/support.a
PRODUCTS := $(BUILD)/gpumemd $(BUILD)/gpumemd-keeper $(BUILD)/gpumemctl $(BUILD)/gpumem-gen $(BUILD)/gpumem-bench \
            $(BUILD)/libgpumem.so $(BUILD)/libcuda-sim.so

.PHONY: all help deps build test demo bench man install uninstall clean tests format lint
all: build

help:
	@echo 'gpumemd $(VERSION)'
	@echo '  make deps       install the missing Debian packages (sudo if not root)'
	@echo '  make build      daemon, library, simulator, tools and man pages into build/'
	@echo '  make test       build, then all unit and integration tests; SAN=address,undefined or SAN=thread for sanitizers'
	@echo '  make demo       two engines on one simulated GPU, checked token by token'
	@echo '  make bench      the benches that need no GPU, JSON out'
	@echo '  make lint       format check, cppcheck and clang-tidy'
	@echo '  make fuzz       SECONDS=60 for every message parser, or FUZZ=target; replayed corpora are part of test'
	@echo '  make format     rewrite the sources with clang-format'
	@echo '  make install    into DESTDIR/PREFIX (PREFIX=$(PREFIX)); make uninstall takes it out again'
	@echo '  make clean      remove build/'
	@echo '  V=1 shows commands; CFLAGS, LDFLAGS, CC as usual'

deps:
	@tools/deps.sh

build: deps
	$(Q)$(MAKE) --no-print-directory SAN='$(SAN)' products

.PHONY: products
products: $(PRODUCTS) $(SIM_PROFILES) man pkgconfig

# --- objects -------------------------------------------------------------------------------------
# A kernel file says in its name which instruction set it may use; only those files get the flags.
ifeq ($(shell uname -m),x86_64)
$(BUILD)/obj/%_avx512.o: EXTRA = -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx2 -mfma -mf16c
$(BUILD)/obj/%_avx2.o:   EXTRA = -mavx2 -mfma -mf16c
endif
$(BUILD)/obj/kernels/cpu/%.o: EXTRA_OPT = -O3
$(BUILD)/obj/tests/abi/%_toolkit.o: EXTRA = $(CUDA_INCLUDE)
CUDA_HOME ?= /usr/local/cuda
CUDA_INCLUDE := $(if $(wildcard $(CUDA_HOME)/include/cuda.h),-DHAVE_CUDA_H=1 -isystem $(CUDA_HOME)/include)

$(BUILD)/obj/%.o: %.c $(BUILD)/flags
	$(say) CC $<
	@mkdir -p $(@D)
	$(Q)$(CC) $(ALL_CFLAGS) $(EXTRA_OPT) $(EXTRA) $(PKG_CFLAGS) -MMD -MP -c -o $@ $<

# The interface's text is assembled into the daemon.
$(BUILD)/obj/daemon/admin_interface.o: include/gpumem/io.gpumemd.varlink

# Objects are remade when the flags change.
$(BUILD)/flags: FORCE
	@mkdir -p $(BUILD)
	@echo '$(CC) $(ALL_CFLAGS) $(CUDA_INCLUDE)' | cmp -s - $@ || echo '$(CC) $(ALL_CFLAGS) $(CUDA_INCLUDE)' > $@
.PHONY: FORCE
FORCE:

define archive
$(1): $(2)
	$$(say) AR $$@
	@mkdir -p $$(@D)
	@rm -f $$@
	$$(Q)ar rcs $$@ $$^
endef
$(eval $(call archive,$(A_DRIVER),$(DRIVER_OBJS)))
$(eval $(call archive,$(A_WIRE),$(WIRE_OBJS)))
$(eval $(call archive,$(A_KERNEL),$(KERNEL_OBJS)))
$(eval $(call archive,$(A_CLIENT),$(CLIENT_OBJS)))
$(eval $(call archive,$(A_DAEMON),$(DAEMON_OBJS)))
$(eval $(call archive,$(A_KEEPER),$(KEEPER_OBJS)))
$(eval $(call archive,$(A_CTL),$(CTL_OBJS)))
$(eval $(call archive,$(A_GEN),$(GEN_OBJS)))
$(eval $(call archive,$(A_BENCH),$(BENCH_OBJS)))
$(eval $(call archive,$(A_SUPPORT),$(SUPPORT_OBJS)))

# --- products ------------------------------------------------------------------------------------
# Programs find our libraries (and dlopen the simulated driver) beside themselves or in ../lib, without ldconfig.
RUNPATH := -Wl,-rpath,'$$ORIGIN' -Wl,-rpath,'$$ORIGIN/../lib'

$(BUILD)/libcuda-sim.so: $(SIM_OBJS) | $(SIM_PROFILES)
	$(say) LD $@
	$(Q)$(CC) $(ALL_LDFLAGS) -shared -Wl,-soname,libcuda-sim.so -o $@ $^ -lrt -ldl

# Beside the library, where it looks for them.
$(BUILD)/profiles/%.profile: libclient/simcuda/profiles/%.profile
	@mkdir -p $(@D)
	$(Q)cp $< $@

$(BUILD)/libgpumem.so.$(VERSION): $(CLIENT_OBJS) $(A_DRIVER) $(A_WIRE) $(A_KERNEL)
	$(say) LD $@
	$(Q)$(CC) $(ALL_LDFLAGS) -shared -Wl,-soname,libgpumem.so.$(SOVERSION) -Wl,--no-undefined -Wl,--exclude-libs,ALL \
	    -o $@ $^ -ldl -lm
$(BUILD)/libgpumem.so: $(BUILD)/libgpumem.so.$(VERSION)
	$(Q)ln -sf $(notdir $<) $(BUILD)/libgpumem.so.$(SOVERSION) && ln -sf libgpumem.so.$(SOVERSION) $@

$(BUILD)/gpumemd: $(BUILD)/obj/daemon/main.o $(A_DAEMON) $(A_DRIVER) $(A_WIRE)
	$(say) LD $@
	$(Q)$(CC) $(ALL_LDFLAGS) $(RUNPATH) -o $@ $^ $(LIBS_SYSTEMD) $(LIBS_JSON) $(LIBS_INIH) -ldl

$(BUILD)/gpumemd-keeper: $(BUILD)/obj/daemon/keeper/main.o $(A_KEEPER) $(A_WIRE)
	$(say) LD $@
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $^ $(LIBS_SYSTEMD)

$(BUILD)/gpumemctl: $(BUILD)/obj/tools/gpumemctl/main.o $(A_CTL)
	$(say) LD $@
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $^ $(LIBS_JSON)

# The reference engine is an ordinary user of the shared library (and of the driver table, as any CUDA program is of libcuda).
$(BUILD)/gpumem-gen: $(BUILD)/obj/tools/gen/main.o $(A_GEN) $(A_DRIVER) $(A_KERNEL) $(BUILD)/libgpumem.so
	$(say) LD $@
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $(filter-out %.so,$^) -L$(BUILD) -lgpumem $(RUNPATH) $(LIBS_JSON) -ldl -lm

$(BUILD)/gpumem-bench: $(BUILD)/obj/tools/bench/main.o $(A_BENCH) $(A_CLIENT) $(A_DAEMON) $(A_DRIVER) $(A_WIRE) $(A_KERNEL)
	$(say) LD $@
	$(Q)$(CC) $(ALL_LDFLAGS) $(RUNPATH) -o $@ $^ $(LIBS_SYSTEMD) $(LIBS_JSON) $(LIBS_INIH) -ldl -lm

# --- tests ---------------------------------------------------------------------------------------
TEST_ARCHIVES := $(if $(SUPPORT_OBJS),$(A_SUPPORT)) $(A_GEN) $(A_CTL) $(A_CLIENT) $(A_DAEMON) $(A_KEEPER) $(A_DRIVER) $(A_WIRE) $(A_KERNEL)
ABI_OBJS := $(call objs,tests/abi)

$(BUILD)/tests/unit/test_cuda_abi: $(ABI_OBJS)
	$(say) LD $@
	@mkdir -p $(@D)
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $^ -lcunit

$(BUILD)/tests/%: $(BUILD)/obj/tests/%.o $(TEST_ARCHIVES)
	$(say) LD $@
	@mkdir -p $(@D)
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $< -Wl,--start-group $(TEST_ARCHIVES) -Wl,--end-group -lcunit $(LIBS_SYSTEMD) $(LIBS_JSON) $(LIBS_INIH) -ldl -lm

TESTS := $(if $(ABI_OBJS),$(BUILD)/tests/unit/test_cuda_abi) $(UNIT_TESTS) $(INTEGRATION_TESTS)
TESTS += $(BUILD)/cuda-conformance
tests: $(TESTS) $(HELPERS) $(BUILD)/tests/libopaque-driver.so

# The parts of tests/gpu/check.sh that are programs. Built with the tests, run where there is a GPU.
tests: $(BUILD)/gpu-check
$(BUILD)/gpu-check: $(call objs,tests/gpu) $(A_DRIVER) $(BUILD)/libgpumem.so
	$(say) LD $@
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $(filter-out %.so,$^) -L$(BUILD) -lgpumem -Wl,-rpath,'$$ORIGIN' -Wl,-rpath,'$$ORIGIN/../lib' -ldl

# The simulator with descriptors that say nothing about the memory.
$(BUILD)/tests/libopaque-driver.so: $(call objs,tests/opaque) $(BUILD)/libcuda-sim.so
	$(say) LD $@
	@mkdir -p $(@D)
	$(Q)$(CC) $(ALL_LDFLAGS) -shared -Wl,--no-as-needed -o $@ $(call objs,tests/opaque) -L$(BUILD) -l:libcuda-sim.so -Wl,-rpath,'$$ORIGIN/..' -ldl

# One test per documented behaviour of the driver, on the simulator here, on a GPU by tests/gpu/check.sh.
$(BUILD)/cuda-conformance: $(call objs,tests/conformance) $(A_DRIVER)
	$(say) LD $@
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $^ -ldl

test: deps
	$(Q)$(MAKE) --no-print-directory SAN='$(SAN)' products tests
	$(Q)GPUMEM_BUILD=$(BUILD) CC='$(CC)' tests/run.sh $(TESTS)

demo: build
	$(Q)GPUMEM_BUILD=$(BUILD) exec tools/demo.sh

bench: build
	$(Q)for b in alloc grant frames clients evacuate restart; do GPUMEM_BUILD=$(BUILD) $(BUILD)/gpumem-bench $$b --json || exit 1; done

# --- documentation, installation -----------------------------------------------------------------
man: $(MAN_PAGES)
vpath %.scd daemon daemon/keeper libclient $(wildcard tools/*)
$(BUILD)/man/%: %.scd
	$(say) MAN $@
	@mkdir -p $(@D)
	$(Q)scdoc < $< > $@

.PHONY: pkgconfig
pkgconfig: $(BUILD)/gpumem.pc
# Always made: it holds PREFIX, which may differ from the last call's.
$(BUILD)/gpumem.pc: libclient/gpumem.pc.in FORCE
	@mkdir -p $(@D)
	$(Q)sed -e 's|@PREFIX@|$(PREFIX)|g' -e 's|@LIBDIR@|$(LIBDIR)|g' -e 's|@VERSION@|$(VERSION)|g' $< > $@

include tools/install.mk
include tools/fuzz.mk

lint: deps
	$(Q)tools/lint.sh

format: deps
	$(Q)git ls-files '*.c' '*.h' '*.cu' | xargs -r clang-format -i

clean:
	rm -rf build

-include $(shell find $(BUILD)/obj -name '*.d' 2>/dev/null)
.PRECIOUS: $(BUILD)/obj/%.o
