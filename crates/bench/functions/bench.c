/* The functions that `dayfly bench` invokes, in both forms. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

uint32_t echo(void *in, uint32_t size, void *out) {
    memcpy(out, in, size);
    return size;
}

int32_t echo_checked(void *context, const void *in, size_t in_len, void *out, size_t capacity, size_t *out_len) {
    (void)context;
    if (in_len > capacity) return 1;
    memcpy(out, in, in_len);
    *out_len = in_len;
    return 0;
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Computes for as many milliseconds as its input says. */
uint32_t compute(void *in, uint32_t size, void *out) {
    uint32_t ms;
    if (size != sizeof ms) return 0;
    memcpy(&ms, in, sizeof ms);
    for (double until = seconds() + ms * 1e-3; seconds() < until;) {}
    return 0;
}

/* Waits for as many milliseconds as its input says. */
uint32_t doze(void *in, uint32_t size, void *out) {
    uint32_t ms;
    if (size != sizeof ms) return 0;
    memcpy(&ms, in, sizeof ms);
    struct timespec time = {ms / 1000, (long)(ms % 1000) * 1000000};
    nanosleep(&time, NULL);
    return 0;
}

/* Computes as many rounds as the first number of its input says, from the second one on, and returns the result. No
   compiler joins several of these rounds into one, as it does with additions and products. */
uint32_t rounds(void *in, uint32_t size, void *out) {
    uint64_t numbers[2], value;
    if (size < sizeof numbers) return 0;
    memcpy(numbers, in, sizeof numbers);
    value = numbers[1] + 1;
    for (uint64_t i = 0; i < numbers[0]; i++) {
        value ^= value << 13;
        value ^= value >> 7;
        value ^= value << 17;
    }
    memcpy(out, &value, sizeof value);
    return sizeof value;
}
