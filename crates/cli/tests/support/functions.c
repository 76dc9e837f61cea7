/* Misbehaving functions, and some correct ones. */
#include <stdint.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint32_t calls;

uint32_t echo(void *in, uint32_t size, void *out) { memcpy(out, in, size); return size; }
uint32_t count(void *in, uint32_t size, void *out) { (void)in; (void)size; calls++; memcpy(out, &calls, 4); return 4; }
uint32_t garbage_length(void *in, uint32_t size, void *out) { (void)in; (void)size; (void)out; return 0xffffffffu; }
uint32_t overrun(void *in, uint32_t size, void *out) { (void)in; (void)size; memset(out, 1, 64u << 20); return 1; }
uint32_t crash(void *in, uint32_t size, void *out) { (void)in; (void)size; (void)out; *(volatile int *)0 = 1; return 0; }
uint32_t leave(void *in, uint32_t size, void *out) { (void)in; (void)size; (void)out; exit(7); }
uint32_t loop(void *in, uint32_t size, void *out) { (void)in; (void)size; (void)out; for (;;) __asm__ volatile(""); }
uint32_t sleep_ms(void *in, uint32_t size, void *out) {
    uint32_t ms; (void)size; memcpy(&ms, in, 4); usleep(ms * 1000u); memcpy(out, &ms, 4); return 4;
}

/* Input: milliseconds and a file name. Writes its process id to the file, then sleeps. */
uint32_t announce(void *in, uint32_t size, void *out) {
    char path[4096];
    uint32_t ms;
    memcpy(&ms, in, 4);
    memcpy(path, (char *)in + 4, size - 4);
    path[size - 4] = 0;
    FILE *file = fopen(path, "w");
    fprintf(file, "%d\n", (int)getpid());
    fclose(file);
    usleep(ms * 1000u);
    memcpy(out, &ms, 4);
    return 4;
}

typedef struct dfly_context {
    uint32_t version, reserved;
    void (*set_error)(struct dfly_context *, const char *);
    void *(*grow_output)(struct dfly_context *, size_t, size_t);
    uint64_t (*time_left_us)(struct dfly_context *);
} dfly_context;

int32_t fails(dfly_context *c, const void *in, size_t n, void *out, size_t cap, size_t *len) {
    (void)in; (void)n; (void)out; (void)cap; (void)len; c->set_error(c, "the matrix is singular"); return 3;
}
int32_t too_long(dfly_context *c, const void *in, size_t n, void *out, size_t cap, size_t *len) {
    (void)c; (void)in; (void)n; (void)out; *len = cap + 1; return 0;
}
/* Writes the number of bytes that its input requests, and grows its output as needed. */
int32_t produce(dfly_context *c, const void *in, size_t n, void *out, size_t cap, size_t *len) {
    uint64_t want; (void)n; memcpy(&want, in, 8);
    if (want > cap) out = c->grow_output(c, 0, want);
    if (!out) { c->set_error(c, "no room"); return 1; }
    memset(out, 'x', want); *len = want; return 0;
}
