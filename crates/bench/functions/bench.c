/* The functions that `mayfly bench` invokes, in both forms. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

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
