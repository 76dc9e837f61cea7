/* Product of two matrices that rank 0 has: MPI alone, or with half of the rows on a leased worker.
 *
 *     cc -O3 -shared -fPIC -I bindings/c/include -o libapps.so examples/apps/functions.c -lm
 *     mpicxx -std=c++17 -O3 -I bindings/c/include -I bindings/cxx/include -o matmul examples/apps/matmul.cpp \
 *         "$LIB/libdayfly.so" -Wl,-rpath,"$LIB" -pthread
 *     mpirun -n 2 ./matmul ./libapps.so 768 6                         # LIBRARY SIDE ROUNDS
 *     DAYFLY_MANAGER=STATE_DIRECTORY mpirun -n 1 ./matmul ./libapps.so 768 6
 *
 * With several ranks, rank 0 sends the rows and the right matrix, and gathers the product. A worker gets the same. */
#include "kernels.h"
#include "ranks.hpp"

#include <cmath>
#include <vector>

using matrix = std::vector<double>;

// Rows from `first` to `last` of the ranks or parts, as equal as they can be.
static std::size_t row_of(std::size_t n, int part, int parts) {
    return n * static_cast<std::size_t>(part) / static_cast<std::size_t>(parts);
}

static void by_ranks(const apps::ranks &all, matrix &left, matrix &right, matrix &product, std::size_t n) {
    std::vector<int> counts, places;
    for (int rank = 0; rank < all.size(); rank++) {
        places.push_back(static_cast<int>(row_of(n, rank, all.size()) * n));
        counts.push_back(static_cast<int>(row_of(n, rank + 1, all.size()) * n) - places.back());
    }
    const auto own = static_cast<std::size_t>(counts[static_cast<std::size_t>(all.rank())]);
    const bool is_first = all.rank() == 0;
    if (all.size() > 1) {
        MPI_Bcast(right.data(), static_cast<int>(n * n), MPI_DOUBLE, 0, MPI_COMM_WORLD);
        MPI_Scatterv(left.data(), counts.data(), places.data(), MPI_DOUBLE, is_first ? MPI_IN_PLACE : left.data(),
                     static_cast<int>(own), MPI_DOUBLE, 0, MPI_COMM_WORLD);
    }
    app_multiply(left.data(), right.data(), product.data(), own / n, n);
    if (all.size() > 1) {
        MPI_Gatherv(is_first ? MPI_IN_PLACE : product.data(), static_cast<int>(own), MPI_DOUBLE, product.data(),
                    counts.data(), places.data(), MPI_DOUBLE, 0, MPI_COMM_WORLD);
    }
}

// Memory that the worker reads and writes in place.
struct parts {
    parts(dayfly::invoker &workers, std::size_t rows, std::size_t n)
        : in(workers.allocator<double>(0).input(2 + (n + rows) * n)),
          out(workers.allocator<double>(0).output(rows * n)), rows(rows) {}

    dayfly::buffer<double> in, out;
    std::size_t rows;
};

static void with_worker(dayfly::invoker &workers, parts &sent, const matrix &left, const matrix &right, matrix &product,
                        std::size_t n) {
    const std::size_t kept = n - sent.rows;
    const std::uint64_t sizes[] = {sent.rows, n};
    std::memcpy(sent.in.data(), sizes, sizeof sizes);
    std::copy(right.begin(), right.end(), sent.in.data() + 2);
    std::copy(left.begin() + static_cast<std::ptrdiff_t>(kept * n), left.end(), sent.in.data() + 2 + n * n);
    auto multiplied = workers.submit("multiply", sent.in, sent.in.size(), sent.out);
    app_multiply(left.data(), right.data(), product.data(), kept, n);
    multiplied.get();
    std::copy(sent.out.begin(), sent.out.end(), product.begin() + static_cast<std::ptrdiff_t>(kept * n));
}

// Whether product = left * right, by Freivalds' check: both times a vector.
static bool is_product(const matrix &left, const matrix &right, const matrix &product, std::size_t n) {
    const auto times = [n](const matrix &by, const std::vector<double> &vector) {
        std::vector<double> result(n, 0.0);
        for (std::size_t row = 0; row < n; row++) {
            for (std::size_t column = 0; column < n; column++) {
                result[row] += by[row * n + column] * vector[column];
            }
        }
        return result;
    };
    apps::numbers random;
    std::vector<double> vector(n);
    for (double &each : vector) {
        each = random.fraction();
    }
    const std::vector<double> wanted = times(left, times(right, vector)), found = times(product, vector);
    for (std::size_t row = 0; row < n; row++) {
        if (!(std::abs(wanted[row] - found[row]) <= 1e-9 * std::max(1.0, std::abs(wanted[row])))) {
            return false;
        }
    }
    return true;
}

int main(int argc, char **argv) {
    return apps::run_ranks([&] {
        const std::string library = argc > 1 ? argv[1] : "./libapps.so";
        const std::size_t n = std::max<std::size_t>(argc > 2 ? std::stoul(argv[2]) : 768, 2);
        const std::size_t rounds = argc > 3 ? std::stoul(argv[3]) : 6;
        apps::ranks all(&argc, &argv, library, 0);
        matrix left(n * n), right(n * n), product(n * n);
        apps::numbers random;
        for (matrix *each : {&left, &right}) {
            for (double &cell : *each) {
                cell = random.fraction();
            }
        }
        apps::report found;
        std::unique_ptr<parts> memory;
        if (all.wants_workers()) {
            all.await_workers();
            memory = std::make_unique<parts>(all.workers(), n / 2, n);
            apps::measure_calls(all.workers(), found);
            with_worker(all.workers(), *memory, left, right, product, n);
        }
        by_ranks(all, left, right, product, n);
        for (std::size_t round = 0; round < rounds; round++) {
            left[0] = static_cast<double>(round);
            std::fill(product.begin(), product.end(), 0.0);
            MPI_Barrier(MPI_COMM_WORLD);
            const std::string name = "mpi-" + std::to_string(all.size());
            found.add(name, apps::milliseconds([&] { by_ranks(all, left, right, product, n); }));
            found.check(all.rank() != 0 || is_product(left, right, product, n));
            if (memory) {
                std::fill(product.begin(), product.end(), 0.0);
                all.exchange();
                found.add("mpi-1+lease", apps::milliseconds([&] {
                              with_worker(all.workers(), *memory, left, right, product, n);
                          }));
                found.check(is_product(left, right, product, n));
            }
        }
        if (all.rank() == 0) {
            found.print();
        }
        return static_cast<int>(!found.is_right());
    });
}
