/* One function, one call.
 *
 *     cc -O3 -shared -fPIC -I bindings/c/include -o libsquare.so examples/functions/square.c
 *     c++ -std=c++17 -I bindings/c/include -I bindings/cxx/include -o hello examples/cxx/hello.cpp \
 *         -L "$LIB" -Wl,-rpath,"$LIB" -ldayfly -pthread
 *     ./hello ./libsquare.so
 *
 * LIB is the directory that `make build` prints. */
#include <iostream>
#include <dayfly/dayfly.hpp>

int main(int argc, char **argv) try {
    dayfly::client client;                // finds a manager, or starts an embedded one
    dayfly::lease lease = client.lease(); // one worker
    dfly_code code = lease.load_library(argc > 1 ? argv[1] : "./libsquare.so");
    dayfly::channel channel(lease, 0);
    dayfly::function square = channel.load(code, "square");

    double in[] = {1, 2, 3}, out[3];
    std::size_t bytes = channel.call(square, in, sizeof in, out, sizeof out);
    for (std::size_t i = 0; i < bytes / sizeof *out; i++) {
        std::cout << in[i] << " squared is " << out[i] << '\n';
    }
} catch (const dayfly::error &error) {
    std::cerr << error.what() << " [" << error.name() << "] " << error.remedy() << '\n';
    return 1;
}
