/* Many calls over all workers of a lease.
 *
 *     cc -O3 -shared -fPIC -I bindings/c/include -o libsquare.so examples/functions/square.c
 *     cc -I bindings/c/include -o parallel examples/c/parallel.c -L "$LIB" -Wl,-rpath,"$LIB" -ldayfly
 *     ./parallel ./libsquare.so */
#include <dayfly.h>
#include <stdio.h>
#include <stdlib.h>

enum { CALLS = 10000 };

static void check(dfly_status status) {
    if (status != DFLY_OK) {
        fprintf(stderr, "%s [%s] %s\n", dfly_last_error_message(), dfly_error_name(status), dfly_error_remedy(status));
        exit(1);
    }
}

int main(int argc, char **argv) {
    dfly_client *client;
    dfly_lease *lease;
    dfly_pool *pool;
    dfly_code code;
    dfly_lease_options options;
    uint32_t square;
    static uint64_t calls[CALLS];
    double sum = 0;

    check(dfly_client_connect(NULL, &client));
    check(dfly_lease_options_init(&options));
    options.workers = 2;
    options.mode = DFLY_MODE_WARM; /* workers share cores, and sleep when idle */
    check(dfly_lease_open(client, &options, &lease));
    check(dfly_lease_load_library(lease, argc > 1 ? argv[1] : "./libsquare.so", &code));
    check(dfly_pool_open(lease, NULL, &pool));           /* a channel to each worker */
    check(dfly_pool_function(pool, &code, "square", DFLY_FORM_PLAIN, &square));

    for (int i = 0; i < CALLS; i++) {
        double x = i;
        check(dfly_pool_submit(pool, square, &x, sizeof x, NULL, &calls[i]));
    }
    for (int i = 0; i < CALLS; i++) {
        dfly_output *output;
        check(dfly_pool_wait(pool, calls[i], -1, &output));
        sum += *(const double *)dfly_output_data(output);
        dfly_output_free(output);
    }
    printf("the squares of 0 to %d add up to %.0f, on %u workers\n", CALLS - 1, sum, dfly_lease_workers(lease));
    dfly_pool_free(pool);
    dfly_lease_free(lease);
    dfly_client_free(client);
}
