/* One function, one call.
 *
 *     cc -O3 -shared -fPIC -I bindings/c/include -o libsquare.so examples/functions/square.c
 *     cc -I bindings/c/include -o hello examples/c/hello.c -L "$LIB" -Wl,-rpath,"$LIB" -lmayfly
 *     ./hello ./libsquare.so
 *
 * LIB is the directory that `make build` prints. */
#include <mayfly.h>
#include <stdio.h>
#include <stdlib.h>

static void check(mf_status status) {
    if (status != MF_OK) {
        fprintf(stderr, "%s [%s] %s\n", mf_last_error_message(), mf_error_name(status), mf_error_remedy(status));
        exit(1);
    }
}

int main(int argc, char **argv) {
    mf_client *client;
    mf_lease *lease;
    mf_channel *channel;
    mf_code code;
    uint16_t square;
    double in[3] = {1, 2, 3}, out[3];
    size_t length;

    check(mf_client_connect(NULL, &client));           /* finds a manager, or starts one of its own */
    check(mf_lease_open(client, NULL, &lease));        /* one worker */
    check(mf_lease_load_library(lease, argc > 1 ? argv[1] : "./libsquare.so", &code));
    check(mf_channel_open(lease, 0, NULL, &channel));
    check(mf_channel_load(channel, &code, "square", MF_FORM_PLAIN, &square));

    check(mf_channel_call(channel, square, 0, in, sizeof in, out, sizeof out, &length));
    for (size_t i = 0; i < length / sizeof *out; i++) {
        printf("%g squared is %g\n", in[i], out[i]);
    }
    mf_channel_free(channel);
    mf_lease_free(lease);
    mf_client_free(client);
}
