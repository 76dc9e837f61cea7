/* Many calls over all workers of a lease.
 *
 *     cc -O3 -shared -fPIC -I bindings/c/include -o libsquare.so examples/functions/square.c
 *     cc -I bindings/c/include -o parallel examples/c/parallel.c -L "$LIB" -Wl,-rpath,"$LIB" -lmayfly
 *     ./parallel ./libsquare.so */
#include <mayfly.h>
#include <stdio.h>
#include <stdlib.h>

enum { CALLS = 10000 };

static void check(mf_status status) {
    if (status != MF_OK) {
        fprintf(stderr, "%s [%s] %s\n", mf_last_error_message(), mf_error_name(status), mf_error_remedy(status));
        exit(1);
    }
}

int main(int argc, char **argv) {
    mf_client *client;
    mf_lease *lease;
    mf_pool *pool;
    mf_code code;
    mf_lease_options options;
    uint32_t square;
    static uint64_t calls[CALLS];
    double sum = 0;

    check(mf_client_connect(NULL, &client));
    check(mf_lease_options_init(&options));
    options.workers = 2;
    options.mode = MF_MODE_WARM; /* they share cores, and sleep when there is nothing to do */
    check(mf_lease_open(client, &options, &lease));
    check(mf_lease_load_library(lease, argc > 1 ? argv[1] : "./libsquare.so", &code));
    check(mf_pool_open(lease, NULL, &pool));           /* a channel to each worker */
    check(mf_pool_function(pool, &code, "square", MF_FORM_PLAIN, &square));

    for (int i = 0; i < CALLS; i++) {
        double x = i;
        check(mf_pool_submit(pool, square, &x, sizeof x, NULL, &calls[i]));
    }
    for (int i = 0; i < CALLS; i++) {
        mf_output *output;
        check(mf_pool_wait(pool, calls[i], -1, &output));
        sum += *(const double *)mf_output_data(output);
        mf_output_free(output);
    }
    printf("the squares of 0 to %d add up to %.0f, on %u workers\n", CALLS - 1, sum, mf_lease_workers(lease));
    mf_pool_free(pool);
    mf_lease_free(lease);
    mf_client_free(client);
}
