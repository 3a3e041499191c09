/* SPDX-License-Identifier: Apache-2.0 */
/* The checker of lock order (libclient/wire/lock_order.c): what it lets pass, and that it ends a
 * process that breaks the order, with both locks named. */
#ifndef GPUMEM_LOCK_CHECK /* builds with sanitizers link the library's own */
#define GPUMEM_LOCK_CHECK
#include "libclient/wire/lock_order.c"
#endif

#include <CUnit/Basic.h>
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "daemon/locks.h"
#include "libclient/connection.h"

static pthread_mutex_t session = PTHREAD_MUTEX_INITIALIZER, pool = PTHREAD_MUTEX_INITIALIZER,
                       other_pool = PTHREAD_MUTEX_INITIALIZER,
                       connection = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;

/* Runs it in a process of its own; what it said goes to `text`. True: it was ended by SIGABRT. */
static bool is_ended(void (*what)(void), char *text, size_t size)
{
        int pipes[2], status = 0;
        ssize_t n, length = 0;
        pid_t pid;

        CU_ASSERT_EQUAL_FATAL(pipe(pipes), 0);
        pid = fork();
        CU_ASSERT_FATAL(pid >= 0);
        if (pid == 0) {
                setrlimit(RLIMIT_CORE, &(struct rlimit){0});
                signal(SIGABRT, SIG_DFL);
                dup2(pipes[1], STDERR_FILENO);
                close(pipes[0]);
                what();
                _exit(0);
        }
        close(pipes[1]);
        while ((n = read(pipes[0], text + length, size - 1 - (size_t)length)) > 0)
                length += n;
        text[length] = '\0';
        close(pipes[0]);
        CU_ASSERT_EQUAL(waitpid(pid, &status, 0), pid);
        return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

static void in_order(void)
{
        struct timespec now;

        lock_none_held("nobody");
        lock_take(&session, LOCK_SESSION);
        lock_take(&pool, LOCK_POOL);
        lock_take(&connection, LOCK_CONNECTION);
        lock_release(&connection);
        /* Not necessarily the last first. */
        lock_release(&session);
        lock_take(&connection, LOCK_CONNECTION);
        lock_release(&pool);
        lock_release(&connection);
        lock_take(&pool, LOCK_POOL);
        lock_release(&pool);
        lock_take(&session, LOCK_SESSION);
        clock_gettime(CLOCK_REALTIME, &now);
        if (lock_wait_until(&condition, &session, &now) != ETIMEDOUT)
                _exit(1);
        lock_release(&session);
        lock_none_held("nobody");
}

static void upwards(void)
{
        lock_take(&connection, LOCK_CONNECTION);
        lock_take(&pool, LOCK_POOL);
}

static void after_a_release(void)
{
        lock_take(&session, LOCK_SESSION);
        lock_take(&connection, LOCK_CONNECTION);
        lock_release(&session);
        lock_take(&pool, LOCK_POOL);
}

static void two_pools(void)
{
        lock_take(&pool, LOCK_POOL);
        lock_take(&other_pool, LOCK_POOL);
}

static void twice(void)
{
        lock_take(&pool, LOCK_POOL);
        lock_take(&pool, LOCK_CONNECTION);
}

static void not_held(void)
{
        lock_take(&pool, LOCK_POOL);
        lock_release(&other_pool);
}

static void asleep(void)
{
        lock_take(&session, LOCK_SESSION);
        lock_take(&pool, LOCK_POOL);
        lock_wait(&condition, &pool);
}

static void asleep_without(void)
{
        lock_wait(&condition, &pool);
}

static void waits_for_the_daemon(void)
{
        lock_take(&pool, LOCK_POOL);
        lock_none_held("the daemon's reply");
}

static void test_passes(void)
{
        char text[1024];

        in_order();
        CU_ASSERT_FALSE(is_ended(in_order, text, sizeof(text)));
        CU_ASSERT_STRING_EQUAL(text, "");
}

static void test_ends(void)
{
        static const struct {
                void (*what)(void);
                const char *how, *lock, *other;
        } cases[] = {
                {upwards, "taken out of order", "&pool", "&connection"},
                {after_a_release, "taken out of order", "&pool", "&connection"},
                {two_pools, "taken out of order", "&other_pool", "&pool"},
                {twice, "taken twice", "&pool", "&pool"},
                {not_held, "released but not held", "&other_pool", ""},
                {asleep, "sleeping", "&condition", "&session"},
                {asleep_without, "sleeping without the lock", "&condition", ""},
                {waits_for_the_daemon, "waiting for another process", "the daemon's reply",
                 "&pool"},
        };

        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                char text[1024] = "";

                CU_ASSERT(is_ended(cases[i].what, text, sizeof(text)));
                CU_ASSERT_PTR_NOT_NULL(strstr(text, cases[i].how));
                CU_ASSERT_PTR_NOT_NULL(strstr(text, cases[i].lock));
                CU_ASSERT_PTR_NOT_NULL(strstr(text, cases[i].other));
                CU_ASSERT_PTR_NOT_NULL(strstr(text, __FILE__));
        }
}

static void *take_pool(void *userdata)
{
        (void)userdata;
        lock_take(&pool, LOCK_POOL);
        lock_release(&pool);
        return NULL;
}

/* What one thread holds is nothing to another. */
static void test_threads(void)
{
        pthread_t thread;

        lock_take(&connection, LOCK_CONNECTION);
        CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, take_pool, NULL), 0);
        pthread_join(thread, NULL);
        lock_release(&connection);
}

int main(void)
{
        CU_pSuite suite;
        unsigned failed;

        if (CU_initialize_registry() != CUE_SUCCESS)
                return 1;
        suite = CU_add_suite("lock order", NULL, NULL);
        CU_add_test(suite, "the order passes", test_passes);
        CU_add_test(suite, "breaking it ends the process", test_ends);
        CU_add_test(suite, "each thread for itself", test_threads);
        CU_basic_set_mode(CU_BRM_VERBOSE);
        CU_basic_run_tests();
        failed = CU_get_number_of_failures();
        CU_cleanup_registry();
        return failed != 0;
}
