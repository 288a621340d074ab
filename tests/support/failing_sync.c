/*
 * fdatasync, fsync and syncfs as a bad disk answers them; for LD_PRELOAD.
 *
 * A file below FOLDER/node-N is synced as FOLDER/node-N.sync says: "slow MILLISECONDS" or "fail". Without that file, or
 * elsewhere, as always.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char SUFFIX[] = ".sync";

static int fails(int descriptor) {
    char name[64], path[4096], word[32];
    snprintf(name, sizeof name, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(name, path, sizeof path - sizeof SUFFIX);
    if (length < 0) return 0;
    path[length] = 0;
    char *node = strstr(path, "/node-");
    if (node == NULL) return 0;
    char *end = strchr(node + 1, '/');
    strcpy(end == NULL ? path + length : end, SUFFIX);
    int control = open(path, O_RDONLY | O_CLOEXEC);
    if (control < 0) return 0;
    ssize_t said = read(control, word, sizeof word - 1);
    close(control);
    if (said <= 0) return 0;
    word[said] = 0;
    if (strncmp(word, "slow ", 5) == 0) {
        usleep((useconds_t)atoi(word + 5) * 1000);
        return 0;
    }
    errno = EIO;
    return 1;
}

#define FAULTY(call)                                                      \
    int call(int descriptor) {                                            \
        static int (*real)(int);                                          \
        if (real == NULL) real = (int (*)(int))dlsym(RTLD_NEXT, #call);   \
        return fails(descriptor) ? -1 : real(descriptor);                 \
    }

FAULTY(fdatasync)
FAULTY(fsync)
FAULTY(syncfs)
