/* Prefix scan of matrices under multiplication. One rank needs n products one after the other. The graph of the scan is
 * wider with twice the work, so that a program borrows for it: with one more core, each needs 2n/3.
 *
 *     first   this rank scans the first third, the worker or the other rank the second one
 *     then    this rank multiplies the second third by the end of the first, the other scans the last third
 *
 *     cc -O3 -shared -fPIC -I bindings/c/include -o libapps.so examples/apps/functions.c -lm
 *     mpicxx -std=c++17 -O3 -I bindings/c/include -I bindings/cxx/include -o scan examples/apps/scan.cpp \
 *         "$LIB/libdayfly.so" -Wl,-rpath,"$LIB" -pthread
 *     mpirun -n 2 ./scan ./libapps.so 150 6                           # LIBRARY MATRICES ROUNDS
 *     DAYFLY_MANAGER=STATE_DIRECTORY mpirun -n 1 ./scan ./libapps.so 150 6 */
#include "kernels.h"
#include "ranks.hpp"

#include <array>
#include <vector>

using matrix = std::array<std::uint64_t, APP_CELLS>;
using matrices = std::vector<matrix>;

// Scans elsewhere: on a worker, or on another rank. `take` waits and returns where the products are.
class helper {
public:
    virtual ~helper() = default;
    virtual void give(const matrix *first, std::size_t count) = 0;
    virtual const matrix *take() = 0;
};

class on_worker final : public helper {
public:
    on_worker(dayfly::invoker &workers, std::size_t most)
        : workers_(workers), in_(workers.allocator<matrix>(0).input(most)),
          out_(workers.allocator<matrix>(0).output(most)) {}
    void give(const matrix *first, std::size_t count) override {
        std::copy(first, first + count, in_.data());
        scanned_ = workers_.submit("scan", in_, count, out_);
    }
    const matrix *take() override {
        scanned_.get();
        return out_.data();
    }

private:
    dayfly::invoker &workers_;
    dayfly::buffer<matrix> in_, out_;
    dayfly::future<std::size_t> scanned_;
};

class on_rank final : public helper {
public:
    explicit on_rank(std::size_t most) : out_(most) {}
    void give(const matrix *first, std::size_t count) override {
        count_ = static_cast<int>(count * APP_CELLS);
        MPI_Send(first->data(), count_, MPI_UINT64_T, 1, 0, MPI_COMM_WORLD);
    }
    const matrix *take() override {
        MPI_Recv(out_[0].data(), count_, MPI_UINT64_T, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        return out_.data();
    }

    // What rank 1 does meanwhile.
    static void serve(matrices &in, matrices &out) {
        MPI_Status status;
        int cells = 0;
        MPI_Recv(in[0].data(), static_cast<int>(in.size() * APP_CELLS), MPI_UINT64_T, 0, 0, MPI_COMM_WORLD, &status);
        MPI_Get_count(&status, MPI_UINT64_T, &cells);
        app_scan(in[0].data(), out[0].data(), static_cast<std::size_t>(cells) / APP_CELLS);
        MPI_Send(out[0].data(), cells, MPI_UINT64_T, 0, 0, MPI_COMM_WORLD);
    }

private:
    matrices out_;
    int count_ = 0;
};

// Room for a part, and for the product before it.
static std::size_t part_of(std::size_t count) {
    return count / 3 + 3;
}

static void with_helper(helper &other, const matrices &in, matrices &out) {
    const std::size_t count = in.size(), second = count / 3, third = 2 * count / 3;
    other.give(&in[second], third - second);
    app_scan(in[0].data(), out[0].data(), second);
    const matrix *taken = other.take();
    const matrices middle(taken, taken + (third - second));

    // The last third begins with the product of everything before it.
    matrices last(count - third + 1);
    app_combine(out[second - 1].data(), middle.back().data(), last[0].data());
    std::copy(in.begin() + static_cast<std::ptrdiff_t>(third), in.end(), last.begin() + 1);
    other.give(last.data(), last.size());
    out[third - 1] = last[0];
    for (std::size_t i = second; i + 1 < third; i++) {
        app_combine(out[second - 1].data(), middle[i - second].data(), out[i].data());
    }
    taken = other.take();
    std::copy(taken + 1, taken + last.size(), out.begin() + static_cast<std::ptrdiff_t>(third));
}

int main(int argc, char **argv) {
    return apps::run_ranks([&] {
        const std::string library = argc > 1 ? argv[1] : "./libapps.so";
        const std::size_t count = std::max<std::size_t>(argc > 2 ? std::stoul(argv[2]) : 150, 6);
        const std::size_t rounds = argc > 3 ? std::stoul(argv[3]) : 6;
        apps::ranks all(&argc, &argv, library, 0);
        matrices in(count), alone(count), out(count);
        apps::numbers random;
        for (matrix &each : in) {
            for (std::uint64_t &cell : each) {
                cell = random.next();
            }
        }
        app_scan(in[0].data(), alone[0].data(), count);
        apps::report found;
        std::unique_ptr<helper> other;
        if (all.wants_workers()) {
            all.await_workers();
            apps::measure_calls(all.workers(), found);
            other = std::make_unique<on_worker>(all.workers(), part_of(count));
            with_helper(*other, in, out);
        } else if (all.size() > 1) {
            other = std::make_unique<on_rank>(part_of(count));
        }
        for (std::size_t round = 0; round < rounds; round++) {
            MPI_Barrier(MPI_COMM_WORLD);
            if (all.size() == 1) {
                found.add("mpi-1", apps::milliseconds([&] { app_scan(in[0].data(), out[0].data(), count); }));
                found.check(out == alone);
                out.assign(count, matrix{});
            }
            if (all.rank() == 1) {
                matrices part(part_of(count)), products(part_of(count));
                on_rank::serve(part, products);
                on_rank::serve(part, products);
            }
            if (all.rank() == 0 && other) {
                const char *name = all.size() > 1 ? "mpi-2" : "mpi-1+lease";
                found.add(name, apps::milliseconds([&] { with_helper(*other, in, out); }));
                found.check(out == alone);
            }
        }
        other.reset();
        if (all.rank() == 0) {
            found.print();
        }
        return static_cast<int>(!found.is_right());
    });
}
