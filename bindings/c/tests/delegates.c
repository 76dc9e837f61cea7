/* A C function that calls C functions on workers that were delegated to it: delegates.c <this library> <functions.so>. As a library it
 * has that function, as a program it leases, delegates and calls it. */
#include <mayfly.h>
#include <mayfly_function.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OK(got)                                                                                                        \
    do {                                                                                                               \
        if ((got) != MF_OK) {                                                                                          \
            fprintf(stderr, "%s: %s\n", #got, mf_last_error_message());                                                \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

/* The input: the delegation's text, a zero, and the path of the library whose `echo` it calls, with its zero. */
MF_EXPORT int32_t parent(mf_context *context, const void *in, size_t in_len, void *out, size_t out_capacity,
                         size_t *out_len) {
    const char *text = in, *path = text + strnlen(text, in_len) + 1;
    mf_delegation *part;
    mf_lease *lease;
    mf_pool *pool;
    mf_code code;
    uint32_t echo;
    if (path >= text + in_len || text[in_len - 1] != 0)
        return mf_set_error(context, "the input is no delegation and path");
    if (mf_delegation_read(text, &part) != MF_OK || mf_delegation_open(part, &lease) != MF_OK ||
        mf_lease_load_library(lease, path, &code) != MF_OK || mf_pool_open(lease, NULL, &pool) != MF_OK ||
        mf_pool_function(pool, &code, "echo", MF_FORM_CHECKED, &echo) != MF_OK ||
        mf_pool_call(pool, echo, "from a child", 12, NULL, out, out_capacity, out_len) != MF_OK)
        return mf_set_error(context, mf_last_error_message());
    mf_pool_free(pool);
    mf_lease_free(lease);
    mf_delegation_free(part);
    return 0;
}

int main(int argc, char **argv) {
    mf_client *client;
    mf_lease_options options;
    mf_lease *lease;
    mf_pool *pool;
    mf_code code;
    mf_delegation *part;
    uint32_t function;
    char input[4096], out[64];
    size_t length, text;
    if (argc != 3)
        return 2;
    OK(mf_client_connect(NULL, &client));
    OK(mf_lease_options_init(&options));
    options.workers = 2;
    options.mode = MF_MODE_WARM;
    OK(mf_lease_open(client, &options, &lease));
    OK(mf_lease_load_library(lease, argv[1], &code));
    OK(mf_pool_open(lease, NULL, &pool));
    OK(mf_pool_function(pool, &code, "parent", MF_FORM_CHECKED, &function));
    OK(mf_pool_delegate(pool, 1, 60000, lease, 10000, &part));
    text = strlen(mf_delegation_text(part)) + 1;
    if (text + strlen(argv[2]) + 1 > sizeof input)
        return 3;
    memcpy(input, mf_delegation_text(part), text);
    strcpy(input + text, argv[2]);
    OK(mf_pool_call(pool, function, input, text + strlen(argv[2]) + 1, NULL, out, sizeof out, &length));
    printf("%.*s\n", (int)length, out);
    OK(mf_pool_take_back(pool, part));
    if (mf_pool_take_back(pool, part) != MF_NOT_FOUND || strstr(mf_last_error_message(), "taken it back") == NULL)
        return 4;
    mf_delegation_free(part);
    if (mf_delegation_read("{}", &part) != MF_INVALID_REQUEST)
        return 5;
    mf_pool_free(pool);
    mf_lease_free(lease);
    mf_client_free(client);
    return 0;
}
