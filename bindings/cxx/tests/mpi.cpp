// Two ranks or more under mpirun, for tests/test_mpi_accelerator.py. Arguments: the library of tests/mpi/square.c, and
// what to do:
//
//     pair    until the ranks with a lease and the ranks with private workers are all that there are, then compute
//     alone   compute without any leased worker
//     hang    as `pair`; then print the process ids of the two ranks and wait to be killed
//     lose    as `pair`; then compute while the node of a private worker is killed, and until all ranks have workers again
//     end     as `pair`; then compute while the node of the lease is killed, and until no rank has a lease
#include "check.hpp"

#include <dayfly/mpi.hpp>

#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

static double square(double x) {
    return x * x;
}

// Runs supersteps over numbers of this rank, and returns how many of them workers computed.
static std::size_t compute(dayfly::mpi::accelerator &accelerator, int rank) {
    constexpr std::size_t count = 4096, grain = 64;
    dayfly::offload plan;
    std::vector<double> in(count), out(count);
    std::size_t remote = 0;
    for (int step = 0; step < 20; step++) {
        accelerator.exchange();
        for (std::size_t i = 0; i < count; i++) {
            in[i] = static_cast<double>(i) + step + rank * 0.5;
        }
        auto loop = plan.share(accelerator.workers(), "square", in.data(), out.data(), count, grain);
        for (std::size_t i = 0; i < loop.local(); i++) {
            out[i] = square(in[i]);
            if (i % grain == 0) {
                std::this_thread::sleep_for(std::chrono::microseconds(100)); // work
            }
        }
        loop.finish([&](std::size_t i) { out[i] = square(in[i]); });
        remote += loop.remote();
        for (std::size_t i = 0; i < count; i++) {
            HOLDS(out[i] == square(in[i]));
        }
    }
    return remote;
}

// Has a worker of this rank, if it is a loser, kill its node in the middle of a superstep.
static void lose(dayfly::mpi::accelerator &accelerator, bool is_loser) {
    constexpr std::size_t count = 4096, grain = 64;
    dayfly::offload plan;
    std::vector<double> in(count), out(count);
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    int is_lost = !is_loser, all_lost = 0;
    for (;;) {
        MPI_Allreduce(&is_lost, &all_lost, 1, MPI_INT, MPI_LAND, MPI_COMM_WORLD);
        if (all_lost) {
            return;
        }
        HOLDS(std::chrono::steady_clock::now() < until);
        for (std::size_t i = 0; i < count; i++) {
            in[i] = (is_lost ? 1.0 : -1.0) * (static_cast<double>(i) + 1); // a worker kills its node for negative ones
        }
        auto loop = plan.share(accelerator.workers(), "square_or_kill_node", in.data(), out.data(), count, grain);
        for (std::size_t i = 0; i < loop.local(); i++) {
            out[i] = square(in[i]);
            if (i % grain == 0) {
                std::this_thread::sleep_for(std::chrono::microseconds(100)); // work
            }
        }
        loop.finish([&](std::size_t i) { out[i] = square(in[i]); });
        for (std::size_t i = 0; i < count; i++) {
            HOLDS(out[i] == square(in[i]));
        }
        is_lost = is_lost || accelerator.workers().remaining() == 0;
    }
}

// Runs supersteps without work until `is_so` for the pairs of the ranks.
template <typename Condition>
static dayfly::mpi::pairing exchange_until(dayfly::mpi::accelerator &accelerator, int rank, Condition is_so) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    for (;;) {
        const dayfly::mpi::pairing pairing = accelerator.exchange();
        if (is_so(pairing)) {
            return pairing;
        }
        int is_late = std::chrono::steady_clock::now() > until;
        MPI_Bcast(&is_late, 1, MPI_INT, 0, MPI_COMM_WORLD);
        if (is_late) {
            std::fprintf(stderr, "rank %d: %d leases, %d private; %s\n", rank, pairing.with_lease,
                         pairing.with_private, accelerator.refusal().c_str());
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
}

int main(int argc, char **argv) {
    HOLDS(argc == 3);
    const bool is_alone = std::strcmp(argv[2], "alone") == 0;
    dayfly::mpi::accelerator_options options;
    options.library = argv[1];
    options.lease.mode = dayfly::mode::hot;
    dayfly::mpi::accelerator accelerator(options);
    MPI_Init(&argc, &argv);
    int rank = 0, size = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    accelerator.attach(MPI_COMM_WORLD);

    const auto is_all = [size](const dayfly::mpi::pairing &found) {
        return found.with_lease + found.with_private == size;
    };
    const auto has_none = [](const dayfly::mpi::pairing &found) { return found.with_lease == 0; };
    dayfly::mpi::pairing pairing = exchange_until(accelerator, rank, [&](const dayfly::mpi::pairing &found) {
        return is_alone || is_all(found);
    });
    HOLDS(accelerator.has_lease() == (pairing.partner < 0) || is_alone);
    if (std::strcmp(argv[2], "hang") == 0) {
        const int own = getpid();
        int pids[2] = {};
        MPI_Gather(&own, 1, MPI_INT, pids, 1, MPI_INT, 0, MPI_COMM_WORLD);
        if (rank == 0) { // alone, as mpirun mixes what ranks print
            std::printf("%d %d\n", pids[0], pids[1]);
            std::fflush(stdout);
        }
        std::this_thread::sleep_for(std::chrono::minutes(5));
    }
    HOLDS((compute(accelerator, rank) == 0) == is_alone);
    if (std::strcmp(argv[2], "lose") == 0) {
        lose(accelerator, !accelerator.has_lease());
        pairing = exchange_until(accelerator, rank, is_all); // a private node that has ended is started again
        HOLDS(compute(accelerator, rank) > 0);
    }
    if (std::strcmp(argv[2], "end") == 0) {
        lose(accelerator, accelerator.has_lease());
        pairing = exchange_until(accelerator, rank, has_none);
        compute(accelerator, rank);
    }
    accelerator.finish();
    if (rank == 0) {
        std::printf("%d with a lease, %d with private workers: all held\n", pairing.with_lease, pairing.with_private);
    }
    MPI_Finalize();
    return 0;
}
