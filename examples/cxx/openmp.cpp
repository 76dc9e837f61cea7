/* A loop shared between OpenMP threads and leased workers. Each step sends as many options as come back before the
 * threads have priced theirs, by the times of the steps before.
 *
 *     cc -O3 -shared -fPIC -I bindings/c/include -o libblackscholes.so examples/functions/blackscholes.c -lm
 *     c++ -std=c++17 -O3 -fopenmp -I bindings/c/include -I bindings/cxx/include -o openmp examples/cxx/openmp.cpp \
 *         -L "$LIB" -Wl,-rpath,"$LIB" -ldayfly -pthread
 *     OMP_NUM_THREADS=1 ./openmp ./libblackscholes.so                 # or: ./openmp LIBRARY OPTIONS STEPS */
#include <chrono>
#include <cmath>
#include <cstdio>
#include <dayfly/dayfly.hpp>
#include <omp.h>
#include <string>
#include <vector>

struct option {
    double spot, strike, years, rate, volatility;
};

static double normal(double x) {
    return 0.5 * std::erfc(-x * 0.70710678118654752440);
}

static double call_price(const option &o) {
    const double spread = o.volatility * std::sqrt(o.years);
    const double d1 = (std::log(o.spot / o.strike) + (o.rate + 0.5 * o.volatility * o.volatility) * o.years) / spread;
    return o.spot * normal(d1) - o.strike * std::exp(-o.rate * o.years) * normal(d1 - spread);
}

static double since(std::chrono::steady_clock::time_point begun) {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begun).count();
}

int main(int argc, char **argv) try {
    const std::size_t count = argc > 2 ? std::stoul(argv[2]) : 100000, steps = argc > 3 ? std::stoul(argv[3]) : 20;
    constexpr std::size_t grain = 1000; // options of a call
    std::vector<option> options(count);
    for (std::size_t i = 0; i < count; i++) {
        options[i] = {100, 50 + static_cast<double>(i) * 100.0 / static_cast<double>(count), 1, 0.05, 0.2};
    }
    std::vector<double> prices(count), alone(count);

    dayfly::invoker invoker;
    invoker.allocate(argc > 1 ? argv[1] : "./libblackscholes.so", grain * sizeof(option));
    invoker.declare("blackscholes", dayfly::form::checked);
    dayfly::offload plan;
    double alone_ms = 1e30, shared_ms = 1e30;
    std::size_t sent = 0, differing = 0;
    for (std::size_t step = 0; step < steps; step++) {
        auto begun = std::chrono::steady_clock::now();
#pragma omp parallel for
        for (std::size_t i = 0; i < count; i++) {
            alone[i] = call_price(options[i]);
        }
        alone_ms = std::min(alone_ms, since(begun));

        begun = std::chrono::steady_clock::now();
        auto loop = plan.share(invoker, "blackscholes", options.data(), prices.data(), count, grain,
                               static_cast<std::uint32_t>(omp_get_max_threads()));
#pragma omp parallel for
        for (std::size_t i = 0; i < loop.local(); i++) {
            prices[i] = call_price(options[i]);
        }
        loop.finish([&](std::size_t i) { prices[i] = call_price(options[i]); });
        shared_ms = std::min(shared_ms, since(begun));
        sent += loop.remote();
        for (std::size_t i = 0; i < count; i++) {
            differing += std::abs(prices[i] - alone[i]) > 1e-9;
        }
    }
    std::printf("%zu prices differ; workers computed %zu of %zu; a step took %.2f ms, without workers %.2f ms\n", differing,
                sent, count * steps, shared_ms, alone_ms);
    return differing != 0;
} catch (const dayfly::error &error) {
    std::fprintf(stderr, "%s [%s] %s\n", error.what(), error.name(), error.remedy());
    return 1;
}
