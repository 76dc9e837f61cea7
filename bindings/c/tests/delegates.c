/* A C function that calls C functions on workers delegated to it: delegates.c <this library> <functions.so>. The library
 * contains the function; the program leases workers, delegates some, and calls the function. */
#include <dayfly.h>
#include <dayfly_function.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OK(got)                                                                                                        \
    do {                                                                                                               \
        if ((got) != DFLY_OK) {                                                                                          \
            fprintf(stderr, "%s: %s\n", #got, dfly_last_error_message());                                                \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

/* Input: the delegation's text and the path of the library whose `echo` it calls, each with its NUL. */
DFLY_EXPORT int32_t parent(dfly_context *context, const void *in, size_t in_len, void *out, size_t out_capacity,
                         size_t *out_len) {
    const char *text = in, *path = text + strnlen(text, in_len) + 1;
    dfly_delegation *part;
    dfly_lease *lease;
    dfly_pool *pool;
    dfly_code code;
    uint32_t echo;
    if (path >= text + in_len || text[in_len - 1] != 0)
        return dfly_set_error(context, "the input is no delegation and path");
    if (dfly_delegation_read(text, &part) != DFLY_OK || dfly_delegation_open(part, &lease) != DFLY_OK ||
        dfly_lease_load_library(lease, path, &code) != DFLY_OK || dfly_pool_open(lease, NULL, &pool) != DFLY_OK ||
        dfly_pool_function(pool, &code, "echo", DFLY_FORM_CHECKED, &echo) != DFLY_OK ||
        dfly_pool_call(pool, echo, "from a child", 12, NULL, out, out_capacity, out_len) != DFLY_OK)
        return dfly_set_error(context, dfly_last_error_message());
    dfly_pool_free(pool);
    dfly_lease_free(lease);
    dfly_delegation_free(part);
    return 0;
}

int main(int argc, char **argv) {
    dfly_client *client;
    dfly_lease_options options;
    dfly_lease *lease;
    dfly_pool *pool;
    dfly_code code;
    dfly_delegation *part;
    uint32_t function;
    char input[4096], out[64];
    size_t length, text;
    if (argc != 3)
        return 2;
    OK(dfly_client_connect(NULL, &client));
    OK(dfly_lease_options_init(&options));
    options.workers = 2;
    options.mode = DFLY_MODE_WARM;
    OK(dfly_lease_open(client, &options, &lease));
    OK(dfly_lease_load_library(lease, argv[1], &code));
    OK(dfly_pool_open(lease, NULL, &pool));
    OK(dfly_pool_function(pool, &code, "parent", DFLY_FORM_CHECKED, &function));
    OK(dfly_pool_delegate(pool, 1, 60000, lease, 10000, &part));
    text = strlen(dfly_delegation_text(part)) + 1;
    if (text + strlen(argv[2]) + 1 > sizeof input)
        return 3;
    memcpy(input, dfly_delegation_text(part), text);
    strcpy(input + text, argv[2]);
    OK(dfly_pool_call(pool, function, input, text + strlen(argv[2]) + 1, NULL, out, sizeof out, &length));
    printf("%.*s\n", (int)length, out);
    OK(dfly_pool_take_back(pool, part));
    if (dfly_pool_take_back(pool, part) != DFLY_NOT_FOUND || strstr(dfly_last_error_message(), "taken it back") == NULL)
        return 4;
    dfly_delegation_free(part);
    if (dfly_delegation_read("{}", &part) != DFLY_INVALID_REQUEST)
        return 5;
    dfly_pool_free(pool);
    dfly_lease_free(lease);
    dfly_client_free(client);
    return 0;
}
