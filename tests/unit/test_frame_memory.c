/* SPDX-License-Identifier: Apache-2.0 */
/* C02: every driver call of making and releasing a frame fails once; what was done is undone. */
#include <string.h>

#include "daemon/frame_memory.h"
#include "tests/support/daemon_unit.h"
#include "tests/support/fake_driver.h"

#define FRAMES 8

static struct frame_memory memory;
static struct frame frames[FRAMES];

static void open_memory(void)
{
        memory = (struct frame_memory){
                .driver = fake_driver_open(FRAMES),
                .frame_bytes = FAKE_GRANULARITY,
        };
        memory.driver->mem_address_reserve(&memory.base, FRAMES * FAKE_GRANULARITY, 0, 0, 0);
        memset(frames, 0, sizeof(frames));
        for (uint32_t i = 0; i < FRAMES; i++)
                frames[i].fd = -1;
}

static void test_create_and_release(void)
{
        int before = unit_count_fds();

        open_memory();
        for (uint32_t i = 0; i < FRAMES; i++)
                CU_ASSERT_EQUAL(frame_memory_create(&memory, &frames[i], i), FRAME_DONE);
        CU_ASSERT_EQUAL(fake_driver_allocations(), FRAMES);
        CU_ASSERT_EQUAL(fake_driver_mappings(), FRAMES);
        CU_ASSERT_EQUAL(unit_count_fds(), before + FRAMES);
        CU_ASSERT_EQUAL(frame_memory_address(&memory, 3),
                        memory.base + UINT64_C(3) * FAKE_GRANULARITY);
        for (uint32_t i = 0; i < FRAMES; i++)
                CU_ASSERT_EQUAL(frame_memory_release(&memory, &frames[i], i), FRAME_DONE);
        CU_ASSERT_EQUAL(fake_driver_allocations(), 0);
        CU_ASSERT_EQUAL(fake_driver_mappings(), 0);
        CU_ASSERT_EQUAL(unit_count_fds(), before);
        CU_ASSERT_EQUAL(fake_driver_misuses(), 0);
}

static void test_create_fails(void)
{
        static const struct {
                enum fake_call call;
                enum frame_step step;
        } steps[] = {
                {FAKE_CREATE, FRAME_STEP_CREATE},
                {FAKE_EXPORT, FRAME_STEP_EXPORT},
                {FAKE_MAP, FRAME_STEP_MAP},
                {FAKE_SET_ACCESS, FRAME_STEP_SET_ACCESS},
        };
        static const struct {
                CUresult error;
                enum frame_outcome outcome;
        } errors[] = {
                {CUDA_ERROR_OUT_OF_MEMORY, FRAME_EXHAUSTED},
                {CUDA_ERROR_UNKNOWN, FRAME_FAILED},
        };
        int before = unit_count_fds();

        for (size_t i = 0; i < 4; i++) {
                for (size_t j = 0; j < 2; j++) {
                        open_memory();
                        fake_driver_fail(steps[i].call, 1, 1, errors[j].error);
                        CU_ASSERT_EQUAL(frame_memory_create(&memory, &frames[0], 0),
                                        errors[j].outcome);
                        CU_ASSERT_EQUAL(frames[0].step, steps[i].step);
                        CU_ASSERT_EQUAL(frames[0].error, errors[j].error);
                        CU_ASSERT_EQUAL(frames[0].fd, -1);
                        CU_ASSERT_EQUAL(fake_driver_allocations(), 0);
                        CU_ASSERT_EQUAL(fake_driver_mappings(), 0);
                        CU_ASSERT_EQUAL(unit_count_fds(), before);
                        CU_ASSERT_EQUAL(fake_driver_misuses(), 0);
                        /* and the same frame works the next time */
                        CU_ASSERT_EQUAL(frame_memory_create(&memory, &frames[0], 0), FRAME_DONE);
                        CU_ASSERT_EQUAL(frame_memory_release(&memory, &frames[0], 0), FRAME_DONE);
                }
        }
}

/* The undoing fails too: the frame is lost, no descriptor is. */
static void test_undo_fails(void)
{
        int before = unit_count_fds();

        open_memory();
        fake_driver_fail(FAKE_SET_ACCESS, 1, 1, CUDA_ERROR_OUT_OF_MEMORY);
        fake_driver_fail(FAKE_UNMAP, 1, 1, CUDA_ERROR_UNKNOWN);
        CU_ASSERT_EQUAL(frame_memory_create(&memory, &frames[0], 0), FRAME_STUCK);
        CU_ASSERT_EQUAL(frames[0].fd, -1);
        CU_ASSERT_EQUAL(unit_count_fds(), before);

        open_memory();
        fake_driver_fail(FAKE_EXPORT, 1, 1, CUDA_ERROR_UNKNOWN);
        fake_driver_fail(FAKE_RELEASE, 1, 1, CUDA_ERROR_UNKNOWN);
        CU_ASSERT_EQUAL(frame_memory_create(&memory, &frames[0], 0), FRAME_STUCK);
        CU_ASSERT_EQUAL(frames[0].step, FRAME_STEP_EXPORT);
        CU_ASSERT_EQUAL(unit_count_fds(), before);
}

static void test_release_fails(void)
{
        int before = unit_count_fds();

        for (int i = 0; i < 2; i++) {
                open_memory();
                CU_ASSERT_EQUAL(frame_memory_create(&memory, &frames[0], 0), FRAME_DONE);
                fake_driver_fail(i == 0 ? FAKE_UNMAP : FAKE_RELEASE, 1, 1, CUDA_ERROR_UNKNOWN);
                CU_ASSERT_EQUAL(frame_memory_release(&memory, &frames[0], 0), FRAME_STUCK);
                CU_ASSERT_EQUAL(frames[0].step, i == 0 ? FRAME_STEP_UNMAP : FRAME_STEP_RELEASE);
                CU_ASSERT_EQUAL(frames[0].fd, -1);
                CU_ASSERT_EQUAL(unit_count_fds(), before);
                /* the rest was still tried */
                CU_ASSERT_EQUAL(fake_driver_calls(FAKE_RELEASE), 1);
        }
}

static void test_scrub(void)
{
        struct frame_table table = {
                .frames = frames, .count = FRAMES, .frame_bytes = FAKE_GRANULARITY};
        static const uint32_t numbers[] = {1, 3, 5};

        open_memory();
        for (uint32_t i = 0; i < FRAMES; i++)
                frame_memory_create(&memory, &frames[i], i);
        frame_memory_scrub(&memory, &table, numbers, 3, NULL);
        CU_ASSERT_EQUAL(fake_driver_calls(FAKE_MEMSET), 3);
        CU_ASSERT_EQUAL(fake_driver_calls(FAKE_SYNCHRONIZE), 1);
        CU_ASSERT_EQUAL(frames[3].outcome, FRAME_DONE);

        fake_driver_fail(FAKE_MEMSET, 2, 1, CUDA_ERROR_UNKNOWN);
        frame_memory_scrub(&memory, &table, numbers, 3, NULL);
        CU_ASSERT_EQUAL(frames[1].outcome, FRAME_DONE);
        CU_ASSERT_EQUAL(frames[3].outcome, FRAME_FAILED);
        CU_ASSERT_EQUAL(frames[5].outcome, FRAME_DONE);

        fake_driver_fail(FAKE_SYNCHRONIZE, 1, 1, CUDA_ERROR_ILLEGAL_ADDRESS);
        frame_memory_scrub(&memory, &table, numbers, 3, NULL);
        for (size_t i = 0; i < 3; i++) {
                CU_ASSERT_EQUAL(frames[numbers[i]].outcome, FRAME_FAILED);
                CU_ASSERT(frame_memory_error_is_sticky((CUresult)frames[numbers[i]].error));
        }
        CU_ASSERT_FALSE(frame_memory_error_is_sticky(CUDA_ERROR_OUT_OF_MEMORY));
        for (uint32_t i = 0; i < FRAMES; i++)
                frame_memory_release(&memory, &frames[i], i);
}

int main(void)
{
        static const struct unit_test tests[] = {
                {"create and release", test_create_and_release},
                {"C02 each call of creating fails", test_create_fails},
                {"C02 undoing fails too", test_undo_fails},
                {"releasing fails", test_release_fails},
                {"scrubbing", test_scrub},
        };

        return UNIT_RUN("frame_memory", tests);
}
