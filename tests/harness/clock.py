"""An adjustable wall clock for a test's processes: a preloaded library adds an offset to the kernel's time."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

from harness.compilers import compile_source

#: Changes the time of day only. Monotonic clocks and waits are the kernel's.
SOURCE = r"""
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const int64_t right = 0;
static const volatile int64_t *ahead = &right;
static int (*kernel)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("CLOCK_AHEAD");
    kernel = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *page = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    if (page != MAP_FAILED) ahead = page;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    if (!kernel) begin();
    int failed = kernel(clock, time);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) time->tv_sec += *ahead;
    return failed;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *into) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (into) *into = now.tv_sec;
    return now.tv_sec;
}
"""


class Clock:
    """The clock of all processes that are started with its ``environment``."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        source = directory / "clock.c"
        source.write_text(SOURCE)
        library = compile_source(source, directory / "clock.so", "-ldl")
        path = directory / "clock"
        path.write_bytes(bytes(8))
        self.environment = {"LD_PRELOAD": str(library), "CLOCK_AHEAD": str(path)}
        with open(path, "r+b") as file:
            self._page = mmap.mmap(file.fileno(), 8)

    def set(self, ahead: int) -> None:
        """Sets the clock to ``ahead`` seconds ahead of this machine's."""
        self._page[:] = struct.pack("=q", ahead)
