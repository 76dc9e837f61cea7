/* Prices of options: OpenMP alone, OpenMP whose loop is shared with a leased worker, and a leased worker alone.
 *
 *     cc -O3 -shared -fPIC -I bindings/c/include -o libapps.so examples/apps/functions.c -lm
 *     c++ -std=c++17 -O3 -fopenmp -I bindings/c/include -I bindings/cxx/include -o blackscholes \
 *         examples/apps/blackscholes.cpp -L "$LIB" -Wl,-rpath,"$LIB" -ldayfly -pthread
 *     ./blackscholes ./libapps.so 10000000 6                          # LIBRARY OPTIONS ROUNDS
 *
 * Ten million options are the native input of PARSEC: 229 MiB in, 38 MiB out. */
#include "kernels.h"
#include "rounds.hpp"

#include <omp.h>

#include <cmath>
#include <deque>
#include <vector>

using options_of = std::vector<app_option>;

// Options of a call, and calls of a step of the shared loop.
constexpr std::size_t grain = 8192, calls_of_step = 64;
// Calls under way at a time when the worker computes everything.
constexpr std::size_t max_under_way = 4;

static options_of make_options(std::size_t count) {
    apps::numbers random;
    options_of made(count);
    for (app_option &each : made) {
        each.spot = static_cast<float>(40 + 60 * random.fraction());
        each.strike = static_cast<float>(40 + 60 * random.fraction());
        each.rate = static_cast<float>(0.01 + 0.09 * random.fraction());
        each.volatility = static_cast<float>(0.05 + 0.6 * random.fraction());
        each.years = static_cast<float>(0.1 + 0.9 * random.fraction());
        each.is_put = random.fraction() < 0.5;
    }
    return made;
}

static void with_threads(const options_of &options, std::vector<float> &prices, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (std::size_t i = 0; i < options.size(); i++) {
        prices[i] = app_price(&options[i]);
    }
}

// One thread and the workers share the loop, step by step. Returns how many options the workers priced.
static std::size_t shared(dayfly::invoker &workers, dayfly::offload &plan, const options_of &options,
                          std::vector<float> &prices) {
    std::size_t sent = 0;
    for (std::size_t begin = 0; begin < options.size(); begin += grain * calls_of_step) {
        const std::size_t count = std::min(grain * calls_of_step, options.size() - begin);
        const app_option *in = &options[begin];
        float *out = &prices[begin];
        auto loop = plan.share(workers, "price", in, out, count, grain);
        for (std::size_t i = 0; i < loop.local(); i++) {
            out[i] = app_price(&in[i]);
        }
        loop.finish([&](std::size_t i) { out[i] = app_price(&in[i]); });
        sent += loop.remote();
    }
    return sent;
}

// The workers price everything. The input travels through a few buffers, while they compute others.
static void by_workers(dayfly::invoker &workers, const options_of &options, std::vector<float> &prices) {
    std::deque<dayfly::future<std::size_t>> under_way;
    for (std::size_t begin = 0; begin < options.size(); begin += grain) {
        if (under_way.size() == max_under_way) {
            under_way.front().get();
            under_way.pop_front();
        }
        const std::size_t count = std::min(grain, options.size() - begin);
        under_way.push_back(workers.submit<float>("price", &options[begin], count * sizeof(app_option), &prices[begin],
                                                  count * sizeof(float)));
    }
    for (auto &each : under_way) {
        each.get();
    }
}

static bool are_close(const std::vector<float> &one, const std::vector<float> &other) {
    for (std::size_t i = 0; i < one.size(); i++) {
        if (!(std::abs(one[i] - other[i]) <= 1e-3f * std::max(1.0f, std::abs(one[i])))) {
            return false;
        }
    }
    return true;
}

int main(int argc, char **argv) try {
    const std::size_t count = argc > 2 ? std::stoul(argv[2]) : 10000000, rounds = argc > 3 ? std::stoul(argv[3]) : 6;
    const int threads = std::min<int>(2, static_cast<int>(apps::processors().size()));
#pragma omp parallel num_threads(threads)
    apps::pin(omp_get_thread_num());
    const options_of options = make_options(count);
    std::vector<float> alone(count), prices(count);

    dayfly::invoker workers;
    dayfly::lease_options lease;
    lease.mode = dayfly::mode::warm;
    workers.allocate(argc > 1 ? argv[1] : "./libapps.so", grain * sizeof(app_option), lease);
    for (const char *name : {"echo", "price"}) {
        workers.declare(name, dayfly::form::checked);
    }
    dayfly::offload plan;
    apps::report found;
    apps::measure_calls(workers, found);
    // The planner learns, and every page is touched once.
    with_threads(options, alone, threads);
    std::size_t sent = shared(workers, plan, options, prices);
    for (std::size_t round = 0; round < rounds; round++) {
        found.add("openmp-1", apps::milliseconds([&] { with_threads(options, alone, 1); }));
        std::fill(prices.begin(), prices.end(), 0.0f);
        found.add("openmp-1+lease", apps::milliseconds([&] { sent = shared(workers, plan, options, prices); }));
        found.check(are_close(alone, prices));
        std::fill(prices.begin(), prices.end(), 0.0f);
        found.add("lease", apps::milliseconds([&] { by_workers(workers, options, prices); }));
        found.check(are_close(alone, prices));
        std::fill(prices.begin(), prices.end(), 0.0f);
        found.add("openmp-2", apps::milliseconds([&] { with_threads(options, prices, threads); }));
        found.check(are_close(alone, prices));
    }
    found.set("sent", static_cast<double>(sent) / static_cast<double>(std::max<std::size_t>(count, 1)));
    found.print();
    return !found.is_right();
} catch (const dayfly::error &error) {
    std::fprintf(stderr, "%s [%s] %s\n", error.what(), error.name(), error.remedy());
    return 1;
}
