/* Option prices over shared memory without a copy: the worker reads and writes the vectors of this program.
 *
 *     cc -O3 -shared -fPIC -I bindings/c/include -o libblackscholes.so examples/functions/blackscholes.c -lm
 *     c++ -std=c++17 -I bindings/c/include -I bindings/cxx/include -o blackscholes examples/cxx/blackscholes.cpp \
 *         -L "$LIB" -Wl,-rpath,"$LIB" -ldayfly -pthread
 *     ./blackscholes ./libblackscholes.so */
#include <cstdio>
#include <dayfly/dayfly.hpp>

struct option {
    double spot, strike, years, rate, volatility;
};

int main(int argc, char **argv) try {
    constexpr std::size_t count = 100000;
    dayfly::client client;
    dayfly::lease lease = client.lease();
    dfly_code code = lease.load_library(argc > 1 ? argv[1] : "./libblackscholes.so");
    dayfly::channel channel(lease, 0);
    dayfly::function price = channel.load(code, "blackscholes", dayfly::form::checked);

    dayfly::channel::vector<option> options(count, channel.allocator<option>());
    dayfly::channel::vector<double> prices(count, channel.allocator<double>());
    for (std::size_t i = 0; i < count; i++) {
        options[i] = {100, 50 + static_cast<double>(i) * 100.0 / count, 1, 0.05, 0.2};
    }
    std::size_t priced = channel.call(price, options, prices);
    std::printf("%zu prices; at the money %.4f\n", priced, prices[count / 2]);
} catch (const dayfly::error &error) {
    std::fprintf(stderr, "%s [%s] %s\n", error.what(), error.name(), error.remedy());
    return 1;
}
