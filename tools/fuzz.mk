# SPDX-License-Identifier: Apache-2.0
# Fuzzing. tests/fuzz/fuzz_NAME.c is the target NAME, its corpus tests/fuzz/corpus/NAME/. Every target is built twice:
# - $(BUILD)/tests/fuzz/replay_NAME, with whatever compiler and sanitizers are in use, runs the corpus once: part of `make test`;
# - build/fuzz/fuzz/NAME, with clang's libFuzzer, address and undefined-behaviour sanitizers: `make fuzz`.
FUZZ_TARGETS := $(patsubst tests/fuzz/fuzz_%.c,%,$(sort $(wildcard tests/fuzz/fuzz_*.c)))
FUZZ_SHARED  := $(patsubst %.c,$(BUILD)/obj/%.o,$(filter-out tests/fuzz/fuzz_%.c tests/fuzz/replay.c,$(sort $(wildcard tests/fuzz/*.c))))
# Of the tests' support only what clang 14 can compile and the targets use.
FUZZ_SUPPORT := $(patsubst %,$(BUILD)/obj/tests/support/%.o,fake_driver gguf_writer)
FUZZ_ARCHIVES := $(A_GEN) $(A_CTL) $(A_CLIENT) $(A_DAEMON) $(A_DRIVER) $(A_WIRE) $(A_KERNEL)
FUZZ_LINK = $(FUZZ_SHARED) $(FUZZ_SUPPORT) -Wl,--start-group $(FUZZ_ARCHIVES) -Wl,--end-group \
            $(LIBS_SYSTEMD) $(LIBS_JSON) $(LIBS_INIH) -ldl -lm
FUZZ_REPLAYS := $(patsubst %,$(BUILD)/tests/fuzz/replay_%,$(FUZZ_TARGETS))

$(BUILD)/tests/fuzz/replay_%: $(BUILD)/obj/tests/fuzz/fuzz_%.o $(BUILD)/obj/tests/fuzz/replay.o $(FUZZ_SHARED) $(FUZZ_SUPPORT) $(FUZZ_ARCHIVES)
	$(say) LD $@
	@mkdir -p $(@D)
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $< $(BUILD)/obj/tests/fuzz/replay.o $(FUZZ_LINK)

tests: $(FUZZ_REPLAYS)
TESTS += $(FUZZ_REPLAYS)

# --- with libFuzzer ------------------------------------------------------------------------------
SECONDS ?= 60
FUZZ    ?= $(FUZZ_TARGETS)
FUZZ_CFLAGS = -O1 -g -fsanitize=fuzzer-no-link -Wno-gnu-variable-sized-type-not-at-end -Wno-unused-variable -Wno-string-concatenation

$(BUILD)/fuzz/%: $(BUILD)/obj/tests/fuzz/fuzz_%.o $(FUZZ_SHARED) $(FUZZ_SUPPORT) $(FUZZ_ARCHIVES)
	$(say) LD $@
	@mkdir -p $(@D)
	$(Q)$(CC) $(ALL_LDFLAGS) -fsanitize=fuzzer -o $@ $< $(FUZZ_LINK)

.PHONY: fuzz fuzz-build
fuzz-build:
	$(Q)tools/deps.sh build fuzz
	$(Q)$(MAKE) --no-print-directory CC=clang SAN=address,undefined BUILD=build/fuzz CFLAGS='$(FUZZ_CFLAGS)' \
	    build/fuzz/libcuda-sim.so $(patsubst %,build/fuzz/fuzz/%,$(FUZZ))

# SECONDS for each target. What is found is left in build/fuzz/findings/; new inputs that reach new code in build/fuzz/corpus/.
fuzz: fuzz-build
	$(Q)tests/fuzz/run.sh $(SECONDS) $(FUZZ)
