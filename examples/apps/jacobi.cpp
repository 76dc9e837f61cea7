/* Jacobi's method for a linear system: MPI alone, or with half of each step on a leased worker. The worker keeps its half
 * of the matrix. It is sent again only if the worker is lost, which the call reports as `state_lost`.
 *
 *     cc -O3 -shared -fPIC -I bindings/c/include -o libapps.so examples/apps/functions.c -lm
 *     mpicxx -std=c++17 -O3 -I bindings/c/include -I bindings/cxx/include -o jacobi examples/apps/jacobi.cpp \
 *         "$LIB/libdayfly.so" -Wl,-rpath,"$LIB" -pthread
 *     mpirun -n 2 ./jacobi ./libapps.so 2048 6 200                    # LIBRARY UNKNOWNS ROUNDS STEPS
 *     DAYFLY_MANAGER=STATE_DIRECTORY mpirun -n 1 ./jacobi ./libapps.so 2048 6 200
 *     DAYFLY_MANAGER=STATE_DIRECTORY mpirun -n 1 ./jacobi ./libapps.so 2048 6 200 lose   # ends the worker half-way */
#include "kernels.h"
#include "ranks.hpp"

#include <cmath>
#include <vector>

using values = std::vector<double>;

struct linear_system {
    explicit linear_system(std::size_t n) : n(n), matrix(n * n), right(n, 1.0) {
        apps::numbers random;
        for (double &cell : matrix) {
            cell = random.fraction() / static_cast<double>(n);
        }
        for (std::size_t row = 0; row < n; row++) {
            matrix[row * n + row] = 2.0; // larger than the others of its row together, so that the method converges
        }
    }

    // One step for the unknowns from `first` to `last`.
    void step(const values &x, values &next, std::size_t first, std::size_t last) const {
        app_jacobi(&matrix[first * n], &right[first], x.data(), &next[first], first, last - first, n);
    }
    // Largest difference between both sides.
    double residual(const values &x) const {
        double largest = 0;
        for (std::size_t row = 0; row < n; row++) {
            double sum = -right[row];
            for (std::size_t column = 0; column < n; column++) {
                sum += matrix[row * n + column] * x[column];
            }
            largest = std::max(largest, std::abs(sum));
        }
        return largest;
    }

    std::size_t n;
    values matrix, right;
};

static values by_ranks(const apps::ranks &all, const linear_system &system, std::size_t steps) {
    values x(system.n, 0.0), next(system.n, 0.0);
    std::vector<int> counts, places;
    for (int rank = 0; rank < all.size(); rank++) {
        const auto place = [&](int of) {
            return static_cast<int>(system.n * static_cast<std::size_t>(of) / static_cast<std::size_t>(all.size()));
        };
        places.push_back(place(rank));
        counts.push_back(place(rank + 1) - place(rank));
    }
    const auto first = static_cast<std::size_t>(places[static_cast<std::size_t>(all.rank())]);
    const auto last = first + static_cast<std::size_t>(counts[static_cast<std::size_t>(all.rank())]);
    for (std::size_t step = 0; step < steps; step++) {
        system.step(x, next, first, last);
        if (all.size() > 1) {
            MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, next.data(), counts.data(), places.data(), MPI_DOUBLE,
                           MPI_COMM_WORLD);
        }
        std::swap(x, next);
    }
    return x;
}

// The second half of the system, in the memory of worker 0.
class remote_half {
public:
    remote_half(dayfly::invoker &workers, const linear_system &system)
        : workers_(workers), system_(system), first_(system.n / 2), rows_(system.n - first_),
          x_(workers.allocator<double>(0).input(system.n)), next_(workers.allocator<double>(0).output(rows_)) {}

    // Sends the matrix if the worker does not have it.
    void send() {
        const std::size_t n = system_.n;
        dayfly::call_options options;
        options.worker = 0;
        options.incarnation = await_worker();
        values message(3 + rows_ + rows_ * n);
        const std::uint64_t sizes[] = {first_, rows_, n};
        std::memcpy(message.data(), sizes, sizeof sizes);
        std::copy(&system_.right[first_], &system_.right[first_] + rows_, &message[3]);
        std::copy(&system_.matrix[first_ * n], &system_.matrix[first_ * n] + rows_ * n, &message[3 + rows_]);
        char nothing;
        workers_.call("keep", message.data(), message.size() * sizeof(double), &nothing, sizeof nothing, options);
        incarnation_ = options.incarnation;
        sent_++;
    }

    values solve(std::size_t steps) {
        values x(system_.n, 0.0), next(system_.n, 0.0);
        for (std::size_t step = 0; step < steps; step++) {
            std::copy(x.begin(), x.end(), x_.data());
            auto swept = start();
            system_.step(x, next, 0, first_);
            finish(std::move(swept));
            std::copy(next_.begin(), next_.end(), next.begin() + static_cast<std::ptrdiff_t>(first_));
            std::swap(x, next);
        }
        return x;
    }

    // Ends the worker. The next step finds that what it kept is lost.
    void lose() {
        dayfly::call_options options;
        options.worker = 0;
        char nothing = 0;
        try {
            workers_.call("fall", &nothing, 1, &nothing, 1, options);
        } catch (const dayfly::error &) {
            // The call ended with its worker.
        }
    }

    int sent() const { return sent_; }

private:
    // Starts a step on the worker; sends the matrix before if the worker is known to have lost it.
    dayfly::future<std::size_t> start() {
        try {
            return sweep();
        } catch (const dayfly::error &lost) {
            if (lost.code() != DFLY_STATE_LOST) {
                throw;
            }
        }
        send();
        return sweep();
    }

    dayfly::future<std::size_t> sweep() {
        dayfly::call_options options;
        options.worker = 0;
        options.incarnation = incarnation_;
        return workers_.submit("sweep", x_, system_.n, next_, options);
    }

    void finish(dayfly::future<std::size_t> swept) {
        try {
            swept.get();
            return;
        } catch (const dayfly::error &lost) {
            if (lost.code() != DFLY_STATE_LOST) {
                throw;
            }
        }
        send();
        sweep().get();
    }

    // Waits until the worker has been started again. Throws after 30 seconds.
    std::uint32_t await_worker() const {
        const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
        for (;;) {
            const std::uint32_t incarnation = workers_.incarnation(0);
            if (incarnation != 0) {
                return incarnation;
            }
            if (std::chrono::steady_clock::now() > until) {
                throw std::runtime_error("the worker was not replaced within 30 seconds");
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
    }

    dayfly::invoker &workers_;
    const linear_system &system_;
    const std::size_t first_, rows_;
    dayfly::buffer<double> x_, next_;
    std::uint32_t incarnation_ = 0;
    int sent_ = 0;
};

int main(int argc, char **argv) {
    return apps::run_ranks([&] {
        const std::string library = argc > 1 ? argv[1] : "./libapps.so";
        const std::size_t n = std::max<std::size_t>(argc > 2 ? std::stoul(argv[2]) : 2048, 2);
        const std::size_t rounds = argc > 3 ? std::stoul(argv[3]) : 6, steps = argc > 4 ? std::stoul(argv[4]) : 200;
        const bool is_to_lose = argc > 5 && std::string(argv[5]) == "lose";
        apps::ranks all(&argc, &argv, library, n * sizeof(double));
        const linear_system system(n);
        apps::report found;
        std::unique_ptr<remote_half> half;
        if (all.wants_workers()) {
            all.await_workers();
            apps::measure_calls(all.workers(), found);
            half = std::make_unique<remote_half>(all.workers(), system);
            half->send();
            half->solve(std::min<std::size_t>(steps, 10));
        }
        values alone = by_ranks(all, system, std::min<std::size_t>(steps, 10));
        for (std::size_t round = 0; round < rounds; round++) {
            MPI_Barrier(MPI_COMM_WORLD);
            const std::string name = "mpi-" + std::to_string(all.size());
            found.add(name, apps::milliseconds([&] { alone = by_ranks(all, system, steps); }));
            found.check(system.residual(alone) < 1e-6);
            if (half) {
                if (is_to_lose && round == rounds / 2) {
                    half->lose();
                }
                values shared;
                found.add("mpi-1+lease", apps::milliseconds([&] { shared = half->solve(steps); }));
                found.check(shared == alone);
            }
        }
        found.set("steps", static_cast<double>(steps));
        found.set("sent", half ? half->sent() : 0);
        half.reset();
        if (all.rank() == 0) {
            found.print();
        }
        return static_cast<int>(!found.is_right());
    });
}
