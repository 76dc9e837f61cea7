/* Functions for the tests of the Python package. */
#include <dayfly_function.h>
#include <string.h>

DFLY_EXPORT uint32_t reverse(void *in, uint32_t size, void *out) {
    for (uint32_t i = 0; i < size; i++) {
        ((char *)out)[i] = ((char *)in)[size - 1 - i];
    }
    return size;
}

DFLY_EXPORT int32_t doubled(dfly_context *context, const void *in, size_t in_len, void *out, size_t out_capacity,
                          size_t *out_len) {
    if (in_len > out_capacity) {
        return dfly_set_error(context, "no room");
    }
    const double *from = in;
    double *to = out;
    for (size_t i = 0; i < in_len / sizeof *from; i++) {
        to[i] = 2 * from[i];
    }
    *out_len = in_len;
    return 0;
}
