/* Many calls over all workers of a lease, as futures.
 *
 *     cc -O3 -shared -fPIC -I bindings/c/include -o libsquare.so examples/functions/square.c
 *     c++ -std=c++17 -I bindings/c/include -I bindings/cxx/include -o parallel examples/cxx/parallel.cpp \
 *         -L "$LIB" -Wl,-rpath,"$LIB" -ldayfly -pthread
 *     ./parallel ./libsquare.so */
#include <cstdio>
#include <dayfly/dayfly.hpp>
#include <vector>

int main(int argc, char **argv) try {
    constexpr std::size_t calls = 10000;
    dayfly::invoker invoker;
    invoker.allocate(argc > 1 ? argv[1] : "./libsquare.so", sizeof(double), dayfly::invoker::ALWAYS_WARM, 2);

    std::vector<double> out(calls);
    std::vector<dayfly::future<std::size_t>> futures;
    for (std::size_t i = 0; i < calls; i++) {
        double x = static_cast<double>(i);
        futures.push_back(invoker.submit("square", &x, sizeof x, &out[i], sizeof x));
    }
    double sum = 0;
    for (std::size_t i = 0; i < calls; i++) {
        futures[i].get();
        sum += out[i];
    }
    std::printf("the squares of 0 to %zu add up to %.0f, on %u workers\n", calls - 1, sum, invoker.workers());
    invoker.deallocate();
} catch (const dayfly::error &error) {
    std::fprintf(stderr, "%s [%s] %s\n", error.what(), error.name(), error.remedy());
    return 1;
}
