/* A shared file system on a bad day: preloaded into a process, it lets one in AMMRANK_FAIL_ONE_IN calls on files below
 * AMMRANK_FAIL_BELOW fail with EIO or ESTALE before anything is done. Which, follows from AMMRANK_FAIL_SEED, the
 * process id left out, so that a run can be had again. The number of failures is appended to AMMRANK_FAIL_COUNT. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#define REAL(name)                                                            \
    static __typeof__(&name) real;                                            \
    if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static _Atomic uint64_t calls;

static int is_below(const char *path)
{
    const char *below = getenv("AMMRANK_FAIL_BELOW");
    return below && path && strncmp(path, below, strlen(below)) == 0;
}

static int fails(const char *path)
{
    if (!is_below(path)) return 0;
    const char *seed = getenv("AMMRANK_FAIL_SEED"), *one_in = getenv("AMMRANK_FAIL_ONE_IN");
    uint64_t x = ++calls * 0x9E3779B97F4A7C15ull + (seed ? strtoull(seed, 0, 10) : 0) * 0xBF58476D1CE4E5B9ull;
    x ^= x >> 30; x *= 0xBF58476D1CE4E5B9ull; x ^= x >> 27; x *= 0x94D049BB133111EBull; x ^= x >> 31;
    if (x % (one_in ? strtoull(one_in, 0, 10) : 200)) return 0;
    const char *count = getenv("AMMRANK_FAIL_COUNT");
    if (count) {
        REAL(open64);
        int file = real(count, O_WRONLY | O_CREAT | O_APPEND, 0600);
        if (file >= 0) { ssize_t ignored = write(file, "x", 1); (void)ignored; close(file); }
    }
    errno = (x >> 32) & 1 ? EIO : ESTALE;
    return 1;
}

static int fails_at(int file)
{
    char name[64], path[PATH_MAX];
    if (file < 3 || !getenv("AMMRANK_FAIL_BELOW")) return 0;
    snprintf(name, sizeof name, "/proc/self/fd/%d", file);
    ssize_t length = readlink(name, path, sizeof path - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    return fails(path);
}

#define OPEN(name)                                                            \
    int name(const char *path, int flags, ...)                                \
    {                                                                         \
        va_list more; va_start(more, flags);                                  \
        mode_t mode = va_arg(more, mode_t); va_end(more);                     \
        REAL(name);                         \
        return fails(path) ? -1 : real(path, flags, mode);                    \
    }
OPEN(open)
OPEN(open64)

#define WITH_FILE(result, name, parameters, arguments)                        \
    result name parameters                                                    \
    {                                                                         \
        REAL(name);                                   \
        return fails_at(file) ? -1 : real arguments;                          \
    }
WITH_FILE(ssize_t, read, (int file, void *data, size_t size), (file, data, size))
WITH_FILE(ssize_t, pread, (int file, void *data, size_t size, off_t at), (file, data, size, at))
WITH_FILE(ssize_t, pread64, (int file, void *data, size_t size, off64_t at), (file, data, size, at))
WITH_FILE(ssize_t, write, (int file, const void *data, size_t size), (file, data, size))
WITH_FILE(int, fsync, (int file), (file))

#define WITH_PATH(name, parameters, arguments)                                \
    int name parameters                                                       \
    {                                                                         \
        REAL(name);                                      \
        return fails(path) ? -1 : real arguments;                             \
    }
WITH_PATH(rename, (const char *path, const char *to), (path, to))
WITH_PATH(unlink, (const char *path), (path))
WITH_PATH(mkdir, (const char *path, mode_t mode), (path, mode))
WITH_PATH(rmdir, (const char *path), (path))
WITH_PATH(stat, (const char *path, struct stat *out), (path, out))
WITH_PATH(stat64, (const char *path, struct stat64 *out), (path, out))
WITH_PATH(lstat, (const char *path, struct stat *out), (path, out))
WITH_PATH(lstat64, (const char *path, struct stat64 *out), (path, out))
WITH_PATH(link, (const char *path, const char *to), (path, to))

DIR *opendir(const char *path)
{
    REAL(opendir);
    return fails(path) ? NULL : real(path);
}
