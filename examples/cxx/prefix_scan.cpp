/* Prefix scan with one leased core. A scan on one core needs n products one after the other. Its graph is wider with
 * twice the work: this program and a worker need 2n/3 products each.
 *
 *     first   the program scans the first third, the worker the second one
 *     then    the program multiplies the second third by the end of the first, the worker scans the last third
 *
 *     cc -O3 -shared -fPIC -I bindings/c/include -o libscan.so examples/functions/scan.c
 *     c++ -std=c++17 -O3 -I bindings/c/include -I bindings/cxx/include -o prefix_scan examples/cxx/prefix_scan.cpp \
 *         -L "$LIB" -Wl,-rpath,"$LIB" -ldayfly -pthread
 *     ./prefix_scan ./libscan.so                                      # or: ./prefix_scan LIBRARY MATRICES ROUNDS */
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <dayfly/dayfly.hpp>
#include <string>
#include <vector>

constexpr int side = 64;
using matrix = std::array<std::uint64_t, side * side>;
using matrices = std::vector<matrix>;

static void multiply(const matrix &left, const matrix &right, matrix &product) {
    product.fill(0);
    for (int row = 0; row < side; row++) {
        for (int at = 0; at < side; at++) {
            for (int column = 0; column < side; column++) {
                product[row * side + column] += left[row * side + at] * right[at * side + column];
            }
        }
    }
}

static void scan(const matrices &in, matrices &out, std::size_t count) {
    out[0] = in[0];
    for (std::size_t i = 1; i < count; i++) {
        multiply(out[i - 1], in[i], out[i]);
    }
}

// Memory that the worker reads and writes in place.
struct parts {
    parts(dayfly::invoker &worker, std::size_t most) : made(worker.allocator<matrix>()) {
        for (auto *each : {&in, &out, &last_in, &last_out}) {
            *each = made.input(most);
        }
    }

    dayfly::allocator<matrix> made;
    dayfly::buffer<matrix> in, out, last_in, last_out;
};

static void scan_with_worker(dayfly::invoker &worker, parts &shared, const matrices &in, matrices &out) {
    const std::size_t count = in.size(), second = count / 3, third = 2 * count / 3;
    std::copy(&in[second], &in[third], shared.in.data());
    auto scanned = worker.submit("scan", shared.in, third - second, shared.out);
    scan(in, out, second);
    scanned.get();

    // The last third begins with the product of everything before it.
    const matrix *middle = shared.out.data();
    std::copy(&in[third - 1], in.data() + count, shared.last_in.data());
    multiply(out[second - 1], middle[third - second - 1], shared.last_in.data()[0]);
    scanned = worker.submit("scan", shared.last_in, count - third + 1, shared.last_out);
    for (std::size_t i = second; i + 1 < third; i++) {
        multiply(out[second - 1], middle[i - second], out[i]);
    }
    scanned.get();
    std::copy(shared.last_out.data(), shared.last_out.data() + (count - third + 1), &out[third - 1]);
}

template <typename Body> static double milliseconds(Body body) {
    const auto begun = std::chrono::steady_clock::now();
    body();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begun).count();
}

static double median(std::vector<double> times) {
    std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
    return times[times.size() / 2];
}

int main(int argc, char **argv) try {
    const std::size_t count = std::max<std::size_t>(argc > 2 ? std::stoul(argv[2]) : 150, 6);
    const std::size_t rounds = std::max<std::size_t>(argc > 3 ? std::stoul(argv[3]) : 15, 1);
    matrices in(count), alone(count), shared(count);
    std::uint64_t random = 1;
    for (matrix &each : in) {
        for (std::uint64_t &cell : each) {
            cell = random = random * 6364136223846793005u + 1442695040888963407u;
        }
    }
    dayfly::invoker worker;
    worker.allocate(argc > 1 ? argv[1] : "./libscan.so", count * sizeof(matrix) / 2);
    worker.declare("scan", dayfly::form::checked);
    parts memory(worker, count / 3 + 2);
    std::vector<double> without, with;
    bool is_same = true;
    for (std::size_t round = 0; round < rounds; round++) {
        without.push_back(milliseconds([&] { scan(in, alone, count); }));
        with.push_back(milliseconds([&] { scan_with_worker(worker, memory, in, shared); }));
        is_same = is_same && alone == shared;
    }
    std::printf("%zu matrices, %s results: %.2f ms alone, %.2f ms with a leased core, %.2f times as fast\n", count,
                is_same ? "the same" : "DIFFERENT", median(without), median(with), median(without) / median(with));
    return !is_same;
} catch (const dayfly::error &error) {
    std::fprintf(stderr, "%s [%s] %s\n", error.what(), error.name(), error.remedy());
    return 1;
}
