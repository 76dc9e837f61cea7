/* One function, one call.
 *
 *     cc -O3 -shared -fPIC -I bindings/c/include -o libsquare.so examples/functions/square.c
 *     cc -I bindings/c/include -o hello examples/c/hello.c -L "$LIB" -Wl,-rpath,"$LIB" -ldayfly
 *     ./hello ./libsquare.so
 *
 * LIB is the directory that `make build` prints. */
#include <dayfly.h>
#include <stdio.h>
#include <stdlib.h>

static void check(dfly_status status) {
    if (status != DFLY_OK) {
        fprintf(stderr, "%s [%s] %s\n", dfly_last_error_message(), dfly_error_name(status), dfly_error_remedy(status));
        exit(1);
    }
}

int main(int argc, char **argv) {
    dfly_client *client;
    dfly_lease *lease;
    dfly_channel *channel;
    dfly_code code;
    uint16_t square;
    double in[3] = {1, 2, 3}, out[3];
    size_t length;

    check(dfly_client_connect(NULL, &client));           /* finds a manager, or starts an embedded one */
    check(dfly_lease_open(client, NULL, &lease));        /* one worker */
    check(dfly_lease_load_library(lease, argc > 1 ? argv[1] : "./libsquare.so", &code));
    check(dfly_channel_open(lease, 0, NULL, &channel));
    check(dfly_channel_load(channel, &code, "square", DFLY_FORM_PLAIN, &square));

    check(dfly_channel_call(channel, square, 0, in, sizeof in, out, sizeof out, &length));
    for (size_t i = 0; i < length / sizeof *out; i++) {
        printf("%g squared is %g\n", in[i], out[i]);
    }
    dfly_channel_free(channel);
    dfly_lease_free(lease);
    dfly_client_free(client);
}
