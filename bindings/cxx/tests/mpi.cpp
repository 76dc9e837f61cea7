// Two ranks or more under mpirun, for tests/test_mpi_accelerator.py. Arguments: the library of
// examples/functions/square.c, and what to do:
//
//     pair    until the ranks with a lease and the ranks with private workers are all that there are, then compute
//     alone   compute without any leased worker
//     hang    as `pair`; then print the process ids and wait to be killed
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

    dayfly::mpi::pairing pairing;
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(40);
    for (int is_late = 0; !is_alone && pairing.with_lease + pairing.with_private < size;) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        pairing = accelerator.exchange();
        is_late = std::chrono::steady_clock::now() > until;
        MPI_Bcast(&is_late, 1, MPI_INT, 0, MPI_COMM_WORLD);
        if (is_late) {
            std::fprintf(stderr, "rank %d: %d leases, %d private; %s\n", rank, pairing.with_lease,
                         pairing.with_private, accelerator.refusal().c_str());
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
    }
    HOLDS(accelerator.has_lease() == (pairing.partner < 0) || is_alone);
    if (std::strcmp(argv[2], "hang") == 0) {
        std::printf("pid %d\n", getpid());
        std::fflush(stdout);
        std::this_thread::sleep_for(std::chrono::minutes(5));
    }
    const std::size_t remote = compute(accelerator, rank);
    HOLDS((remote == 0) == is_alone);
    accelerator.finish();
    if (rank == 0) {
        std::printf("%d with a lease, %d with private workers: all held\n", pairing.with_lease, pairing.with_private);
    }
    MPI_Finalize();
    return 0;
}
