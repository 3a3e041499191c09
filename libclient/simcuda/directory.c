/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/simcuda/directory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libclient/simcuda/control.h"

/* Byte of the control file's lock space; it need not exist as data. */
#define LOCK_SETUP 0
/* How often the directory may vanish under us before that is an error. */
#define OPEN_TRIES 100
/* Room for what getgrnam_r() reads. */
#define GROUP_BYTES 65536

static int lock_setup(int command, short type)
{
        struct flock lock = {
                .l_type = type, .l_whence = SEEK_SET, .l_start = LOCK_SETUP, .l_len = 1};

        return fcntl(machine.file, command, &lock) == 0 ? 0 : -errno;
}

static int find_group(const char *name, gid_t *out)
{
        char *buffer = malloc(GROUP_BYTES), *end;
        struct group group, *found = NULL;
        unsigned long number;
        int error;

        if (!buffer)
                return -ENOMEM;
        error = getgrnam_r(name, &group, buffer, GROUP_BYTES, &found);
        if (found)
                *out = group.gr_gid;
        free(buffer);
        if (found)
                return 0;
        number = strtoul(name, &end, 10);
        if (name[0] < '0' || name[0] > '9' || *end || number >= (gid_t)-1)
                return error ? -error : -ENOENT;
        *out = (gid_t)number;
        return 0;
}

/* The new directory is made as asked. Files in it get its group, by the set-group-id bit. */
static CUresult set_access(const struct sim_config *config, int directory)
{
        mode_t mode = config->mode;
        gid_t group = (gid_t)-1;
        int error;

        if (config->group[0] != '\0') {
                error = find_group(config->group, &group);
                if (error < 0)
                        return sim_fail(CUDA_ERROR_INVALID_VALUE, "GPUMEM_SIM_GROUP=%s: %s",
                                        config->group,
                                        error == -ENOENT ? "no such group" : strerror(-error));
                if (fchown(directory, (uid_t)-1, group) != 0)
                        return sim_fail(CUDA_ERROR_OPERATING_SYSTEM,
                                        "cannot give %s to the group %s: %s", config->directory,
                                        config->group, strerror(errno));
        }
        if ((mode & 0070) != 0)
                mode |= S_ISGID;
        if (fchmod(directory, mode) != 0)
                return sim_fail(CUDA_ERROR_OPERATING_SYSTEM, "cannot set the mode of %s: %s",
                                config->directory, strerror(errno));
        return CUDA_SUCCESS;
}

static void close_files(void)
{
        if (machine.file >= 0)
                close(machine.file);
        if (machine.directory >= 0)
                close(machine.directory);
        machine.file = -1;
        machine.directory = -1;
}

/* One try. *vanished: the directory was removed meanwhile. */
static CUresult open_once(const struct sim_config *config, bool *made, bool *vanished)
{
        struct stat status;
        CUresult result;
        int error;

        *vanished = false;
        *made = mkdir(config->directory, 0700) == 0;
        if (!*made && errno != EEXIST)
                return sim_fail(CUDA_ERROR_OPERATING_SYSTEM, "cannot make %s: %s",
                                config->directory, strerror(errno));
        machine.directory = open(config->directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (machine.directory < 0 && errno == ENOENT)
                *vanished = true;
        if (machine.directory < 0)
                return sim_fail(CUDA_ERROR_OPERATING_SYSTEM, "cannot open %s: %s%s",
                                config->directory, strerror(errno),
                                errno == EACCES ? " (who makes it decides who may: "
                                                  "GPUMEM_SIM_MODE, GPUMEM_SIM_GROUP)"
                                                : "");
        if (*made) {
                result = set_access(config, machine.directory);
                if (result != CUDA_SUCCESS) {
                        (void)rmdir(config->directory);
                        return result;
                }
        }
        if (fstat(machine.directory, &status) != 0)
                return sim_fail(CUDA_ERROR_OPERATING_SYSTEM, "cannot look at %s: %s",
                                config->directory, strerror(errno));
        machine.device_number = status.st_dev;
        /* A directory that a group may use makes a machine that the group may use. */
        machine.mode = status.st_mode & 0666;

        machine.file =
                openat(machine.directory, DIRECTORY_CONTROL, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
        if (machine.file < 0 && errno == ENOENT) {
                machine.file = openat(machine.directory, DIRECTORY_CONTROL,
                                      O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, machine.mode);
                *vanished = machine.file < 0 && errno == ENOENT;
                if (machine.file >= 0)
                        (void)fchmod(machine.file, machine.mode);
        }
        if (machine.file < 0)
                return sim_fail(CUDA_ERROR_OPERATING_SYSTEM, "cannot open %s/%s: %s",
                                config->directory, DIRECTORY_CONTROL, strerror(errno));
        error = lock_setup(F_OFD_SETLKW, F_WRLCK);
        if (error < 0)
                return sim_fail(CUDA_ERROR_OPERATING_SYSTEM, "cannot lock %s/%s: %s",
                                config->directory, DIRECTORY_CONTROL, strerror(-error));
        if (fstat(machine.file, &status) != 0 || status.st_nlink == 0) {
                *vanished = true;
                return sim_fail(CUDA_ERROR_OPERATING_SYSTEM, "%s was removed meanwhile",
                                config->directory);
        }
        return CUDA_SUCCESS;
}

CUresult directory_open(const struct sim_config *config, bool *made)
{
        CUresult result = CUDA_ERROR_OPERATING_SYSTEM;
        bool vanished = true, made_now;

        *made = false;
        for (int i = 0; i < OPEN_TRIES && vanished; i++) {
                close_files();
                result = open_once(config, &made_now, &vanished);
                *made = made_now;
        }
        return result;
}

void directory_unlock(void)
{
        (void)lock_setup(F_OFD_SETLK, F_UNLCK);
}

bool directory_try_lock(void)
{
        return lock_setup(F_OFD_SETLK, F_WRLCK) == 0;
}

static DIR *list(void)
{
        int fd = openat(machine.directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        DIR *stream = fd >= 0 ? fdopendir(fd) : NULL;

        if (!stream && fd >= 0)
                close(fd);
        return stream;
}

void directory_remove(const struct sim_config *config)
{
        struct stat ours, named;
        struct dirent *entry;
        bool foreign = false;
        DIR *stream = list();

        if (!stream)
                return;
        while ((entry = readdir(stream)) != NULL)
                if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 &&
                    strcmp(entry->d_name, DIRECTORY_CONTROL) != 0)
                        foreign = true;
        closedir(stream);
        /* The path may lead elsewhere by now; and only who owns a directory can be sure to be
         * allowed to remove it, when its control file is gone already. */
        if (foreign || fstat(machine.directory, &ours) != 0 || ours.st_uid != geteuid() ||
            lstat(config->directory, &named) != 0 || ours.st_dev != named.st_dev ||
            ours.st_ino != named.st_ino)
                return;
        if (unlinkat(machine.directory, DIRECTORY_CONTROL, 0) == 0)
                (void)rmdir(config->directory);
}

void directory_remove_leftovers(void)
{
        struct dirent *entry;
        DIR *stream = list();

        if (!stream)
                return;
        while ((entry = readdir(stream)) != NULL)
                if (strncmp(entry->d_name, SLOT_PREFIX, strlen(SLOT_PREFIX)) == 0)
                        unlinkat(machine.directory, entry->d_name, 0);
        closedir(stream);
}
